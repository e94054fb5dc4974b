"""Proofs that a branch of the search cannot succeed, by counting instead of trying.

Every proof is a relaxation: it only looks at what is certainly necessary, so a branch that is ruled
out has no solution, and the first solution of the whole search stays the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Final

from drakit.scheduler.allocator.constraints import DistinctAttribute, MatchAttribute
from drakit.scheduler.allocator.search_state import Attempt, bits, mask_of
from drakit.scheduler.requests import Suitable, Variant

_MOST_JOINT: Final = 8
"""Requests of which every combination is checked for having enough devices together."""


@dataclass(frozen=True, slots=True)
class _Demand:
    """What a request needs at least, whichever of its alternatives is taken."""

    exclusive: int
    shareable: int
    devices: int


class Bounds:
    """What is left for the requests still to come, in one :class:`Attempt`."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._joint: dict[tuple[int, int], tuple[_Demand, ...]] = {}
        self._plain: dict[tuple[int, int], bool] = {}

    def hopeless(self) -> bool:
        """Whether the claims cannot be met even before anything is taken."""
        return self.starved(0, 0)

    def starved(self, c: int, r: int) -> bool:
        """Whether request *r* of claim *c*, or a later one, has too few devices left."""
        attempt = self._attempt
        for claim_at in range(c, len(attempt.plans)):
            first = r if claim_at == c else 0
            for request in attempt.plans[claim_at].requests[first:]:
                if not any(
                    self.enough(claim_at, v, 0, attempt.needed[v.number]) for v in request.variants
                ):
                    return True
        return self._crowded(c, r)

    def enough(self, c: int, variant: Variant, start: int, wanted: int) -> bool:
        """Whether *wanted* devices from *start* on could be there for the request."""
        attempt = self._attempt
        if variant.number in attempt.all:
            return self._all_there(c, variant)
        free = attempt.open_mask(c, variant) & (-1 << start)
        if free.bit_count() < wanted:
            return False
        if self._is_plain(c, variant):
            return True
        return self._enough_of(c, variant, free, wanted)

    def _all_there(self, c: int, variant: Variant) -> bool:
        """Whether every device of a request for all of them can be had now."""
        attempt = self._attempt
        devices = attempt.all[variant.number]
        promising = attempt.promising(variant)
        for at in devices:
            verdict = promising.get(at)
            if not isinstance(verdict, Suitable) or attempt.lacks(at, verdict):
                return False
            if not attempt.candidates[at].shareable and attempt.busy(c, variant, at):
                return False
        return bool(devices)

    def _is_plain(self, c: int, variant: Variant) -> bool:
        """Whether a device that is not taken can always be had by this request."""
        key = (c, variant.number)
        found = self._plain.get(key)
        if found is None:
            attempt = self._attempt
            mask = mask_of(iter(attempt.promising(variant)))
            found = not mask & (attempt.shareable | attempt.counting) and not any(
                k.covers(variant.name) for k in attempt.constraints[c]
            )
            self._plain[key] = found
        return found

    def _enough_of(self, c: int, variant: Variant, free: int, wanted: int) -> bool:
        attempt = self._attempt
        promising = attempt.promising(variant)
        constraints = [k for k in attempt.constraints[c] if k.covers(variant.name)]
        match = [k for k in constraints if isinstance(k, MatchAttribute)]
        distinct = [k for k in constraints if isinstance(k, DistinctAttribute)]
        groups: dict[Any, tuple[int, list[set[Any]]]] = {}
        for at in bits(free):
            candidate = attempt.candidates[at]
            device, driver = candidate.device, candidate.id.driver
            verdict = promising[at]
            if isinstance(verdict, Suitable) and attempt.lacks(at, verdict):
                continue
            if not all(k.admits(device, driver) for k in constraints):
                continue
            for key in product(*(k.values(device, driver) for k in match)):
                count, seen = groups.get(key, (0, [set() for _ in distinct]))
                for values, k in zip(seen, distinct, strict=True):
                    values |= k.values(device, driver)
                groups[key] = (count + 1, seen)
                if count + 1 >= wanted and self._different_enough(seen, wanted):
                    return True
        return wanted <= 0

    def _different_enough(self, seen: list[set[Any]], wanted: int) -> bool:
        # Until 1.36 the constraint forgets devices of its own request, so values may repeat.
        return self._attempt.version.distinct_by_request or all(
            len(values) >= wanted for values in seen
        )

    def _crowded(self, c: int, r: int) -> bool:
        """Whether some of the requests to come together need more devices than are left (Hall)."""
        taken = self._attempt.taken | self._attempt.exclusive
        return any(
            (demand.exclusive & ~taken).bit_count() + demand.shareable < demand.devices
            for demand in self._combined(c, r)
        )

    def _combined(self, c: int, r: int) -> tuple[_Demand, ...]:
        found = self._joint.get((c, r))
        if found is None:
            found = self._joint[c, r] = tuple(self._combine(self._demands(c, r)))
        return found

    def _combine(self, demands: list[_Demand]) -> list[_Demand]:
        sizes = range(2, len(demands) + 1)
        if len(demands) > _MOST_JOINT:
            sizes = range(len(demands), len(demands) + 1)
        joint = []
        for size in sizes:
            for chosen in combinations(demands, size):
                union = 0
                for demand in chosen:
                    union |= demand.exclusive
                shared = sum(d.shareable for d in chosen)
                joint.append(_Demand(union, shared, sum(d.devices for d in chosen)))
        return joint

    def _demands(self, c: int, r: int) -> list[_Demand]:
        """The requests from here on that take devices from each other."""
        attempt = self._attempt
        found = []
        for claim_at in range(c, len(attempt.plans)):
            first = r if claim_at == c else 0
            for request in attempt.plans[claim_at].requests[first:]:
                if any(v.admin for v in request.variants):
                    continue
                mask = 0
                for v in request.variants:
                    mask |= mask_of(attempt.all.get(v.number) or iter(attempt.promising(v)))
                # A shareable device serves many requests, but each of them once.
                shared = (mask & attempt.shareable).bit_count()
                least = min(attempt.needed[v.number] for v in request.variants)
                found.append(_Demand(mask & ~attempt.shareable, shared, least))
        return found
