"""Symmetry reduction: states of a search that differ only in interchangeable devices.

Two devices are of the same kind if no request, constraint, counter or capacity distinguishes them.
The rest of a search depends on how many devices of each kind are free, not on which.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from drakit.scheduler.allocator.node_devices import Candidate, EvaluationFailure
from drakit.scheduler.allocator.search_state import SearchState, mask_of


@dataclass(frozen=True, slots=True)
class _View:
    """The devices that a request or a later one can take."""

    relevant: int
    singles: int
    """Devices without an equivalent one."""
    groups: tuple[int, ...]
    admin: bool
    """Whether the claim has a request with admin access, which checks only its own devices."""


class Symmetry:
    """Keys of equivalent states and devices of one search."""

    def __init__(self, state: SearchState) -> None:
        self._state = state
        self._views: dict[tuple[int, int], _View] = {}

    def key(self, c: int, r: int, chosen: int | None, slot: int, start: int) -> Any:
        """Everything that the rest of the search depends on, with devices counted by kind."""
        state = self._state
        view = self._view(c, r)
        shared = 0
        shares: list[Any] = []
        for at, used in state.share_states.items():
            if view.relevant >> at & 1:
                shared |= 1 << at
                shares.append((self.kinds[at], used, at >= start))
        shares.sort()
        masks = [view.relevant & ~state.taken & ~shared]
        if view.admin:
            masks.append(view.relevant & state.taken_by[c])
        after = -1 << start
        census: list[int] = []
        for mask in masks:
            census += (mask & view.singles, mask & view.singles & after)
            for group in view.groups:
                members = group & mask
                census += (members.bit_count(), (members & after).bit_count())
        counters = tuple(
            (pool, tuple(sorted((k, v) for k, v in used.items() if v)))
            for pool, used in sorted(state.consumed.items())
        )
        constraints = tuple(constraint.state() for constraint in state.constraints[c])
        position = (c, r, chosen, slot, len(state.picks[c]))
        return position, tuple(census), tuple(shares), counters, constraints

    def device_key(self, c: int, at: int) -> Any:
        """The key of a device; devices with the same key are interchangeable from claim *c* on."""
        state = self._state
        taken, own = state.taken >> at & 1, state.taken_by[c] >> at & 1
        return self.kinds[at], taken, own, state.share_states.get(at)

    def _view(self, c: int, r: int) -> _View:
        found = self._views.get((c, r))
        if found is None:
            found = self._views[c, r] = self._build_view(c, r)
        return found

    def _build_view(self, c: int, r: int) -> _View:
        """Find the devices that this or a later request can take."""
        state = self._state
        wanted: set[int] = set()
        admin = False
        for plan_at, request in state.remaining(c, r):
            for variant in request.variants:
                wanted.update(state.all.get(variant.number) or state.promising(variant))
                admin = admin or (plan_at == c and variant.admin)
        members: dict[int, list[int]] = {}
        for at in sorted(wanted):
            members.setdefault(self.kinds[at], []).append(at)
        singles = mask_of([found[0] for found in members.values() if len(found) == 1])
        groups = tuple(mask_of(found) for found in members.values() if len(found) > 1)
        return _View(mask_of(sorted(wanted)), singles, groups, admin)

    @functools.cached_property
    def kinds(self) -> list[int]:
        """The kind of each device, as a number."""
        state = self._state
        variants = [state.promising(v) for v in state.variants()]
        constraints = [k for constraints in state.constraints for k in constraints]
        ordered = {at for devices in state.all.values() for at in devices}
        numbers: dict[Any, int] = {}
        kinds: list[int] = []
        for at, candidate in enumerate(state.candidates):
            counters = state.counters[at]
            properties: tuple[Any, ...] = (
                at if at in ordered else None,  # a request for all devices includes it
                state.exclusive >> at & 1,
                self._share_kind(candidate),
                tuple(
                    0 if at not in good else 1 + isinstance(good[at], EvaluationFailure) for good in variants
                ),
                tuple(k.values(candidate.device, candidate.id.driver) for k in constraints),
                (candidate.pool.id, tuple(sorted(counters.items()))) if counters else None,
            )
            kinds.append(numbers.setdefault(properties, len(numbers)))
        return kinds

    def _share_kind(self, candidate: Candidate) -> Any:
        """Everything on which the free capacity of a shareable device depends."""
        if not candidate.shareable:
            return None
        in_use = self._state.node_devices.in_use
        capacities = sorted((key, repr(capacity)) for key, capacity in candidate.device.capacity.items())
        used = tuple(sorted(in_use.capacity.get(candidate.id, {}).items()))
        return tuple(capacities), used, candidate.id in in_use.shared
