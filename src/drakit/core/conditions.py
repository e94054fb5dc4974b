"""What a claim's status says of its devices: the conditions that drivers write (KEP-4817, KEP-5007)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drakit.core.objects import DeviceRequestAllocationResult, ResourceClaim


def true_conditions(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> dict[str, str]:
    """The conditions that are true of one allocated device, each with its message.

    Tolerant: what a foreign driver wrote in another form is not seen.
    """
    wanted = (result.driver, result.pool, result.device, result.share_id or "")
    for device in claim.status.devices:
        if isinstance(device, Mapping) and _key(device) == wanted:
            conditions = [each for each in _list(device, "conditions") if isinstance(each, Mapping)]
            return {
                str(each.get("type")): str(each.get("message") or "")
                for each in conditions
                if each.get("status") == "True"
            }
    return {}


def _key(device: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(device.get(key) or "") for key in ("driver", "pool", "device", "shareID"))


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    return value if isinstance(value, list) else []
