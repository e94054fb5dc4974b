"""The kubelet's configuration: its file, merged with its drop-ins (KEP-3983).

The kubelet reads every ``*.conf`` in its ``--config-dir``, also in subdirectories, in the order of Go's
``filepath.WalkDir``, and merges each as a JSON merge patch (RFC 7386). It does not start with a file it
cannot read; here, one invalid file makes the configuration unknown.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import msgspec

from drakit.kit.config.options import HostOptions

DEFAULT_EVICTION_HARD: Final[Mapping[str, str]] = {"memory.available": "100Mi"}
"""The memory part of the default ``evictionHard``."""
LARGEST: Final = 256 << 10
"""Bytes of all files together: a whole ``KubeletConfiguration`` has a few thousand."""
MOST_ENTRIES: Final = 1000
"""Files and directories in a drop-in directory."""
_FACTOR: Final = "memoryThrottlingFactor"
_EXPONENT: Final = re.compile(r"[-+]?\d+[eE][-+]?\d+")


class KubeletConfigError(ValueError):
    """The kubelet's configuration cannot be read; has the file and the reason."""


class KubeletConfig(msgspec.Struct, frozen=True, rename="camel"):
    """The settings of a ``KubeletConfiguration`` that concern CPUs and memory."""

    cpu_manager_policy: str | None = None
    topology_manager_policy: str | None = None
    reserved_system_cpus: str | None = msgspec.field(name="reservedSystemCPUs", default=None)
    memory_reservation_policy: str | None = None
    memory_throttling_factor: float | None = None
    memory_manager_policy: str | None = None
    feature_gates: dict[str, bool] = {}
    kube_reserved: dict[str, str] | None = None
    system_reserved: dict[str, str] | None = None
    eviction_hard: dict[str, str] | None = None

    def gate(self, name: str) -> bool | None:
        """A feature gate as configured; None: its default, which depends on the release."""
        if name in self.feature_gates:
            return self.feature_gates[name]
        return True if self.feature_gates.get("AllAlpha") else None


def parse(document: Any, source: str) -> KubeletConfig:
    """A configuration from its document. Raises :class:`KubeletConfigError`."""
    factor = document.get(_FACTOR) if isinstance(document, Mapping) else None
    if isinstance(factor, str) and _EXPONENT.fullmatch(factor):
        # 9e-1 is a number to the kubelet (JSON), and a text in YAML 1.1 as read here.
        document = {**document, _FACTOR: float(factor)}
    try:
        return msgspec.convert(document, KubeletConfig)
    except msgspec.ValidationError as error:
        raise KubeletConfigError(f"{source} is not a kubelet configuration: {error}") from error


