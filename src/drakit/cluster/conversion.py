"""Conversion of older API versions of ``resource.k8s.io`` to ``v1``.

Dumps of older clusters and manifests of older charts contain ``v1beta1`` and ``v1alpha3``: devices have
their content under ``basic``, and requests have no ``exactly``. ``v1beta2`` is read like ``v1``.
"""

from __future__ import annotations

from typing import Any, Final

from drakit.core.errors import ActionableError

GROUP: Final = "resource.k8s.io"
CURRENT: Final = frozenset({f"{GROUP}/v1", f"{GROUP}/v1beta2"})
_OLDER: Final = frozenset({f"{GROUP}/v1beta1", f"{GROUP}/v1alpha3"})
_CORE_KINDS: Final = frozenset({"Node", "Pod"})

Document = dict[str, Any]


class ClusterError(ActionableError):
    """Manifests or a cluster cannot be read, or an object in them is not valid."""


def is_supported_group(kind: str, api_version: str) -> bool:
    """Whether the kind belongs to Kubernetes itself, not to another API group with the same kind."""
    if not api_version:
        return True
    if kind in _CORE_KINDS:
        return api_version == "v1"
    return api_version.partition("/")[0] == GROUP


def needs_conversion(kind: str, api_version: str) -> bool:
    """Whether the object is of an API version that differs from the current one."""
    return kind not in _CORE_KINDS and bool(api_version) and api_version not in CURRENT


def convert(document: Document, where: str) -> Document:
    """Convert an object to the current version. Raises :class:`ClusterError` for unknown versions."""
    kind, version = document["kind"], document.get("apiVersion", "")
    if version not in _OLDER:
        raise ClusterError(
            f"{where}: {kind} has the unsupported API version {version}",
            f"convert it to {GROUP}/v1 (or v1beta2, v1beta1, v1alpha3)",
        )
    spec = document.get("spec") or {}
    if kind == "ResourceSlice":
        spec = {**spec, "devices": [_device(d) for d in spec.get("devices") or ()]}
    elif kind == "ResourceClaim":
        spec = _claim_spec(spec)
    elif kind == "ResourceClaimTemplate":
        spec = {**spec, "spec": _claim_spec(spec.get("spec") or {})}
    elif kind == "DeviceTaintRule":
        _check_rule(spec, where)
    return {**document, "apiVersion": f"{GROUP}/v1", "spec": spec}


def _device(device: Document) -> Document:
    flat = {**(device.get("basic") or {}), **{k: v for k, v in device.items() if k != "basic"}}
    capacity = flat.get("capacity")
    if isinstance(capacity, dict):  # v1alpha3 has the bare quantity
        flat["capacity"] = {
            key: value if isinstance(value, dict) else {"value": value} for key, value in capacity.items()
        }
    return flat


def _claim_spec(spec: Document) -> Document:
    devices = spec.get("devices") or {}
    requests = [_request(r) for r in devices.get("requests") or ()]
    return {**spec, "devices": {**devices, "requests": requests}}


def _request(request: Document) -> Document:
    if "exactly" in request or request.get("firstAvailable"):
        return request
    exact = {key: value for key, value in request.items() if key not in ("name", "firstAvailable")}
    return {"name": request.get("name", ""), "exactly": exact}


def _check_rule(spec: Document, where: str) -> None:
    selector = spec.get("deviceSelector") or {}
    for field in ("deviceClassName", "selectors"):
        if selector.get(field):
            raise ClusterError(
                f"{where}: the DeviceTaintRule selects by {field}, which later API versions do not have",
                "select by driver, pool and device",
            )
