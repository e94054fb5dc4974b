"""Manifests in files, directories and dumps, as typed objects with their file and line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from drakit.cluster.conversion import ClusterError, convert, is_supported_group, needs_conversion
from drakit.core.kubernetes_releases import KubernetesRelease
from drakit.core.objects import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
    from_json,
)
from drakit.core.pods import Node, Pod
from drakit.core.quantity import QuantityError
from drakit.scheduler.placement import ClusterSnapshot

_KINDS: Final[dict[str, type[Any]]] = {
    "Node": Node,
    "Pod": Pod,
    "ResourceSlice": ResourceSlice,
    "DeviceClass": DeviceClass,
    "DeviceTaintRule": DeviceTaintRule,
    "ResourceClaim": ResourceClaim,
    "ResourceClaimTemplate": ResourceClaimTemplate,
}
_WORKLOADS: Final = {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"}
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_NAMESPACED: Final = {"Pod", "ResourceClaim", "ResourceClaimTemplate"}


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object with the file and line it was read from."""

    kind: str
    value: Any
    path: str
    line: int


class _ObjectList(msgspec.Struct):
    """A JSON list of objects; the items are decoded one by one, because dumps are large."""

    items: list[msgspec.Raw]
    kind: str = ""


class _TypeMeta(msgspec.Struct, rename="camel"):
    """The fields that decide how an object is decoded."""

    kind: str = ""
    api_version: str = ""


@dataclass(slots=True)
class Manifests:
    """Objects in the order of reading."""

    found: list[Manifest] = field(default_factory=list)

    def values(self, kind: str) -> tuple[Any, ...]:
        """Return the typed objects of a kind."""
        return tuple(m.value for m in self.found if m.kind == kind)

    def cluster(self, release: KubernetesRelease, *more: Manifests) -> ClusterSnapshot:
        """Return a cluster of these and *more* objects; later objects replace earlier ones."""

        def unique(kind: str) -> tuple[Any, ...]:
            every = [v for source in (self, *more) for v in source.values(kind)]
            named = {(v.metadata.namespace, v.metadata.name): v for v in every}
            return tuple(named.values())

        return ClusterSnapshot(
            nodes=unique("Node"),
            slices=unique("ResourceSlice"),
            classes=unique("DeviceClass"),
            taint_rules=unique("DeviceTaintRule"),
            claims=unique("ResourceClaim"),
            templates=unique("ResourceClaimTemplate"),
            pods=unique("Pod"),
            release=release,
        )


def read_manifests(paths: Iterable[str], namespace: str = "default") -> Manifests:
    """Read files and directories; ``-`` is standard input. Objects of other kinds are left out.

    *namespace* is that of objects that name none. Raises :class:`ClusterError`.
    """
    files = (file for path in paths for file in _files(path))
    return Manifests([each for file in files for each in _objects(file, namespace)])


def _objects(path: str, namespace: str) -> Iterator[Manifest]:
    data = _bytes(path)
    if path.endswith(".json") or data.lstrip()[:1] in (b"{", b"["):
        listed = _from_list(data, path, namespace)
        if listed is not None:
            yield from listed
            return
        documents = _json_documents(path, data)
    else:
        documents = _yaml_documents(path, data)
    for document, line in documents:
        yield from objects_of(document, path, line, namespace)


def _from_list(data: bytes, path: str, namespace: str) -> list[Manifest] | None:
    """Decode each object of a JSON List directly to its type; None if the data is not a List.

    Older API versions, workloads and nested lists take the slower way through :func:`objects_of`.
    """
    try:
        envelope = msgspec.json.decode(data, type=_ObjectList)
    except msgspec.MsgspecError:
        return None
    if not envelope.kind.endswith("List"):
        return None
    usual = envelope.kind.removesuffix("List")
    found: list[Manifest] = []
    for item in envelope.items:
        try:
            head = msgspec.json.decode(item, type=_TypeMeta)
        except msgspec.MsgspecError:
            head = _TypeMeta()
        kind = head.kind or usual
        plain = kind in _KINDS and not needs_conversion(kind, head.api_version)
        if plain and is_supported_group(kind, head.api_version):
            found.append(_manifest(kind, bytes(item), path, 1, namespace))
            continue
        document = msgspec.json.decode(item)
        if isinstance(document, dict):
            document.setdefault("kind", usual)
        found += objects_of(document, path, 1, namespace)
    return found


