"""Objects of the fake API server, with a revision counter and a history for watches."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from drakit.core.kubernetes_releases import KubernetesRelease
from drakit.testing.apiserver_admission import copied, drop_disabled, validate_slice

Document = dict[str, Any]
Key = tuple[str, str, str]
"""Plural, namespace, name."""

# Without vowels and similar characters, as apimachinery generates names.
_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BASE: Final = 58
_EPOCH: Final = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class RequestError(Exception):
    """A request that fails with a ``Status``."""

    def __init__(self, code: int, reason: str, message: str, details: Document | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details or {}

    def status(self) -> Document:
        """The ``Status`` document."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A resource that the server serves."""

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True
    has_status: bool = False
    has_generation: bool = False
    """Whether changes of the spec increase ``metadata.generation``."""
    created_without_status: bool = False
    """Whether the status is dropped on creation."""

    @property
    def api_version(self) -> str:
        """``v1`` or ``group/version``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """Plural and group, as in messages."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_DRA: Final = "resource.k8s.io"
_ROWS: Final[tuple[tuple[str, str, str, dict[str, bool]], ...]] = (
    (_DRA, "resourceslices", "ResourceSlice", {"namespaced": False, "has_generation": True}),
    (_DRA, "resourceclaims", "ResourceClaim", {"has_status": True, "created_without_status": True}),
    (_DRA, "resourceclaimtemplates", "ResourceClaimTemplate", {}),
    (_DRA, "deviceclasses", "DeviceClass", {"namespaced": False}),
    (_DRA, "devicetaintrules", "DeviceTaintRule", {"namespaced": False, "has_status": True}),
    ("", "nodes", "Node", {"namespaced": False, "has_status": True}),
    ("", "pods", "Pod", {"has_status": True}),
    ("", "namespaces", "Namespace", {"namespaced": False}),
    ("", "configmaps", "ConfigMap", {}),
)
KINDS: Final[Mapping[str, ResourceKind]] = {
    plural: ResourceKind(group, "v1", plural, name, **flags) for group, plural, name, flags in _ROWS
}
_SELECTABLE: Final = {
    "resourceslices": ("spec.driver", "spec.nodeName", "spec.pool.name"),
    "pods": ("spec.nodeName", "status.phase"),
}


@dataclass(frozen=True, slots=True)
class CommittedChange:
    """A committed change of an object."""

    revision: int
    key: Key
    before: Document | None
    after: Document | None


