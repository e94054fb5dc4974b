"""Device metadata files (KEP-5304): the attributes of a claim's devices, for the workload.

One file per claim and request below the plugin's data directory, mounted read-only into the containers
of that request at a path with claim, request and driver. A file is a stream of JSON objects, the same
content once per API version, newest first; a reader takes the first version it knows.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from drakit.core import atomicfile
from drakit.core.log import get_logger
from drakit.core.objects import to_builtins
from drakit.kit.driver import Mount, PreparedClaim, PreparedDevice, RejectedError

DIRECTORY: Final = "dra-device-metadata"
GROUP: Final = "metadata.resource.k8s.io"
VERSIONS: Final = ("v1beta1", "v1alpha1")
CONTAINER_ROOT: Final = "/var/run/kubernetes.io/dra-device-attributes"
MOST_ATTRIBUTES: Final = 32
_FILE: Final = "metadata.json"
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""A DNS label, required by the API server for the names of requests and of claims in pods."""
_SUBDOMAIN: Final = re.compile(rf"(?=.{{1,253}}\Z){_LABEL.pattern}(\.{_LABEL.pattern})*")
log = get_logger(__name__)


class MetadataFiles:
    """The metadata files of one driver, derived from the checkpoint and rebuilt like CDI specs."""

    def __init__(self, plugin_dir: str, driver: str) -> None:
        self._root = os.path.join(plugin_dir, DIRECTORY)
        self._driver = driver

    def write(self, entry: PreparedClaim) -> dict[str, Mount]:
        """Write the files of a claim where they differ; returns the mount for each base request.

        A changed file is replaced with the next generation: a running container keeps the one it was
        started with. Names become parts of paths, on the host and in the container: raises
        :class:`RejectedError` for a name that the API server would not accept.
        """
        if not _has_valid_names(entry):
            raise RejectedError(
                f"claim {entry.namespace!r}/{entry.name!r} or one of its requests has a name the API "
                "server would not accept; no files are written for it",
                reason="metadata",
            )
        if entry.pod_claim_name and not _pod_claim_name(entry):
            log.warning("ignoring invalid pod claim name", name=repr(entry.pod_claim_name)[:80])
        mounts = {}
        for request, prepared_devices in by_request(entry).items():
            path = self.path(entry, request)
            devices = [self._device(prepared) for prepared in prepared_devices]
            self._write(path, entry, request, devices)
            mounts[request] = Mount(host_path=path, container_path=self.container_path(entry, request))
        return mounts

    def remove(self, entry: PreparedClaim) -> None:
        """Remove the files of a claim, but not those of a later claim with the same name.

        Raises ``OSError``, also for a file that cannot be read: it may be of the later claim.
        """
        if not _has_valid_names(entry):
            return  # no files were written
        for request in by_request(entry):
            path = self.path(entry, request)
            if _uid_of(_content(path)) in (entry.uid, None):
                atomicfile.remove_durably(path)
                for directory in (os.path.dirname(path), self._claim_directory(entry)):
                    _remove_if_empty(directory)

    def keep_only(self, entries: Iterable[PreparedClaim]) -> None:
        """Remove the files of all claims except *entries*: leftovers of a crash."""
        wanted = {self.path(entry, request) for entry in entries for request in by_request(entry)}
        for directory, _, names in os.walk(self._root, topdown=False):
            atomicfile.clean_temporaries(directory)
            for name in names:
                path = os.path.join(directory, name)
                if name == _FILE and path not in wanted:
                    atomicfile.remove_durably(path)
            if directory != self._root:
                _remove_if_empty(directory)

    def path(self, entry: PreparedClaim, request: str) -> str:
        """The path on the host of the file of one base request."""
        return os.path.join(self._claim_directory(entry), request, _FILE)

    def container_path(self, entry: PreparedClaim, request: str) -> str:
        """The path in the container; with the pod's name for a claim made from a template."""
        if pod_claim_name := _pod_claim_name(entry):
            claim = f"resourceclaimtemplates/{pod_claim_name}"
        else:
            claim = f"resourceclaims/{entry.name}"
        return f"{CONTAINER_ROOT}/{claim}/{request}/{self._driver}-metadata.json"

    def _claim_directory(self, entry: PreparedClaim) -> str:
        return os.path.join(self._root, f"{entry.namespace}_{entry.name}")

    def _device(self, prepared: PreparedDevice) -> dict[str, Any]:
        if len(prepared.attributes) > MOST_ATTRIBUTES:
            raise RejectedError(
                f"device {prepared.device} has {len(prepared.attributes)} attributes for its metadata "
                f"file, {MOST_ATTRIBUTES} are allowed",
                reason="metadata",
            )
        device = {"driver": self._driver, "pool": prepared.pool, "name": prepared.device}
        attributes = {name: to_builtins(value) for name, value in sorted(prepared.attributes.items())}
        return {**device, "attributes": attributes} if attributes else device

    def _write(self, path: str, entry: PreparedClaim, request: str, devices: list[dict[str, Any]]) -> None:
        body: dict[str, Any] = {}
        if pod_claim_name := _pod_claim_name(entry):
            body["podClaimName"] = pod_claim_name
        body["requests"] = [{"name": request, "devices": devices}]
        present: dict[str, Any] = {}
        with contextlib.suppress(OSError):  # a derived file: one that cannot be read is replaced
            present = _content(path)
        generation = 1
        if _uid_of(present) == entry.uid:
            generation = int(present["metadata"].get("generation", 0))
            if {key: present.get(key) for key in body} == body:
                return
            generation += 1
        meta = {"name": entry.name, "namespace": entry.namespace, "uid": entry.uid}
        body = {"kind": "DeviceMetadata", "metadata": meta | {"generation": generation}, **body}
        objects = ({"apiVersion": f"{GROUP}/{version}", **body} for version in VERSIONS)
        atomicfile.ensure_directory(os.path.dirname(path))
        data = b"".join(msgspec.json.encode(one) + b"\n" for one in objects)
        atomicfile.write_atomic(path, data, 0o644)


