"""Which situations of a search are alike, so that what failed in one need not be tried in another.

Two devices are of one kind when no request, constraint, counter or capacity can tell them apart.
What the rest of a search depends on is then how many of each kind are left, not which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drakit.scheduler.allocator.search_state import SearchState, mask_of
from drakit.scheduler.requests import Candidate, EvaluationFailure


@dataclass(frozen=True, slots=True)
class _View:
    """The devices that matter from some request on."""

    relevant: int
    singles: int
    """Devices that are the only ones of their kind."""
    groups: tuple[int, ...]
    admin: bool
    """Whether the claim has requests with admin access, which see only what it took itself."""


class Symmetry:
    """Recognizes situations of one :class:`SearchState`."""

    def __init__(self, state: SearchState) -> None:
        self._state = state
        self._kinds: list[int] | None = None
        self._views: dict[tuple[int, int], _View] = {}

    @property
    def kinds(self) -> list[int]:
        """A number per device, the same for equal ones."""
        if self._kinds is None:
            self._kinds = self._interchangeable()
        return self._kinds

    def key(self, c: int, r: int, chosen: int | None, slot: int, start: int) -> Any:
        """Everything the rest of the search depends on, with interchangeable devices counted."""
        state = self._state
        view = self._view(c, r)
        shared = 0
        shares: list[Any] = []
        for at, used in state.share_states.items():
            if view.relevant >> at & 1:
                shared |= 1 << at
                shares.append((self.kinds[at], used, at >= start))
        shares.sort()
        free = view.relevant & ~state.taken & ~shared
        after = -1 << start
        census: list[int] = [free & view.singles, free & view.singles & after]
        for group in view.groups:
            members = group & free
            census += (members.bit_count(), (members & after).bit_count())
        if view.admin:
            own = view.relevant & state.taken_by[c]
            census += (own & view.singles, own & view.singles & after)
            for group in view.groups:
                members = group & own
                census += (members.bit_count(), (members & after).bit_count())
        counters = tuple(
            (pool, tuple(sorted((k, v) for k, v in used.items() if v)))
            for pool, used in sorted(state.consumed.items())
        )
        constraints = tuple(constraint.state() for constraint in state.constraints[c])
        position = (c, r, chosen, slot, len(state.picks[c]))
        return position, tuple(census), tuple(shares), counters, constraints

    def of(self, c: int, at: int) -> Any:
        """Devices with the same likeness can stand in for each other in claim *c* and later."""
        state = self._state
        taken, own = state.taken >> at & 1, state.taken_by[c] >> at & 1
        return self.kinds[at], taken, own, state.share_states.get(at)

    def _view(self, c: int, r: int) -> _View:
        found = self._views.get((c, r))
        if found is None:
            found = self._views[c, r] = self._build_view(c, r)
        return found

    def _build_view(self, c: int, r: int) -> _View:
        """Devices that this or a later request could still take."""
        state = self._state
        wanted: set[int] = set()
        admin = False
        for plan_at, plan in enumerate(state.plans):
            for request_at, request in enumerate(plan.requests):
                if (plan_at, request_at) < (c, r):
                    continue
                for variant in request.variants:
                    wanted.update(state.all.get(variant.number) or state.promising(variant))
                    admin = admin or (plan_at == c and variant.admin)
        members: dict[int, list[int]] = {}
        for at in sorted(wanted):
            members.setdefault(self.kinds[at], []).append(at)
        singles = mask_of([found[0] for found in members.values() if len(found) == 1])
        groups = tuple(mask_of(found) for found in members.values() if len(found) > 1)
        return _View(mask_of(sorted(wanted)), singles, groups, admin)

    def _interchangeable(self) -> list[int]:
        """Number the devices so that equal ones have the same number."""
        state = self._state
        variants = [state.promising(v) for v in state.variants()]
        constraints = [k for constraints in state.constraints for k in constraints]
        ordered = {at for devices in state.all.values() for at in devices}
        numbers: dict[Any, int] = {}
        kinds: list[int] = []
        for at, candidate in enumerate(state.candidates):
            counters = state.counters[at]
            alike: tuple[Any, ...] = (
                at if at in ordered else None,  # a request for all devices names this very one
                state.exclusive >> at & 1,
                self._share_kind(candidate),
                tuple(
                    0 if at not in good else 1 + isinstance(good[at], EvaluationFailure)
                    for good in variants
                ),
                tuple(k.values(candidate.device, candidate.id.driver) for k in constraints),
                (candidate.pool.id, tuple(sorted(counters.items()))) if counters else None,
            )
            kinds.append(numbers.setdefault(alike, len(numbers)))
        return kinds

    def _share_kind(self, candidate: Candidate) -> Any:
        """What of a shareable device decides how much of it is left."""
        if not candidate.shareable:
            return None
        in_use = self._state.node_devices.in_use
        capacities = sorted(
            (key, repr(capacity)) for key, capacity in candidate.device.capacity.items()
        )
        used = tuple(sorted(in_use.capacity.get(candidate.id, {}).items()))
        return tuple(capacities), used, candidate.id in in_use.shared
