"""Comparison of the desired content of a ResourceSlice with the stored one."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec

from drakit.core.objects import Device, Taint
from drakit.core.quantity import Quantity, QuantityError
from drakit.kit.slices.layout import Content


def same_content(desired: Content, stored: Content) -> bool:
    """Whether a stored slice has the desired content; amounts and times are compared by value."""
    if desired == stored:
        return True
    if len(desired.devices) != len(stored.devices):
        return False
    return _normal(desired, stored) == _normal(stored, stored)


def _normal(content: Content, stored: Content) -> Content:
    """*content* with unset taint times taken from *stored*, and normalized times and amounts."""
    devices = []
    for device, other in zip(content.devices, stored.devices, strict=True):
        timed = keep_taint_times(device, other)
        devices.append(
            msgspec.structs.replace(
                timed,
                taints=tuple(
                    msgspec.structs.replace(taint, time_added=_whole_seconds(taint.time_added))
                    for taint in timed.taints
                ),
                node_allocatable_resources=_by_value(device.node_allocatable_resources),
            )
        )
    return Content(devices=tuple(devices), shared_counters=content.shared_counters)


def _whole_seconds(text: str | None) -> str | None:
    """A time as the API stores it, in whole seconds."""
    try:
        moment = msgspec.convert(text, dt.datetime, strict=False) if text else None
    except msgspec.ValidationError:
        return text
    return str(int(moment.timestamp())) if moment is not None else None


def _by_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _by_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_by_value(item) for item in value]
    if isinstance(value, str | int) and not isinstance(value, bool):
        try:
            return Quantity(value)
        except QuantityError:
            return value
    return value


def keep_taint_times(device: Device, stored: Device) -> Device:
    """*device* with the stored ``timeAdded`` for every existing taint that sets none.

    Otherwise every update of the slice would restart ``tolerationSeconds``.
    """
    if device.name != stored.name or not device.taints:
        return device
    known = {(taint.key, taint.value, taint.effect): taint.time_added for taint in stored.taints}

    def timed(taint: Taint) -> Taint:
        if taint.time_added is not None:
            return taint
        time = known.get((taint.key, taint.value, taint.effect))
        return msgspec.structs.replace(taint, time_added=time) if time is not None else taint

    return msgspec.structs.replace(device, taints=tuple(map(timed, device.taints)))


def with_taint_times(content: Content, stored: Content) -> Content:
    """*content* with the stored times of all taints that set none."""
    known = {device.name: device for device in stored.devices}
    devices = tuple(keep_taint_times(device, known.get(device.name, device)) for device in content.devices)
    return Content(devices=devices, shared_counters=content.shared_counters)