def by_request(entry: PreparedClaim) -> dict[str, list[PreparedDevice]]:
    """The prepared devices of a claim by base request, in the order of the allocation."""
    grouped: dict[str, list[PreparedDevice]] = {}
    for prepared in entry.devices:
        grouped.setdefault(prepared.request, []).append(prepared)
    return grouped


def _pod_claim_name(entry: PreparedClaim) -> str | None:
    """The name of the claim in the pod, if it is valid.

    The name is from an annotation, which the creator of a claim can set to anything: the API server
    checks the names of claims in pods, but not the annotation.
    """
    name = entry.pod_claim_name
    return name if name is not None and _LABEL.fullmatch(name) else None


def _has_valid_names(entry: PreparedClaim) -> bool:
    """Whether the API server accepts all names of a claim that become parts of paths."""
    return (
        _LABEL.fullmatch(entry.namespace) is not None
        and _SUBDOMAIN.fullmatch(entry.name) is not None
        and all(_LABEL.fullmatch(request) for request in by_request(entry))
    )


def _content(path: str) -> dict[str, Any]:
    """The newest object of a file, or an empty one if it is missing or damaged. Raises ``OSError``."""
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
        with open(path, "rb") as file:
            first = msgspec.json.decode(file.readline())
        if isinstance(first, dict) and isinstance(first.get("metadata"), dict):
            return first
    return {}


def _uid_of(present: dict[str, Any]) -> str | None:
    uid = present.get("metadata", {}).get("uid")
    return uid if isinstance(uid, str) else None


def _remove_if_empty(directory: str) -> None:
    atomicfile.step("rmdir", directory)
    with contextlib.suppress(OSError):
        os.rmdir(directory)
