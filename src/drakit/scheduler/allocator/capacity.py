"""How much of a device's capacities a request takes, and whether that is allowed and left.

Amounts are nano-units. Only identical keys match: a request for ``dra.example.com/memory`` does
not find a device's ``memory``, even when that is the driver's own domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from drakit.core.objects import Capacity, CapacityRange, CapacityRequirements, RequestPolicy
from drakit.core.quantity import Quantity
from drakit.scheduler.errors import FatalError
from drakit.scheduler.versions import KubernetesVersion

_NANO: Final = 10**9
_MILLI: Final = 10**6
_INT64: Final = 2**63 - 1


class CapacityError(Exception):
    """The request cannot be computed: fatal for the pod since 1.37, a mere miss before."""


@dataclass(frozen=True, slots=True)
class CapacityShortage:
    """Why a capacity rules a device out, for people."""

    key: str
    reason: str
    missing: Quantity | None = None


def consumption(
    requirements: CapacityRequirements | None,
    capacities: dict[str, Capacity],
    version: KubernetesVersion,
) -> dict[str, Quantity] | CapacityShortage:
    """What a request takes of every capacity, or why the device does not qualify.

    Raises :class:`CapacityError` when the amount cannot be represented.
    """
    requests = requirements.requests if requirements else {}
    for key in requests:
        if key not in capacities:
            known = ", ".join(sorted(capacities)) or "none"
            return CapacityShortage(key, f"the device has no capacity {key!r} (it has: {known})")
    taken: dict[str, Quantity] = {}
    for key, capacity in capacities.items():
        amount = _consumed(requests.get(key), capacity, version)
        if amount.nanos < 0 and version.capacity_errors_are_fatal:
            raise CapacityError(f'capacity "{key}": capacity value is negative')
        taken[key] = amount
    for key, capacity in capacities.items():
        wrong = _violation(taken[key], capacity.request_policy, version)
        if wrong:
            return CapacityShortage(key, wrong)
    return taken


def remaining_shortage(
    taken: dict[str, Quantity], capacities: dict[str, Capacity], used: dict[str, int]
) -> CapacityShortage | None:
    """The first capacity of which *used* leaves less than *taken*, if there is one."""
    for key, capacity in capacities.items():
        missing = used.get(key, 0) + taken[key].nanos - capacity.value.nanos
        if missing > 0:
            free = Quantity.from_nanos(
                max(capacity.value.nanos - used.get(key, 0), 0), capacity.value.family
            )
            return CapacityShortage(
                key,
                f"{free} of {capacity.value} {key} is left, {taken[key]} is needed",
                Quantity.from_nanos(missing, capacity.value.family),
            )
    return None


def _consumed(
    requested: Quantity | None, capacity: Capacity, version: KubernetesVersion
) -> Quantity:
    policy = capacity.request_policy
    if requested is None:
        return policy.default if policy and policy.default is not None else capacity.value
    if policy is None:
        return requested
    if policy.valid_range is not None and policy.valid_range.min is not None:
        return _rounded(requested, policy.valid_range, version)
    return next((v for v in policy.valid_values if requested <= v), requested)


def _rounded(requested: Quantity, valid: CapacityRange, version: KubernetesVersion) -> Quantity:
    """The smallest amount of the range that is not below the request."""
    assert valid.min is not None
    if requested < valid.min:
        return valid.min
    if valid.step is None:
        return requested
    family = valid.step.family if version.fractional_range else "binary"
    unit = _unit(valid, version)
    if unit == _MILLI:
        if requested.nanos % _MILLI or abs(requested.nanos) // _MILLI > _INT64:
            raise CapacityError(f"request {requested} is not a representable milli value")
        wanted, low, step = (q.nanos // _MILLI for q in (requested, valid.min, valid.step))
    else:
        wanted, low, step = requested.ceil(), valid.min.ceil(), valid.step.ceil()
    if step == 0:
        raise CapacityError(f"step {valid.step} of the capacity's range is zero")
    value = low + step * -((low - wanted) // step)
    if value > _INT64 and version.capacity_errors_are_fatal:
        raise CapacityError(f"rounding request {requested} up to the next step overflows")
    return Quantity.from_nanos(value * unit, family)


def _unit(valid: CapacityRange, version: KubernetesVersion) -> int:
    """Milli-units when the release knows them and all bounds fit, else whole units."""
    if not version.fractional_range:
        return _NANO
    for bound in (valid.min, valid.max, valid.step):
        if bound is not None and (bound.nanos % _MILLI or abs(bound.nanos) // _MILLI > _INT64):
            return _NANO
    return _NANO if valid.step is not None and valid.step.nanos < _MILLI else _MILLI


def _violation(
    amount: Quantity, policy: RequestPolicy | None, version: KubernetesVersion
) -> str | None:
    if policy is None or (policy.default is not None and amount == policy.default):
        return None
    valid = policy.valid_range
    if valid is not None:
        if valid.max is not None and amount > valid.max:
            return f"{amount} is more than one request may take ({valid.max})"
        if valid.step is None or valid.min is None:
            return None
        if _unit(valid, version) == _MILLI:
            off = (amount.nanos - valid.min.nanos) % valid.step.nanos
        else:
            off = (amount.ceil() - valid.min.ceil()) % max(valid.step.ceil(), 1)
        return f"{amount} is not {valid.min} plus a multiple of {valid.step}" if off else None
    if policy.valid_values and amount not in policy.valid_values:
        allowed = ", ".join(map(str, policy.valid_values))
        return f"{amount} is none of the allowed amounts ({allowed})"
    return None


def fatal(claim: str, request: str, device: str, error: CapacityError) -> FatalError:
    """The error of kube-scheduler for an amount it cannot compute."""
    return FatalError(
        f"claim {claim}, request {request}: checking capacity for device {device}: {error}"
    )
