"""Manifests from files, directories and dumps, as typed objects that know where they came from."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from drakit.cli.errors import Problem
from drakit.cluster.conversion import current, is_ours, needs_conversion
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


class Manifest:
    """One object and where it was read."""

    __slots__ = ("_source", "kind", "line", "path", "value")

    def __init__(
        self, kind: str, value: Any, source: dict[str, Any] | bytes, path: str, line: int
    ) -> None:
        self.kind = kind
        self.value = value
        self.path = path
        self.line = line
        self._source = source

    @property
    def document(self) -> dict[str, Any]:
        """The object as it was written, with the fields drakit does not know."""
        source = self._source
        if isinstance(source, dict):
            return source
        decoded: dict[str, Any] = msgspec.json.decode(source)
        return decoded


class _Envelope(msgspec.Struct):
    """A JSON list of objects, whose items are looked at one by one: dumps are large."""

    items: list[msgspec.Raw]
    kind: str = ""


class _Head(msgspec.Struct, rename="camel"):
    """What decides how an object is read."""

    kind: str = ""
    api_version: str = ""


@dataclass(slots=True)
class Manifests:
    """Objects by kind, in the order of reading."""

    found: list[Manifest] = field(default_factory=list)

    def of(self, kind: str) -> list[Manifest]:
        """All manifests of a kind."""
        return [m for m in self.found if m.kind == kind]

    def values(self, kind: str) -> tuple[Any, ...]:
        """The typed objects of a kind."""
        return tuple(m.value for m in self.found if m.kind == kind)

    def cluster(self, release: KubernetesRelease, *more: Manifests) -> ClusterSnapshot:
        """A cluster of these and *more* objects; a later object replaces one of the same name."""

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


def read(paths: Iterable[str], namespace: str = "default") -> Manifests:
    """Read files and directories; ``-`` is standard input.

    Raises :class:`Problem` for what cannot be read. Objects of other kinds are left out.
    """
    manifests = Manifests()
    for path in paths:
        for file in _files(path):
            manifests.found += _objects(file, namespace)
    return manifests


def _objects(path: str, namespace: str) -> Iterator[Manifest]:
    data = _bytes(path)
    if path.endswith(".json") or data.lstrip()[:1] in (b"{", b"["):
        quick = _from_list(data, path, namespace)
        if quick is not None:
            yield from quick
            return
        documents = _json_documents(path, data)
    else:
        documents = _yaml_documents(path, data)
    for document, line in documents:
        yield from objects_of(document, path, line, namespace)


def _from_list(data: bytes, path: str, namespace: str) -> list[Manifest] | None:
    """The objects of a JSON List, each decoded straight to its type; None if it is no such list.

    Whatever is out of the ordinary – older versions, workloads, nested lists, wrong fields – goes
    the long way, which also has the words for what is wrong.
    """
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
    except msgspec.MsgspecError:
        return None
    if not envelope.kind.endswith("List"):
        return None
    usual = envelope.kind.removesuffix("List")
    found: list[Manifest] = []
    for item in envelope.items:
        try:
            head = msgspec.json.decode(item, type=_Head)
        except msgspec.MsgspecError:
            head = _Head()
        kind = head.kind or usual
        plain = kind in _KINDS and not needs_conversion(kind, head.api_version)
        if plain and is_ours(kind, head.api_version):
            source = bytes(item)
            value = _named(kind, _decoded(kind, source, path, 1), namespace)
            found.append(Manifest(kind, value, source, path, 1))
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
    """The documents of a file, each with its first line."""
    import yaml  # only when a YAML file is read: it costs time and memory

    loader_class = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader = loader_class(data)
    try:
        while loader.check_node():
            node: Any = loader.get_node()
            yield loader.construct_document(node), node.start_mark.line + 1
    except yaml.YAMLError as error:
        raise Problem(f"{path} is not YAML: {error}", "check the file") from None
    finally:
        loader.dispose()


def _json_documents(path: str, data: bytes) -> Iterator[tuple[Any, int]]:
    try:
        yield msgspec.json.decode(data), 1
        return
    except msgspec.DecodeError as error:
        complaint = str(error)
    import json  # can say where a value ends, so that several in one file are read one by one

    text = data.decode("utf-8", "replace")
    decoder, at = json.JSONDecoder(), 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        try:
            document, end = decoder.raw_decode(text, at)
        except ValueError:
            raise Problem(f"{path} is not JSON: {complaint}", "check the file") from None
        yield document, text.count("\n", 0, at) + 1
        at = end


def _bytes(path: str) -> bytes:
    try:
        if path == "-":
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Problem(f"cannot read {path}: {error.strerror}", "check the path") from None


def objects_of(document: Any, path: str, line: int, namespace: str) -> Iterator[Manifest]:
    """The objects in a parsed document: itself, or the items of a list."""
    if document is None:
        return
    if isinstance(document, list):
        for item in document:
            yield from objects_of(item, path, line, namespace)
        return
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise Problem(
            f"{path}, line {line}: this is no Kubernetes object (it has no kind)",
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
    if kind not in _KINDS or not is_ours(kind, version):
        return
    read_as = document
    if needs_conversion(kind, version):
        read_as = current(document, f"{path}, line {line}")
    # By way of JSON: msgspec decodes typed JSON much faster than it converts dictionaries.
    text = msgspec.json.encode(read_as, enc_hook=str)
    value = _named(kind, _decoded(kind, text, path, line), namespace)
    yield Manifest(kind, value, document, path, line)


def _pod_of(document: dict[str, Any]) -> dict[str, Any]:
    """The pod a workload makes."""
    template = document.get("spec", {}).get("template", {})
    metadata = {
        **template.get("metadata", {}),
        **{k: v for k, v in document.get("metadata", {}).items() if k in ("name", "namespace")},
    }
    return {"kind": "Pod", "metadata": metadata, "spec": template.get("spec", {})}


def _decoded(kind: str, text: bytes, path: str, line: int) -> Any:
    try:
        return from_json(text, _KINDS[kind])
    except (msgspec.MsgspecError, QuantityError, TypeError) as error:
        document = msgspec.json.decode(text)
        metadata = document.get("metadata") if isinstance(document, dict) else None
        name = metadata.get("name", "") if isinstance(metadata, dict) else ""
        raise Problem(
            f"{path}, line {line}: {kind} {name!r} is not valid: {error}",
            "correct the field; the API server would refuse the object, too",
        ) from None


def _named(kind: str, value: Any, namespace: str) -> Any:
    """The object with a namespace, where its kind has one."""
    if kind not in _NAMESPACED or value.metadata.namespace:
        return value
    meta = msgspec.structs.replace(value.metadata, namespace=namespace)
    return msgspec.structs.replace(value, metadata=meta)