def _files(path: str) -> Iterator[str]:
    if path == "-" or not os.path.isdir(path):
        yield path
        return
    for directory, subdirectories, names in os.walk(path):
        subdirectories.sort()
        for name in sorted(names):
            if name.endswith(_SUFFIXES):
                yield os.path.join(directory, name)


def _yaml_documents(path: str, data: bytes) -> Iterator[tuple[Any, int]]:
    """Yield the documents of a file with their first lines."""
    from drakit.core.yaml import YamlError, load_documents  # PyYAML costs time and memory

    try:
        yield from load_documents(data)
    except YamlError as error:
        raise ClusterError(f"{path}: {error}", "correct the file") from None


def _json_documents(path: str, data: bytes) -> Iterator[tuple[Any, int]]:
    try:
        yield msgspec.json.decode(data), 1
        return
    except msgspec.DecodeError as error:
        reason = str(error)
    import json  # reports where a value ends, as several in one file require

    text = data.decode("utf-8", "replace")
    decoder, at = json.JSONDecoder(), 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        try:
            document, end = decoder.raw_decode(text, at)
        except ValueError:
            raise ClusterError(f"{path}: not valid JSON: {reason}", "correct the file") from None
        yield document, text.count("\n", 0, at) + 1
        at = end


def _bytes(path: str) -> bytes:
    try:
        if path == "-":
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ClusterError(f"cannot read {path}: {error.strerror}", "check the path") from None


def objects_of(document: Any, path: str, line: int, namespace: str) -> Iterator[Manifest]:
    """Yield the objects of a parsed document: itself, or the items of a list."""
    if document is None:
        return
    if isinstance(document, list):
        for item in document:
            yield from objects_of(item, path, line, namespace)
        return
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise ClusterError(
            f"{path}, line {line}: not a Kubernetes object (it has no kind)",
            "give files with Kubernetes objects, as `kubectl get -o yaml` writes them",
        )
    kind = document["kind"]
    if kind.endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            if isinstance(item, dict):
                item.setdefault("kind", kind.removesuffix("List"))
            yield from objects_of(item, path, line, namespace)
        return
    if kind in _WORKLOADS:
        document = _pod_of(document)
        kind = "Pod"
    elif kind == "CronJob":
        job = {"metadata": document.get("metadata"), **document["spec"]["jobTemplate"]}
        document, kind = _pod_of(job), "Pod"
    version = document.get("apiVersion")
    version = version if isinstance(version, str) else ""
    if kind not in _KINDS or not is_supported_group(kind, version):
        return
    if needs_conversion(kind, version):
        document = convert(document, f"{path}, line {line}")
    # Through JSON, because msgspec decodes typed JSON much faster than it converts dictionaries.
    yield _manifest(kind, msgspec.json.encode(document, enc_hook=str), path, line, namespace)


def _pod_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return the pod that a workload creates."""
    template = document.get("spec", {}).get("template", {})
    metadata = {
        **template.get("metadata", {}),
        **{k: v for k, v in document.get("metadata", {}).items() if k in ("name", "namespace")},
    }
    return {"kind": "Pod", "metadata": metadata, "spec": template.get("spec", {})}


def _manifest(kind: str, text: bytes, path: str, line: int, namespace: str) -> Manifest:
    try:
        value = from_json(text, _KINDS[kind])
    except (msgspec.MsgspecError, QuantityError, TypeError) as error:
        document = msgspec.json.decode(text)
        metadata = document.get("metadata") if isinstance(document, dict) else None
        name = metadata.get("name", "") if isinstance(metadata, dict) else ""
        raise ClusterError(
            f"{path}, line {line}: {kind} {name!r} is not valid: {error}",
            "correct the field; the API server would also reject the object",
        ) from None
    if kind in _NAMESPACED and not value.metadata.namespace:
        metadata = msgspec.structs.replace(value.metadata, namespace=namespace)
        value = msgspec.structs.replace(value, metadata=metadata)
    return Manifest(kind, value, path, line)
