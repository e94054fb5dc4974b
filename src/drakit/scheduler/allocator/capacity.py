"""Capacity that a request consumes, and whether the device allows it and has enough left.

Only identical keys match: a request for ``dra.example.com/memory`` does not match a device's
``memory``, even if that is the driver's own domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from drakit.core.kubernetes_releases import KubernetesRelease
from drakit.core.objects import Capacity, CapacityRange, CapacityRequirements, RequestPolicy
from drakit.core.quantity import Quantity

_NANO: Final = 10**9
_MILLI: Final = 10**6
_INT64: Final = 2**63 - 1


class CapacityError(Exception):
    """The amount cannot be computed: fails the pod since 1.37, before that only the device."""


@dataclass(frozen=True, slots=True)
class CapacityShortage:
    """Why a capacity excludes a device."""

    reason: str


def consumption(
    requirements: CapacityRequirements | None, capacities: dict[str, Capacity], release: KubernetesRelease
) -> dict[str, Quantity] | CapacityShortage:
    """The amount of every capacity that a request consumes, or why the device does not qualify.

    Raises :class:`CapacityError` if an amount cannot be represented.
    """
    requests = requirements.requests if requirements else {}
    for key in requests:
        if key not in capacities:
            known = ", ".join(sorted(capacities)) or "none"
            return CapacityShortage(f"the device has no capacity {key!r} (it has: {known})")
    taken: dict[str, Quantity] = {}
    for key, capacity in capacities.items():
        amount = _consumed(requests.get(key), capacity, release)
        if amount.nanos < 0 and release.scheduler.capacity_errors_are_fatal:
            raise CapacityError(f'capacity "{key}": capacity value is negative')
        taken[key] = amount
    for key, capacity in capacities.items():
        wrong = _violation(taken[key], capacity.request_policy, release)
        if wrong:
            return CapacityShortage(wrong)
    return taken


def remaining_shortage(
    taken: dict[str, Quantity], capacities: dict[str, Capacity], used: dict[str, int]
) -> CapacityShortage | None:
    """The first capacity of which less than *taken* is free, if any."""
    for key, capacity in capacities.items():
        free = capacity.value.nanos - used.get(key, 0)
        if taken[key].nanos > free:
            left = Quantity.from_nanos(max(free, 0), capacity.value.family)
            return CapacityShortage(f"{left} of {capacity.value} {key} is free, but {taken[key]} is needed")
    return None


def _consumed(requested: Quantity | None, capacity: Capacity, release: KubernetesRelease) -> Quantity:
    policy = capacity.request_policy
    if requested is None:
        return policy.default if policy and policy.default is not None else capacity.value
    if policy is None:
        return requested
    if policy.valid_range is not None and policy.valid_range.min is not None:
        return _rounded(requested, policy.valid_range, release)
    return next((v for v in policy.valid_values if requested <= v), requested)


def _rounded(requested: Quantity, valid: CapacityRange, release: KubernetesRelease) -> Quantity:
    """The smallest amount in the range that is not less than the request."""
    assert valid.min is not None
    if requested < valid.min:
        return valid.min
    if valid.step is None:
        return requested
    family = valid.step.family if release.enables("DRAFractionalCapacityRange") else "binary"
    unit = _unit(valid, release)
    if unit == _MILLI:
        if requested.nanos % _MILLI or abs(requested.nanos) // _MILLI > _INT64:
            raise CapacityError(f"request {requested} is not a representable milli value")
        wanted, low, step = (q.nanos // _MILLI for q in (requested, valid.min, valid.step))
    else:
        wanted, low, step = requested.ceil(), valid.min.ceil(), valid.step.ceil()
    if step == 0:
        raise CapacityError(f"step {valid.step} of the capacity's range is zero")
    value = low + step * -((low - wanted) // step)
    if value > _INT64 and release.scheduler.capacity_errors_are_fatal:
        raise CapacityError(f"rounding request {requested} up to the next step overflows")
    return Quantity.from_nanos(value * unit, family)


def _unit(valid: CapacityRange, release: KubernetesRelease) -> int:
    """Milli-units if the release supports them and all bounds fit, otherwise whole units."""
    if not release.enables("DRAFractionalCapacityRange"):
        return _NANO
    for bound in (valid.min, valid.max, valid.step):
        if bound is not None and (bound.nanos % _MILLI or abs(bound.nanos) // _MILLI > _INT64):
            return _NANO
    return _NANO if valid.step is not None and valid.step.nanos < _MILLI else _MILLI


def _violation(amount: Quantity, policy: RequestPolicy | None, release: KubernetesRelease) -> str | None:
    if policy is None or (policy.default is not None and amount == policy.default):
        return None
    valid = policy.valid_range
    if valid is not None:
        if valid.max is not None and amount > valid.max:
            return f"requested {amount}, but the largest request allowed is {valid.max}"
        if valid.step is None or valid.min is None:
            return None
        if _unit(valid, release) == _MILLI:
            off = (amount.nanos - valid.min.nanos) % valid.step.nanos
        else:
            off = (amount.ceil() - valid.min.ceil()) % max(valid.step.ceil(), 1)
        return (
            f"requested {amount}, which is not {valid.min} plus a multiple of {valid.step}" if off else None
        )
    if policy.valid_values and amount not in policy.valid_values:
        allowed = ", ".join(map(str, policy.valid_values))
        return f"requested {amount}, which is not one of the allowed amounts ({allowed})"
    return None
