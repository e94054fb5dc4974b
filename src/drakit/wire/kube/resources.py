"""Kubernetes resources that drakit uses, and objects as the API server sent them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from drakit.core import objects, pods
from drakit.core.quantity import QuantityError
from drakit.wire.kube import decoding
from drakit.wire.kube.access.endpoint import quote
from drakit.wire.kube.errors import DecodeError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A Kubernetes resource: its API path and the Python type of its objects."""

    group: str
    version: str
    plural: str
    kind: str
    type: type[T]
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """The URL path of a collection, an object or a subresource."""
        place = ["namespaces", quote(namespace)] if self.namespaced and namespace else []
        root = "apis" if self.group else "api"
        parts = ["", root, self.api_version, *place, self.plural, quote(name), subresource]
        return "/".join(parts).rstrip("/")

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


_DRA: Final = "resource.k8s.io"
SLICES: Final = Resource(
    _DRA, "v1", "resourceslices", "ResourceSlice", objects.ResourceSlice, namespaced=False
)
CLAIMS: Final = Resource(_DRA, "v1", "resourceclaims", "ResourceClaim", objects.ResourceClaim)
CLAIM_TEMPLATES: Final = Resource(
    _DRA, "v1", "resourceclaimtemplates", "ResourceClaimTemplate", objects.ResourceClaimTemplate
)
CLASSES: Final = Resource(_DRA, "v1", "deviceclasses", "DeviceClass", objects.DeviceClass, namespaced=False)
TAINT_RULES: Final = Resource(
    _DRA, "v1", "devicetaintrules", "DeviceTaintRule", objects.DeviceTaintRule, namespaced=False
)
NODES: Final = Resource("", "v1", "nodes", "Node", pods.Node, namespaced=False)
PODS: Final[Resource[dict[str, Any]]] = Resource("", "v1", "pods", "Pod", dict)
EVENTS: Final[Resource[dict[str, Any]]] = Resource("", "v1", "events", "Event", dict)
ACCESS_REVIEWS: Final[Resource[dict[str, Any]]] = Resource(
    "authorization.k8s.io",
    "v1",
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    dict,
    namespaced=False,
)


class Object(Generic[T]):
    """An object as the server sent it.

    ``raw`` is the whole document, including fields that our types do not have; do not modify it.
    ``typed`` is decoded on first use, so that one malformed object does not fail a whole list.
    """

    __slots__ = ("_typed", "raw", "resource")

    def __init__(self, resource: Resource[T], raw: dict[str, Any]) -> None:
        self.resource = resource
        self.raw = raw
        self._typed: T | None = None

    @property
    def typed(self) -> T:
        """``raw`` decoded; raises :class:`DecodeError`, which names the object and the field."""
        if self._typed is None:
            if decoding.is_cut(self.raw):
                raise DecodeError(f"{self}: nested deeper than {decoding.DEEPEST} levels")
            try:
                self._typed = objects.from_builtins(self.raw, self.resource.type)
            except (msgspec.ValidationError, QuantityError, RecursionError) as error:
                raise DecodeError(f"{self}: {error}") from error
        return self._typed

    def _meta(self, field: str) -> str:
        metadata = self.raw.get("metadata")
        value = metadata.get(field) if isinstance(metadata, dict) else None
        return value if isinstance(value, str) else ""

    @property
    def name(self) -> str:
        """``metadata.name``."""
        return self._meta("name")

    @property
    def namespace(self) -> str:
        """``metadata.namespace``; empty for cluster-wide objects."""
        return self._meta("namespace")

    @property
    def uid(self) -> str:
        """``metadata.uid``."""
        return self._meta("uid")

    @property
    def resource_version(self) -> str:
        """``metadata.resourceVersion``."""
        return self._meta("resourceVersion")

    @property
    def deleting(self) -> bool:
        """Whether the object is being deleted and only finalizers keep it."""
        return bool(self._meta("deletionTimestamp"))

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    def __str__(self) -> str:
        place = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.resource.kind} {place}"

    def __repr__(self) -> str:
        return f"<{self} uid={self.uid} rv={self.resource_version}>"
