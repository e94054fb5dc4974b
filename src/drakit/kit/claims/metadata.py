"""Device metadata files (KEP-5304): what a workload may read about its own devices.

One file per claim and request below the plugin's data directory, mounted read-only into the
containers of that request at a path that tells claim, request and driver. A file is a stream of
JSON objects, the same content once per API version, newest first; a reader takes the first it
knows.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from drakit.core import atomicfile
from drakit.core.objects import Attribute, to_builtins
from drakit.kit.driver import Mount, PreparedClaim, PreparedDevice, RejectedError

DIRECTORY: Final = "dra-device-metadata"
GROUP: Final = "metadata.resource.k8s.io"
VERSIONS: Final = ("v1beta1", "v1alpha1")
CONTAINER_ROOT: Final = "/var/run/kubernetes.io/dra-device-attributes"
MOST_ATTRIBUTES: Final = 32
_FILE: Final = "metadata.json"
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""A DNS label, as the API server demands of the names that pods and claims give their parts."""
_SUBDOMAIN: Final = re.compile(rf"(?=.{{1,253}}\Z){_LABEL.pattern}(\.{_LABEL.pattern})*")
_LOG = logging.getLogger(__name__)


class MetadataFiles:
    """The metadata files of one driver, derived from the checkpoint and rebuilt like CDI specs."""

    def __init__(self, plugin_dir: str, driver: str) -> None:
        self._root = os.path.join(plugin_dir, DIRECTORY)
        self._driver = driver

    def write(self, entry: PreparedClaim) -> dict[str, Mount]:
        """Make the files of a claim true; returns the mount for each base request.

        A file that already says the same is left alone. One that says something else is replaced
        with the next generation: a container that runs keeps seeing what it was started with.

        Names become parts of paths, on the host and in the container. Raises :class:`RejectedError` for a
        name the API server would not have accepted.
        """
        if not _is_named_well(entry):
            raise RejectedError(
                f"claim {entry.namespace!r}/{entry.name!r} or one of its requests has a name the API "
                "server would not accept; no files are made for it",
                reason="metadata",
            )
        if entry.pod_claim_name and not _pod_claim_name(entry):
            _LOG.warning(
                "ignoring the pod's name for the claim, which is no DNS label: %.80r",
                entry.pod_claim_name,
            )
        mounts = {}
        for request, prepared_devices in by_request(entry).items():
            path = self.path(entry, request)
            devices = [self._device(prepared) for prepared in prepared_devices]
            self._write(path, entry, request, devices)
            mounts[request] = Mount(
                host_path=path, container_path=self.container_path(entry, request)
            )
        return mounts

    def remove(self, entry: PreparedClaim) -> None:
        """Remove the files of a claim, but not those of a later claim of the same name.

        Raises ``OSError``, also for a file that cannot be read: whose it is cannot be told then.
        """
        if not _is_named_well(entry):
            return  # it never had any
        for request in by_request(entry):
            path = self.path(entry, request)
            if _uid_of(_content(path)) in (entry.uid, None):
                atomicfile.remove_durably(path)
                for directory in (os.path.dirname(path), self._claim_directory(entry)):
                    _remove_if_empty(directory)

    def keep_only(self, entries: Iterable[PreparedClaim]) -> None:
        """Remove the files of all claims but *entries*: leftovers of a crash."""
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
        """Where the file of one base request is on the host."""
        return os.path.join(self._claim_directory(entry), request, _FILE)

    def container_path(self, entry: PreparedClaim, request: str) -> str:
        """Where a container finds it; by the pod's name for the claim if a template made it."""
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
        device: dict[str, Any] = {
            "driver": self._driver,
            "pool": prepared.pool,
            "name": prepared.device,
        }
        if prepared.attributes:
            device["attributes"] = {
                name: _plain(value) for name, value in sorted(prepared.attributes.items())
            }
        return device

    def _write(
        self, path: str, entry: PreparedClaim, request: str, devices: list[dict[str, Any]]
    ) -> None:
        body: dict[str, Any] = {}
        if pod_claim_name := _pod_claim_name(entry):
            body["podClaimName"] = pod_claim_name
        body["requests"] = [{"name": request, "devices": devices}]
        present = _read(path)
        generation = 1
        if _uid_of(present) == entry.uid:
            generation = int(present["metadata"].get("generation", 0))
            if {key: present.get(key) for key in body} == body:
                return
            generation += 1
        meta = {
            "name": entry.name,
            "namespace": entry.namespace,
            "uid": entry.uid,
            "generation": generation,
        }
        objects = (
            {
                "apiVersion": f"{GROUP}/{version}",
                "kind": "DeviceMetadata",
                "metadata": meta,
                **body,
            }
            for version in VERSIONS
        )
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
    """The pod's name for the claim if it is one.

    It comes from an annotation, which whoever creates a claim can set to anything; the API server
    checks the names of claims in pods, not this one.
    """
    name = entry.pod_claim_name
    return name if name is not None and _LABEL.fullmatch(name) else None


def _is_named_well(entry: PreparedClaim) -> bool:
    """Whether all names of a claim that become parts of paths are such as the API server accepts."""
    return (
        _LABEL.fullmatch(entry.namespace) is not None
        and _SUBDOMAIN.fullmatch(entry.name) is not None
        and all(_LABEL.fullmatch(request) for request in by_request(entry))
    )


def _plain(attribute: Attribute) -> Any:
    return to_builtins(attribute)


def _read(path: str) -> dict[str, Any]:
    """The newest object of a file, or nothing when it cannot be read: it is derived."""
    with contextlib.suppress(OSError):
        return _content(path)
    return {}


def _content(path: str) -> dict[str, Any]:
    """The newest object of a file, or nothing when it is missing or damaged. Raises ``OSError``."""
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
