"""Bounds: prove by counting that a branch of the search cannot succeed.

Every bound is a relaxation that checks only necessary conditions. A branch that it excludes has no
solution, so the first solution of the search stays the same.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Final

from drakit.scheduler.allocator.constraints import DistinctAttribute, MatchAttribute
from drakit.scheduler.allocator.node_devices import Suitable
from drakit.scheduler.allocator.search_state import SearchState, bits, mask_of
from drakit.scheduler.requests import Variant

_MAX_JOINT: Final = 8
"""Up to this number of requests, all combinations of requests are checked together."""


@dataclass(frozen=True, slots=True)
class _Demand:
    """The minimum that a request needs with any of its alternatives."""

    exclusive: int
    shareable: int
    devices: int


class Bounds:
    """Bounds for the remaining requests of a search."""

    def __init__(self, state: SearchState) -> None:
        self._state = state
        self._joint: dict[tuple[int, int], tuple[_Demand, ...]] = {}
        self._plain: dict[tuple[int, int], bool] = {}

    def infeasible(self) -> bool:
        """Whether the claims cannot be satisfied with nothing taken."""
        return self.starved(0, 0)

    def starved(self, c: int, r: int) -> bool:
        """Whether too few devices are free for request *r* of claim *c* or a later one."""
        state = self._state
        for claim_at, request in state.remaining(c, r):
            if not any(self.enough(claim_at, v, 0, state.needed[v.number]) for v in request.variants):
                return True
        return self._crowded(c, r)

    def enough(self, c: int, variant: Variant, start: int, wanted: int) -> bool:
        """Whether the request could have *wanted* devices, beginning with candidate *start*."""
        state = self._state
        if variant.number in state.all:
            return self._all_there(c, variant)
        free = state.open_mask(c, variant) & (-1 << start)
        if free.bit_count() < wanted:
            return False
        if self._is_plain(c, variant):
            return True
        return self._enough_of(c, variant, free, wanted)

    def _all_there(self, c: int, variant: Variant) -> bool:
        """Whether every device of a request for all devices is free."""
        state = self._state
        devices = state.all[variant.number]
        promising = state.promising(variant)
        for at in devices:
            verdict = promising.get(at)
            if not isinstance(verdict, Suitable) or state.lacks(at, verdict):
                return False
            if not state.candidates[at].shareable and state.busy(c, variant, at):
                return False
        return bool(devices)

    def _is_plain(self, c: int, variant: Variant) -> bool:
        """Whether the request can have every free device, regardless of other choices."""
        key = (c, variant.number)
        found = self._plain.get(key)
        if found is None:
            state = self._state
            mask = mask_of(state.promising(variant))
            found = not mask & (state.shareable | state.counting) and not any(
                k.covers(variant.name) for k in state.constraints[c]
            )
            self._plain[key] = found
        return found

    def _enough_of(self, c: int, variant: Variant, free: int, wanted: int) -> bool:
        state = self._state
        promising = state.promising(variant)
        constraints = [k for k in state.constraints[c] if k.covers(variant.name)]
        match = [k for k in constraints if isinstance(k, MatchAttribute)]
        distinct = [k for k in constraints if isinstance(k, DistinctAttribute)]
        groups: dict[Any, tuple[int, list[set[Any]]]] = {}
        for at in bits(free):
            candidate = state.candidates[at]
            device, driver = candidate.device, candidate.id.driver
            verdict = promising[at]
            if isinstance(verdict, Suitable) and state.lacks(at, verdict):
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
        # Until 1.36 the constraint ignores devices of the same request, so values may repeat.
        return self._state.release.scheduler.distinct_by_request or all(
            len(values) >= wanted for values in seen
        )

    def _crowded(self, c: int, r: int) -> bool:
        """Whether some remaining requests together need more devices than are free (Hall)."""
        taken = self._state.taken | self._state.exclusive
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
        if len(demands) > _MAX_JOINT:
            sizes = range(len(demands), len(demands) + 1)
        joint = []
        for size in sizes:
            for chosen in combinations(demands, size):
                union = functools.reduce(operator.or_, (demand.exclusive for demand in chosen))
                shared = sum(d.shareable for d in chosen)
                joint.append(_Demand(union, shared, sum(d.devices for d in chosen)))
        return joint

    def _demands(self, c: int, r: int) -> list[_Demand]:
        """The remaining requests that compete for devices."""
        state = self._state
        found = []
        for _, request in state.remaining(c, r):
            if any(v.admin for v in request.variants):
                continue
            mask = 0
            for v in request.variants:
                mask |= mask_of(state.all.get(v.number) or state.promising(v))
            # A shareable device can serve many requests, but each only once.
            shared = (mask & state.shareable).bit_count()
            least = min(state.needed[v.number] for v in request.variants)
            found.append(_Demand(mask & ~state.shareable, shared, least))
        return found