class ObjectTable:
    """Objects with optimistic concurrency and admission of ResourceSlices."""

    def __init__(self, release: KubernetesRelease, gates: Mapping[str, bool], seed: int) -> None:
        self.release = release
        self.gates = {**release.gates, **gates}
        self.revision = 1
        self.compacted = 0
        self.history: list[CommittedChange] = []
        self._objects: dict[Key, Document] = {}
        self._random = random.Random(seed)  # noqa: S311 - repeatable names and UIDs
        self._applied: dict[tuple[Key, str], Document] = {}

    def get(self, key: Key) -> Document:
        """The object, not to be changed; raises a 404 rejection."""
        found = self._objects.get(key)
        if found is None:
            kind = KINDS[key[0]]
            details = {"name": key[2], "group": kind.group, "kind": kind.plural}
            raise RequestError(404, "NotFound", f'{kind.qualified} "{key[2]}" not found', details)
        return found

    def select(self, plural: str, namespace: str, selector: ObjectSelector) -> list[Document]:
        """The objects that match, by namespace and name."""
        return [
            document
            for key, document in sorted(self._objects.items(), key=lambda item: item[0])
            if key[0] == plural and selector.matches(key, document, namespace)
        ]

    def since(self, revision: int) -> Iterator[CommittedChange]:
        """The changes after *revision*; raises 410 when they are compacted."""
        if revision < self.compacted:
            raise RequestError(410, "Expired", f"too old resource version: {revision} ({self.compacted})")
        return (item for item in self.history if item.revision > revision)

    def create(self, kind: ResourceKind, namespace: str, body: Document, *, keep: bool = True) -> Document:
        """Create an object; *keep* false validates only (dry run)."""
        document = copied(body)
        metadata = document.setdefault("metadata", {})
        if not metadata.get("name"):
            base = metadata.get("generateName") or ""
            if not base:
                raise RequestError(422, "Invalid", "metadata.name: Required value: name or generateName")
            letters = "".join(self._random.choice(_SUFFIX_LETTERS) for _ in range(5))
            metadata["name"] = base[:_LONGEST_BASE] + letters
        key = (kind.plural, namespace, metadata["name"])
        if key in self._objects:
            raise RequestError(
                409, "AlreadyExists", f'{kind.qualified} "{key[2]}" already exists', {"name": key[2]}
            )
        if namespace:
            metadata["namespace"] = namespace
        identity = uuid.UUID(int=self._random.getrandbits(128), version=4)
        metadata |= {"uid": str(identity), "creationTimestamp": self._now()}
        if kind.has_generation:
            metadata["generation"] = 1
        if kind.created_without_status:
            document.pop("status", None)
        document |= {"apiVersion": kind.api_version, "kind": kind.name}
        self._admit(kind, document, None)
        if keep:
            self._commit(key, None, document)
        return document

    def update(self, kind: ResourceKind, key: Key, body: Document, *, subresource: str = "") -> Document:
        """Replace an object, or only its status, under the version it carries."""
        stored = self.get(key)
        document = copied(body)
        metadata = document.setdefault("metadata", {})
        for field in ("uid", "resourceVersion"):
            given = metadata.get(field)
            if given and given != stored["metadata"][field]:
                raise _conflict(kind, key, f"{field} {given} is not the current one")
        if subresource == "status":
            document = copied(stored) | {"status": document.get("status") or {}}
        else:
            fixed = {"uid", "creationTimestamp", "generation", "deletionTimestamp", "namespace"}
            kept = {f: v for f, v in stored["metadata"].items() if f in fixed}
            document["metadata"] = metadata | kept | {"name": key[2]}
            document |= {"apiVersion": kind.api_version, "kind": kind.name}
            if kind.has_status:
                document.pop("status", None)
                document |= {"status": stored["status"]} if "status" in stored else {}
            self._admit(kind, document, stored)
        document["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
        if document == stored:
            return stored  # a write that changes nothing makes no new version
        if kind.has_generation and document.get("spec") != stored.get("spec"):
            document["metadata"]["generation"] = stored["metadata"].get("generation", 1) + 1
        released = stored["metadata"].get("deletionTimestamp") and not document["metadata"].get("finalizers")
        self._commit(key, stored, None if released else document)
        return document

    def apply(
        self, kind: ResourceKind, key: Key, body: Document, manager: str, *, subresource: str, force: bool
    ) -> Document:
        """Server-side apply, reduced to one rule: a manager owns the leaves it last applied."""
        wanted = {k: v for k, v in body.items() if k not in ("apiVersion", "kind")}
        metadata = wanted.get("metadata") or {}
        wanted["metadata"] = {
            k: v for k, v in metadata.items() if k not in ("name", "namespace", "resourceVersion")
        }
        stored = self._objects.get(key)
        if stored is None:
            if subresource:
                self.get(key)
            stored = self.create(kind, key[1], copied(body) | {"metadata": metadata | {"name": key[2]}})
        self._check_owners(kind, key, wanted, manager, force=force)
        previous = self._applied.get((key, manager), {})
        changed: Document = merge_patch(_without(copied(stored), previous, wanted), wanted)
        self._applied[(key, manager)] = copied(wanted)
        return self.update(kind, key, changed, subresource=subresource)

    def _check_owners(
        self, kind: ResourceKind, key: Key, wanted: Document, manager: str, *, force: bool
    ) -> None:
        mine = dict(_leaves(wanted))
        for (other_key, other), applied in self._applied.items():
            if other_key != key or other == manager:
                continue
            conflicting = [path for path, value in _leaves(applied) if path in mine and mine[path] != value]
            if conflicting and not force:
                raise _conflict(kind, key, f'conflict with "{other}": {".".join(conflicting[0])}')
            for path in conflicting:
                _forget(applied, path)

    def delete(self, kind: ResourceKind, key: Key, preconditions: Document | None = None) -> Document:
        """Delete an object, or mark it when finalizers hold it."""
        stored = self.get(key)
        for field in ("uid", "resourceVersion"):
            wanted = (preconditions or {}).get(field)
            if wanted and wanted != stored["metadata"][field]:
                raise _conflict(kind, key, f"Precondition failed: {field} in precondition: {wanted}")
        if stored["metadata"].get("finalizers"):
            if not stored["metadata"].get("deletionTimestamp"):
                marked = copied(stored)
                marked["metadata"]["deletionTimestamp"] = self._now()
                self._commit(key, stored, marked)
                return marked
            return stored
        self._commit(key, stored, None)
        return stored

    def compact(self) -> None:
        """Drop the history: watches from before now get 410."""
        self.compacted = self.revision
        self.history.clear()

    def _now(self) -> str:
        """A clock that ticks a second per commit, so that tests see when something was stamped."""
        return (_EPOCH + dt.timedelta(seconds=self.revision)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _admit(self, kind: ResourceKind, document: Document, stored: Document | None) -> None:
        if kind.plural != "resourceslices":
            return
        spec = document.setdefault("spec", {})
        old = (stored or {}).get("spec")
        drop_disabled(spec, old, self.gates)
        for device in spec.get("devices") or []:
            for taint in device.get("taints") or []:
                taint.setdefault("timeAdded", self._now())
        problems = validate_slice(spec, old, self.release)
        if problems:
            name = document["metadata"]["name"]
            text = "; ".join(f"{field}: {message}" for field, message in problems[:10])
            causes = [{"field": f, "message": m, "reason": "FieldValueInvalid"} for f, m in problems]
            details = {"name": name, "group": _DRA, "kind": "ResourceSlice", "causes": causes}
            message = f'ResourceSlice.resource.k8s.io "{name}" is invalid: {text}'
            raise RequestError(422, "Invalid", message, details)

    def _commit(self, key: Key, before: Document | None, after: Document | None) -> None:
        self.revision += 1
        if after is None:
            self._objects.pop(key, None)
            for owned in [owned for owned in self._applied if owned[0] == key]:
                del self._applied[owned]
        else:
            after["metadata"]["resourceVersion"] = str(self.revision)
            self._objects[key] = after
        self.history.append(CommittedChange(self.revision, key, before, after))


@dataclass(frozen=True, slots=True)
class ObjectSelector:
    """Field and label conditions, all of which must hold."""

    fields: tuple[tuple[str, str, bool], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, plural: str, fields: str, labels: str, release: KubernetesRelease) -> ObjectSelector:
        """Read ``a=b,c!=d``; raises 400 for a field this kind cannot be selected by."""
        known = ("metadata.name", "metadata.namespace", *_SELECTABLE.get(plural, ()))
        conditions = []
        for part in filter(None, fields.split(",")):
            path, sign, value = part.partition("=")
            negated = path.endswith("!")
            path = path.rstrip("!")
            too_new = path == "spec.pool.name" and not release.selects_slices_by_pool
            if not sign or path not in known or too_new:
                raise RequestError(400, "BadRequest", f'field label not supported: "{path}"')
            conditions.append((path, value.removeprefix("="), not negated))
        pairs = (part.partition("=") for part in labels.split(",") if part)
        return cls(tuple(conditions), tuple((key, value.removeprefix("=")) for key, _, value in pairs))

    def matches(self, key: Key, document: Document, namespace: str) -> bool:
        """Whether an object is selected."""
        if namespace and key[1] != namespace:
            return False
        for path, value, wanted in self.fields:
            found: Any = document
            for step in path.split("."):
                found = (found or {}).get(step)
            if ((found or "") == value) != wanted:
                return False
        labels = document["metadata"].get("labels") or {}
        return all(labels.get(name) == value for name, value in self.labels)


def _conflict(kind: ResourceKind, key: Key, why: str) -> RequestError:
    return RequestError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {kind.qualified} "{key[2]}": {why}; '
        "please apply your changes to the latest version and try again",
        {"name": key[2], "group": kind.group, "kind": kind.plural},
    )


def merge_patch(target: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = copied(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif path:
        yield path, value


def _without(document: Document, previous: Document, wanted: Document) -> Document:
    """Take out what the manager applied before and does not any more."""
    now = {path for path, _ in _leaves(wanted)}
    for path, _ in _leaves(previous):
        if path not in now:
            _forget(document, path)
    return document


def _forget(document: Document, path: tuple[str, ...]) -> None:
    *steps, last = path
    for step in steps:
        inner = document.get(step)
        if not isinstance(inner, dict):
            return
        document = inner
    document.pop(last, None)
