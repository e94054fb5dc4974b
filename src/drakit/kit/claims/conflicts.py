"""What one claim may hold beside all others: the check that does not trust the driver.

No two claims hold one exclusive number, one whole device, or together more of a capacity than there
is (``adminAccess`` exempt). The error names the other claim.

A claim keeps what it has: prepared devices that are already in the checkpoint are not measured against what the
machine offers *today*. A CPU that went offline or was reserved since must not stop the pods that were
there before. Whether somebody else holds the same number or device is checked all the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from drakit.core.cpuset import CpuSet
from drakit.core.quantity import Quantity
from drakit.kit.driver import Offer, PreparedClaim, PreparedClaims, PreparedDevice, RejectedError


class ClaimConflictError(RejectedError):
    """What a claim was to get is somebody else's. Names the other claim."""

    def __init__(self, text: str) -> None:
        super().__init__(text, reason="conflict")


def check_conflicts(
    entry: PreparedClaim, prepared_claims: PreparedClaims, offer: Offer, *, unchanged: bool = False
) -> None:
    """Raise :class:`ClaimConflictError` if *entry* takes what is another claim's, or more than there is.

    *unchanged*: the claim already has exactly these prepared devices, so capacities and limits are not checked.
    """
    _check_numbers(entry, prepared_claims)
    _check_devices(entry, prepared_claims)
    if not unchanged:
        _check_capacities(entry, prepared_claims, offer)
        _check_limits(entry, prepared_claims, offer)


def _check_numbers(entry: PreparedClaim, prepared_claims: PreparedClaims) -> None:
    own: dict[str, CpuSet] = {}
    for prepared in entry.devices:
        for kind, numbers in prepared.exclusive.items() if not prepared.admin_access else ():
            if not own.get(kind, CpuSet()).isdisjoint(numbers):
                raise ClaimConflictError(f"{entry} was to get {kind} {own[kind] & numbers} twice")
            own[kind] = own.get(kind, CpuSet()) | numbers
    for kind, numbers in own.items():
        taken = prepared_claims.exclusive(kind, excluding=entry.uid) & numbers
        if taken:
            other = prepared_claims.holder(kind, taken, excluding=entry.uid)
            raise ClaimConflictError(
                f"{kind} {taken} for {entry} is held by {other}; "
                f"it can be prepared when that claim ends"
            )


def _check_devices(entry: PreparedClaim, prepared_claims: PreparedClaims) -> None:
    for prepared in entry.devices:
        if prepared.admin_access:
            continue
        for other, theirs in prepared_claims.on_device(prepared.pool, prepared.device):
            if other.uid != entry.uid and (prepared.share_id is None or theirs.share_id is None):
                raise ClaimConflictError(
                    f"device {prepared.device} of pool {prepared.pool} for {entry} is held by "
                    f"{other}; it can be prepared when that claim ends"
                )


def _check_capacities(entry: PreparedClaim, prepared_claims: PreparedClaims, offer: Offer) -> None:
    own: dict[tuple[str, str], list[PreparedDevice]] = {}
    for prepared in entry.devices:
        if not prepared.admin_access:
            own.setdefault((prepared.pool, prepared.device), []).append(prepared)
    for (pool, device), limits in _capacities(offer, own).items():
        theirs = [
            g for other, g in prepared_claims.on_device(pool, device) if other.uid != entry.uid
        ]
        for key, limit in limits.items():
            wanted, others = _drawn(own[pool, device], key), _drawn(theirs, key)
            if others + wanted > limit.nanos:
                raise ClaimConflictError(
                    f"{entry} needs {Quantity.from_nanos(wanted)} of {key} on device {device}, but "
                    f"other claims on this node hold {Quantity.from_nanos(others)} of {limit}; "
                    f"it can be prepared when one of them ends"
                )


def _drawn(prepared_devices: list[PreparedDevice], key: str) -> int:
    return sum(
        g.consumed_capacity[key].nanos for g in prepared_devices if key in g.consumed_capacity
    )


def _capacities(
    offer: Offer, wanted: Mapping[tuple[str, str], object]
) -> dict[tuple[str, str], dict[str, Quantity]]:
    """The capacities of those of the *wanted* devices that several claims may share."""
    return {
        (pool.name or "", device.name): {k: c.value for k, c in device.capacity.items()}
        for pool in offer.pools
        for device in pool.devices
        if device.allow_multiple_allocations and (pool.name or "", device.name) in wanted
    }


def _check_limits(entry: PreparedClaim, prepared_claims: PreparedClaims, offer: Offer) -> None:
    wanted: dict[str, int] = {}
    for prepared in entry.devices:
        for key, amount in prepared.amounts.items() if not prepared.admin_access else ():
            wanted[key] = wanted.get(key, 0) + amount
    for key, drawn in wanted.items():
        limit = offer.limits.get(key)
        others = prepared_claims.amount(key, excluding=entry.uid)
        if limit is not None and others + drawn > limit:
            raise ClaimConflictError(
                f"{entry} needs {drawn} of {key}, but of {limit} in all {others} are held by "
                f"other claims on this node; it can be prepared when one of them ends"
            )