@dataclass(frozen=True, slots=True)
class KubeletFiles:
    """The kubelet's configuration file and its ``--config-dir``, if any; both may be missing."""

    path: str
    drop_in_dir: str = ""

    @classmethod
    def of(cls, options: HostOptions, path: str | None = None) -> KubeletFiles:
        """The paths in *options*; *path* replaces that of the file."""
        return cls(path or options.kubelet_config, options.kubelet_config_dir)

    def __str__(self) -> str:
        there = self.drop_in_dir and os.path.isdir(self.drop_in_dir)
        return f"{self.path} and {self.drop_in_dir}" if there else self.path

    def stamp(self) -> tuple[object, ...]:
        """Changes whenever a file does. Never raises."""
        try:
            paths = (self.path, *self.drop_ins())
        except KubeletConfigError as error:
            return (str(error),)
        return tuple((path, *_stamp(path)) for path in paths)

    def read(self) -> KubeletConfig | None:
        """The configuration; None without a file. Raises :class:`KubeletConfigError`."""
        merged: dict[str, Any] | None = None
        for path, document in self._documents():
            # Each file alone first: an error of the merged document would not name the file.
            parse(_merge({}, document), _shown(path))
            merged = _merge({} if merged is None else merged, document)
        return None if merged is None else parse(merged, self.path)

    def read_or_reason(self) -> tuple[KubeletConfig | None, str]:
        """The configuration, or None and the reason. Never raises."""
        try:
            return self.read(), f"there is no {self.path}"
        except KubeletConfigError as error:
            return None, f"its configuration cannot be read: {error}"

    def drop_ins(self) -> list[str]:
        """The drop-ins by name, depth first; linked directories are not followed. Raises as :meth:`read`."""
        found: list[str] = []
        waiting = [(self.drop_in_dir, True)] if self.drop_in_dir else []
        seen = 0
        while waiting:
            path, is_directory = waiting.pop()
            if is_directory:
                entries = _entries(path)
                seen += len(entries)
                if seen > MOST_ENTRIES:
                    raise KubeletConfigError(
                        f"{self.drop_in_dir} cannot be read: it has more than {MOST_ENTRIES} entries"
                    )
                waiting += reversed(entries)
            elif path.endswith(".conf"):
                found.append(path)
        return found

    def _documents(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The documents to merge, in order. Raises :class:`KubeletConfigError`."""
        room = LARGEST
        text = _text(self.path, room)
        if text is not None:
            room -= len(text)
            yield self.path, _main(_mapping(text, self.path), self.path)
        for path in self.drop_ins():
            text = _text(path, room) if _is_file(path) else None
            if text is None:
                # Also a link to a file that is not mounted into our container.
                raise KubeletConfigError(f"{_shown(path)} cannot be read: not a file, or removed")
            room -= len(text)
            yield path, _mapping(text, path)


def _main(document: dict[str, Any], path: str) -> dict[str, Any]:
    """The document of the file itself, with the default of ``evictionHard``."""
    inner = document.get("kubeletconfig", document)
    if not isinstance(inner, dict):
        raise KubeletConfigError(f"{path} is not a kubelet configuration: not a mapping")
    if inner.get("evictionHard") is None:
        return {**inner, "evictionHard": DEFAULT_EVICTION_HARD}
    return inner


def _mapping(text: bytes, path: str) -> dict[str, Any]:
    from drakit.core.yaml import YamlError, load_strictly  # heavy, and rarely needed

    try:
        document = load_strictly(text.decode())
    except (UnicodeDecodeError, YamlError) as error:
        raise KubeletConfigError(f"{_shown(path)} cannot be read: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise KubeletConfigError(f"{_shown(path)} is not a kubelet configuration: not a mapping")
    return document


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """*above* merged over *below*: mappings by key, null removes a key, other values replace.

    Only two levels deep: no setting used here is deeper, and YAML aliases could make a small file
    expand without bound.
    """
    mappings = {
        key: _over(below.get(key), value) for key, value in above.items() if isinstance(value, Mapping)
    }
    return _over(below, {**above, **mappings})


def _over(below: object, above: Mapping[str, Any]) -> dict[str, Any]:
    both = {**below, **above} if isinstance(below, Mapping) else above
    return {key: value for key, value in both.items() if value is not None}


def _entries(directory: str) -> list[tuple[str, bool]]:
    """The paths in a directory, sorted as bytes, and whether they are directories."""
    try:
        with os.scandir(directory) as found:
            entries = sorted(islice(found, MOST_ENTRIES + 1), key=lambda entry: os.fsencode(entry.name))
            return [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise KubeletConfigError(f"{_shown(directory)} cannot be read: {error}") from error


def _is_file(path: str) -> bool:
    """Whether it is a regular file, which can be read without blocking."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False
    except OSError as error:  # a loop of links, for one
        raise KubeletConfigError(f"{_shown(path)} cannot be read: {error}") from error


def _text(path: str, room: int) -> bytes | None:
    """The content of a file, at most *room* bytes; None if missing."""
    try:
        with open(path, "rb") as file:
            text = file.read(room + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KubeletConfigError(f"{_shown(path)} cannot be read: {error}") from error
    if len(text) > room:
        raise KubeletConfigError(
            f"{_shown(path)} cannot be read: with the files before it, it has more than {LARGEST} bytes"
        )
    return text


def _stamp(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def _shown(path: str) -> str:
    """A printable path: file names may contain newlines or invalid characters."""
    return path if path.isprintable() else repr(path)
