"""Claim cache and checkpoint of the fake kubelet."""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

_DEVICE_KEYS: Final = ("PoolName", "DeviceName", "ShareID", "RequestNames", "CDIDeviceIDs")


@dataclass(frozen=True, slots=True)
class CachedDevice:
    """A device in the driver's response, with the fields of :data:`_DEVICE_KEYS` in the checkpoint."""

    pool: str
    name: str
    share: str | None
    requests: tuple[str, ...]
    cdi: tuple[str, ...]


@dataclass(slots=True)
class ClaimInfo:
    """A claim on this node. ``prepared`` and ``unpreparing`` are in memory only, as in the real kubelet."""

    uid: str
    name: str
    namespace: str
    pods: set[str]
    drivers: dict[str, list[CachedDevice]]
    skipped: frozenset[tuple[str, str]]
    """(driver, operation) pairs that all devices of the driver skip."""
    prepared: bool = False
    unpreparing: bool = False


def cached_device(message: Any) -> CachedDevice:
    """From a ``Device`` message of either version."""
    has_share = "share_id" in message.DESCRIPTOR.fields_by_name and message.HasField("share_id")
    return CachedDevice(
        pool=message.pool_name,
        name=message.device_name,
        share=message.share_id if has_share else None,
        requests=tuple(message.request_names),
        cdi=tuple(message.cdi_device_ids),
    )


def write_checkpoint(path: str, infos: Iterable[ClaimInfo]) -> None:
    """Write the file in the real format, which diagnostic tools read."""
    data = json.dumps(
        {
            "kind": "DRACheckpoint",
            "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
            "ClaimInfoStateList": [_state(info) for info in infos],
        }
    )
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump({"Data": data, "Checksum": zlib.crc32(data.encode())}, file)
    os.replace(f"{path}.new", path)


def read_checkpoint(path: str) -> list[ClaimInfo]:
    """Read it back; a missing file is empty, a damaged one is a ``ValueError``: no kubelet then."""
    try:
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)
    except FileNotFoundError:
        return []
    if zlib.crc32(stored["Data"].encode()) != stored["Checksum"]:
        raise ValueError(f"{path} is damaged; a kubelet does not start with it")
    return [_info(state) for state in json.loads(stored["Data"])["ClaimInfoStateList"]]


def _state(info: ClaimInfo) -> dict[str, Any]:
    return {
        "ClaimUID": info.uid,
        "ClaimName": info.name,
        "Namespace": info.namespace,
        "PodUIDs": {pod: {} for pod in sorted(info.pods)},
        "DriverState": {
            driver: {
                "Devices": [
                    dict(zip(_DEVICE_KEYS, dataclasses.astuple(device), strict=True)) for device in devices
                ],
                "skipNodeOperations": sorted(op for name, op in info.skipped if name == driver),
            }
            for driver, devices in info.drivers.items()
        },
    }


def _info(state: dict[str, Any]) -> ClaimInfo:
    drivers = state["DriverState"]
    return ClaimInfo(
        uid=state["ClaimUID"],
        name=state["ClaimName"],
        namespace=state["Namespace"],
        pods=set(state["PodUIDs"]),
        drivers={
            driver: [
                CachedDevice(pool, name, share, tuple(requests), tuple(cdi))
                for pool, name, share, requests, cdi in (
                    (device[key] for key in _DEVICE_KEYS) for device in each["Devices"]
                )
            ]
            for driver, each in drivers.items()
        },
        skipped=frozenset(
            (driver, operation)
            for driver, each in drivers.items()
            for operation in each["skipNodeOperations"]
        ),
    )
