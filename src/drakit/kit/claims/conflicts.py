"""Conflicts between a claim and all other prepared claims: the check that does not trust the driver.

No two claims hold the same exclusive number or the same whole device, and together they never hold more
of a capacity than there is (``adminAccess`` exempt). A claim keeps what it has: devices that are already
in the checkpoint are not compared with *today's* offer, because a CPU that went offline or was reserved
since must not stop pods that were there before.
"""

from __future__ import annotations

from drakit.core.cpuset import CpuSet
from drakit.core.quantity import Quantity
from drakit.kit.driver import Offer, PreparedClaim, PreparedClaims, PreparedDevice, RejectedError


class ClaimConflictError(RejectedError):
    """A claim was assigned what another claim holds; the text names the other claim."""

    def __init__(self, text: str) -> None:
        super().__init__(text, reason="conflict")


def check_conflicts(
    entry: PreparedClaim, prepared_claims: PreparedClaims, offer: Offer, *, unchanged: bool = False
) -> None:
    """Raise :class:`ClaimConflictError` if *entry* has what another claim holds, or more than there is.

    *unchanged*: the claim already has exactly these devices, so capacities and limits are not checked.
    """
    _check_numbers(entry, prepared_claims)
    _check_devices(entry, prepared_claims)
    if not unchanged:
        _check_capacities(entry, prepared_claims, offer)
        _check_limits(entry, prepared_claims, offer)


def _check_numbers(entry: PreparedClaim, prepared_claims: PreparedClaims) -> None:
    own: dict[str, CpuSet] = {}
    for device in _exclusive_devices(entry):
        for kind, numbers in device.exclusive.items():
            if not own.get(kind, CpuSet()).isdisjoint(numbers):
                raise ClaimConflictError(f"{entry} was assigned {kind} {own[kind] & numbers} twice")
            own[kind] = own.get(kind, CpuSet()) | numbers
    for kind, numbers in own.items():
        taken = prepared_claims.exclusive(kind, excluding=entry.uid) & numbers
        if taken:
            other = prepared_claims.holder(kind, taken, excluding=entry.uid)
            raise ClaimConflictError(
                f"{kind} {taken} for {entry} is held by {other}; it can be prepared when that claim ends"
            )


def _check_devices(entry: PreparedClaim, prepared_claims: PreparedClaims) -> None:
    for device in _exclusive_devices(entry):
        for other, theirs in prepared_claims.on_device(device.pool, device.device):
            if other.uid != entry.uid and (device.share_id is None or theirs.share_id is None):
                raise ClaimConflictError(
                    f"device {device.device} of pool {device.pool} for {entry} is held by "
                    f"{other}; it can be prepared when that claim ends"
                )


def _check_capacities(entry: PreparedClaim, prepared_claims: PreparedClaims, offer: Offer) -> None:
    own: dict[tuple[str, str], list[PreparedDevice]] = {}
    for each in _exclusive_devices(entry):
        own.setdefault((each.pool, each.device), []).append(each)
    shareable = (
        (pool.name, device)
        for pool in offer.pools
        for device in pool.devices
        if device.allow_multiple_allocations and (pool.name, device.name) in own
    )
    for pool, device in shareable:
        users = prepared_claims.on_device(pool, device.name)
        theirs = [each for other, each in users if other.uid != entry.uid]
        for key, capacity in device.capacity.items():
            wanted, others = _consumed(own[pool, device.name], key), _consumed(theirs, key)
            if others + wanted > capacity.value.nanos:
                raise ClaimConflictError(
                    f"{entry} needs {Quantity.from_nanos(wanted)} of {key} on device {device.name}, "
                    f"but other claims on this node hold {Quantity.from_nanos(others)} of "
                    f"{capacity.value}; it can be prepared when one of them ends"
                )


def _consumed(devices: list[PreparedDevice], key: str) -> int:
    return sum(d.consumed_capacity[key].nanos for d in devices if key in d.consumed_capacity)


def _check_limits(entry: PreparedClaim, prepared_claims: PreparedClaims, offer: Offer) -> None:
    wanted: dict[str, int] = {}
    for key, amount in entry.amounts():
        wanted[key] = wanted.get(key, 0) + amount
    for key, amount in wanted.items():
        limit = offer.limits.get(key)
        others = prepared_claims.amount(key, excluding=entry.uid)
        if limit is not None and others + amount > limit:
            raise ClaimConflictError(
                f"{entry} needs {amount} of {key}, but of {limit} in all {others} are held by "
                f"other claims on this node; it can be prepared when one of them ends"
            )


def _exclusive_devices(entry: PreparedClaim) -> list[PreparedDevice]:
    return [device for device in entry.devices if not device.admin_access]
