"""State of a search on one node: the devices, shares, counters and constraints taken so far.

Sets of devices are integers with one bit per candidate, because the search computes the free devices
thousands of times per second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from drakit.core.quantity import Quantity
from drakit.scheduler.allocator.capacity import remaining_shortage
from drakit.scheduler.allocator.constraints import Constraint, RequestName, build_constraint
from drakit.scheduler.allocator.node_devices import (
    Candidate,
    EvaluationFailure,
    NodeDevices,
    Suitable,
    counters_of,
)
from drakit.scheduler.errors import FatalError
from drakit.scheduler.pools import DeviceId, PoolId
from drakit.scheduler.requests import MAX_ALLOCATION_RESULTS, ClaimPlan, RequestPlan, Variant, claim_name


@dataclass(frozen=True, slots=True)
class Pick:
    """A device chosen for a request."""

    request: RequestName
    device: DeviceId
    admin: bool
    shared: bool
    consumed: dict[str, Quantity]
    candidate: int
    variant: Variant


def bits(mask: int) -> Iterator[int]:
    """The positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(positions: Iterable[int]) -> int:
    """The set of these positions."""
    mask = 0
    for at in positions:
        mask |= 1 << at
    return mask


class SearchState:
    """The state of a search; ``undo_take`` undoes the last ``take``."""

    def __init__(self, node_devices: NodeDevices, plans: tuple[ClaimPlan, ...]) -> None:
        self.node_devices = node_devices
        self.plans = plans
        self.release = node_devices.release
        self._partitionable = self.release.enables("DRAPartitionableDevices")
        self.candidates = node_devices.candidates
        self.needed: dict[int, int] = {}
        self.all: dict[int, tuple[int, ...]] = {}
        self.constraints: list[list[Constraint]] = [self._set_up(plan) for plan in plans]
        self.exclusive = mask_of(
            at for at, c in enumerate(self.candidates) if c.id in node_devices.in_use.exclusive
        )
        self.shareable = mask_of(at for at, c in enumerate(self.candidates) if c.shareable)
        self.counters = [counters_of(c.device) for c in self.candidates]
        self.counting = mask_of(at for at, used in enumerate(self.counters) if used)
        self._available: dict[PoolId, dict[tuple[str, str], int]] = {}
        self._promising: dict[int, dict[int, Suitable | EvaluationFailure]] = {}
        self._promising_mask: dict[int, int] = {}
        self.reset()

    def reset(self) -> None:
        """Start again with nothing taken."""
        self.taken = 0
        self.taken_by = [0] * len(self.plans)
        self.shares: dict[int, list[dict[str, Quantity]]] = {}
        self.share_states: dict[int, tuple[tuple[str, int], ...]] = {}
        self.consumed: dict[PoolId, dict[tuple[str, str], int]] = {}
        self.picks: list[list[Pick]] = [[] for _ in self.plans]
        self._counted: list[bool] = []

    def _set_up(self, plan: ClaimPlan) -> list[Constraint]:
        where = claim_name(plan.claim)
        least = 0
        for request in plan.requests:
            fewest = min([self._count(variant) for variant in request.variants], default=0)
            if fewest > MAX_ALLOCATION_RESULTS - least:
                limit, name = MAX_ALLOCATION_RESULTS, request.request.name
                before = f", other requests {least}" if least else ""
                raise FatalError(
                    f"claim {where}, request {name}: adding {fewest} devices exceeds the claim "
                    f"limit of {limit}, with {least} already accounted for",
                    f"request {name} of claim {where} requests {fewest} devices{before}; "
                    f"a claim can have at most {limit}",
                )
            least += fewest
        return [
            build_constraint(where, index, constraint, self.release)
            for index, constraint in enumerate(plan.claim.spec.devices.constraints)
        ]

    def _count(self, variant: Variant) -> int:
        if variant.wants_all:
            devices = self.node_devices.all_devices(variant)
            self.all[variant.number] = devices
            self.needed[variant.number] = len(devices)
        else:
            self.needed[variant.number] = variant.spec.count
        return self.needed[variant.number]

    def variants(self) -> Iterator[Variant]:
        """All requests and alternatives of the pod."""
        for _, request in self.remaining(0, 0):
            yield from request.variants

    def remaining(self, c: int, r: int) -> Iterator[tuple[int, RequestPlan]]:
        """The requests from request *r* of claim *c* on, with the position of their claim."""
        for at in range(c, len(self.plans)):
            for request in self.plans[at].requests[r if at == c else 0 :]:
                yield at, request

    def promising(self, variant: Variant) -> dict[int, Suitable | EvaluationFailure]:
        """The devices that qualify, and those whose evaluation fails."""
        found = self._promising.get(variant.number)
        if found is None:
            found = {}
            for at in range(len(self.candidates)):
                verdict = self.node_devices.verdict(variant, at)
                if isinstance(verdict, Suitable | EvaluationFailure):
                    found[at] = verdict
            self._promising[variant.number] = found
            self._promising_mask[variant.number] = mask_of(found)
        return found

    def open_mask(self, c: int, variant: Variant) -> int:
        """Promising devices that are free."""
        mask = self._promising_mask.get(variant.number)
        if mask is None:
            self.promising(variant)
            mask = self._promising_mask[variant.number]
        if variant.admin:
            return mask & ~self.taken_by[c]
        return mask & ~self.taken & ~self.exclusive

    def busy(self, c: int, variant: Variant, at: int) -> bool:
        """Whether the device is taken from the point of view of the request."""
        taken = self.taken_by[c] if variant.admin else self.taken | self.exclusive
        return bool(taken >> at & 1)

    def take(self, c: int, variant: Variant, at: int, *, insist: bool) -> bool:
        """Take a device if counters, constraints and capacity allow it.

        With *insist* a violated constraint is an error, because the request is for all devices.
        """
        candidate = self.candidates[at]
        if not (candidate.shareable and variant.admin) and self.busy(c, variant, at):
            return False
        verdict = self.promising(variant).get(at)
        counted = bool(self.counters[at]) and not (candidate.shareable and self._is_shared(at))
        if counted and not (self._partitionable and self._reserve(candidate, self.counters[at])):
            return False
        if not isinstance(verdict, Suitable):
            # A device of an "All" request that is tainted or has no capacity left.
            self._release(candidate, counted)
            return False
        if not self._constrain(c, variant, at, counted=counted, insist=insist):
            return False
        if candidate.shareable and self._short(at, verdict.taken):
            for constraint in reversed(self.constraints[c]):
                constraint.remove(variant.name)
            self._release(candidate, counted)
            return False
        consumed: dict[str, Quantity] = {}
        if candidate.shareable:
            consumed = verdict.taken
            self.shares.setdefault(at, []).append(consumed)
            self._note_shares(at)
        else:
            self.taken_by[c] |= 1 << at
            self.taken |= 1 << at
        pick = Pick(variant.name, candidate.id, variant.admin, candidate.shareable, consumed, at, variant)
        self.picks[c].append(pick)
        self._counted.append(counted)
        return True

    def _constrain(self, c: int, variant: Variant, at: int, *, counted: bool, insist: bool) -> bool:
        candidate = self.candidates[at]
        for done, constraint in enumerate(self.constraints[c]):
            if constraint.add(variant.name, candidate.device, candidate.id.driver):
                continue
            for earlier in reversed(self.constraints[c][:done]):
                earlier.remove(variant.name)
            self._release(candidate, counted)
            if insist:
                raise FatalError(
                    f"claim {claim_name(variant.claim)}, request {variant.name.sub or variant.name}"
                    f": cannot add device {candidate.id} because a claim constraint would not be "
                    "satisfied"
                )
            return False
        return True

    def undo_take(self, c: int, at: int) -> None:
        """Undo the last ``take``."""
        pick = self.picks[c].pop()
        if pick.shared:
            self.shares[at].pop()
            self._note_shares(at)
        else:
            self.taken_by[c] &= ~(1 << at)
            # Another claim may have taken it with admin access.
            if not any(mask >> at & 1 for mask in self.taken_by):
                self.taken &= ~(1 << at)
        for constraint in reversed(self.constraints[c]):
            constraint.remove(pick.request)
        self._release(self.candidates[at], self._counted.pop())

    def _note_shares(self, at: int) -> None:
        shares = self.shares[at]
        if not shares:
            del self.shares[at], self.share_states[at]
            return
        used: dict[str, int] = {}
        for share in shares:
            for key, amount in share.items():
                used[key] = used.get(key, 0) + amount.nanos
        self.share_states[at] = tuple(sorted(used.items()))

    def _is_shared(self, at: int) -> bool:
        """Whether a shareable device has a share, so that its counters are already consumed."""
        device = self.candidates[at].id
        in_use = self.node_devices.in_use
        return (
            at in self.shares
            or device in in_use.capacity
            or (self.release.scheduler.share_without_capacity_holds_counters and device in in_use.shared)
        )

    def _short(self, at: int, taken: dict[str, Quantity]) -> bool:
        candidate = self.candidates[at]
        used: dict[str, int] = self.node_devices.in_use.capacity.get(candidate.id, {})
        if at in self.share_states:
            used = dict(used)
            for key, amount in self.share_states[at]:
                used[key] = used.get(key, 0) + amount
        return remaining_shortage(taken, candidate.device.capacity, used) is not None

    def _left(self, candidate: Candidate) -> dict[tuple[str, str], int]:
        available = self._available.get(candidate.pool.id)
        if available is None:
            available = self.node_devices.available_counters(candidate.pool)
            self._available[candidate.pool.id] = available
        return available

    def _reserve(self, candidate: Candidate, wanted: dict[tuple[str, str], int]) -> bool:
        consumed = self.consumed.setdefault(candidate.pool.id, {})
        for key, amount in wanted.items():
            consumed[key] = consumed.get(key, 0) + amount
        # Every counter of the pool is checked, including those that the device does not consume.
        if any(left < consumed.get(key, 0) for key, left in self._left(candidate).items()):
            for key, amount in wanted.items():
                consumed[key] -= amount
            return False
        return True

    def _release(self, candidate: Candidate, counted: bool) -> None:
        if not counted:
            return
        consumed = self.consumed[candidate.pool.id]
        for key, amount in counters_of(candidate.device).items():
            consumed[key] -= amount

    def lacks(self, at: int, verdict: Suitable) -> bool:
        """Whether the free capacity or counters are not sufficient."""
        candidate = self.candidates[at]
        if candidate.shareable and self._short(at, verdict.taken):
            return True
        if not self.counters[at] or (candidate.shareable and self._is_shared(at)):
            return False
        if not self._partitionable:
            return True
        consumed = self.consumed.get(candidate.pool.id, {})
        wanted = self.counters[at]
        return any(
            left < consumed.get(key, 0) + wanted.get(key, 0) for key, left in self._left(candidate).items()
        )
