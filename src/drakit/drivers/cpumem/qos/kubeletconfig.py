"""The kubelet's configuration as it reads it: its file, and over that its drop-ins (KEP-3983).

In its ``--config-dir`` the kubelet takes every ``*.conf``, also in subdirectories, in the order of
Go's ``filepath.WalkDir``, and merges each as a JSON merge patch (RFC 7386) over what it has so far.
Like the kubelet, which does not start with a file it cannot read, nothing is left out here: one bad
file, and the configuration is not known.
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
"""What concerns memory in the ``evictionHard`` of a kubelet whose file has none."""
LARGEST: Final = 256 << 10
"""Bytes of all files together: a whole ``KubeletConfiguration`` has a few thousand."""
MOST_ENTRIES: Final = 1000
"""Files and directories in a drop-in directory."""
_FACTOR: Final = "memoryThrottlingFactor"
_EXPONENT: Final = re.compile(r"[-+]?\d+[eE][-+]?\d+")


class KubeletConfigError(ValueError):
    """The kubelet's configuration cannot be read; the text says which file and why."""


class KubeletConfig(msgspec.Struct, frozen=True, rename="camel"):
    """What concerns CPUs and memory in a ``KubeletConfiguration``."""

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


def parse(document: Mapping[str, Any], source: str) -> KubeletConfig:
    """A configuration from its document. Raises :class:`KubeletConfigError`.

    Takes also the answer of ``/configz``, which has the configuration under ``kubeletconfig``.
    """
    return _convert(document.get("kubeletconfig", document), source)


def _convert(document: Any, source: str) -> KubeletConfig:
    factor = document.get(_FACTOR) if isinstance(document, Mapping) else None
    if isinstance(factor, str) and _EXPONENT.fullmatch(factor):
        # The kubelet takes 9e-1 for a number, as JSON has it; YAML 1.1, as read here, for a text.
        document = {**document, _FACTOR: float(factor)}
    try:
        return msgspec.convert(document, KubeletConfig)
    except msgspec.ValidationError as error:
        raise KubeletConfigError(f"{source} is no configuration of a kubelet: {error}") from error


@dataclass(frozen=True, slots=True)
class KubeletFiles:
    """Where the kubelet's configuration is: its file, and its ``--config-dir`` if it has one.

    Neither needs to be there.
    """

    path: str
    drop_in_dir: str = ""

    @classmethod
    def of(cls, options: HostOptions, path: str | None = None) -> KubeletFiles:
        """Where *options* say they are; *path* is another place of the file."""
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
        """The configuration; None without any file. Raises :class:`KubeletConfigError`."""
        merged: dict[str, Any] | None = None
        for path, document in self._documents():
            # Alone before it is merged, which would hide whose mistake it is.
            _convert(_merge({}, document), _told(path))
            merged = _merge({} if merged is None else merged, document)
        return None if merged is None else _convert(merged, self.path)

    def read_or_say(self) -> tuple[KubeletConfig | None, str]:
        """The configuration, or None and why it is not known. Never raises."""
        try:
            return self.read(), f"there is no {self.path}"
        except KubeletConfigError as error:
            return None, f"its configuration cannot be read: {error}"

    def drop_ins(self) -> list[str]:
        """The drop-ins in the order in which the kubelet takes them.

        At each level by name, a directory's files in the directory's place; symbolic links to
        directories are not followed. Raises :class:`KubeletConfigError`.
        """
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
        """What is to be merged, in order. Raises :class:`KubeletConfigError`."""
        room = LARGEST
        text = _text(self.path, room)
        if text is not None:
            room -= len(text)
            yield self.path, _main(_mapping(text, self.path), self.path)
        for path in self.drop_ins():
            text = _text(path, room) if _is_file(path) else None
            if text is None:
                # A link that leads out of what is mounted into our container ends here, too.
                raise KubeletConfigError(f"{_told(path)} cannot be read: it is no file, or gone")
            room -= len(text)
            yield path, _mapping(text, path)


def _main(document: dict[str, Any], path: str) -> dict[str, Any]:
    """The document of the file itself, as the kubelet has it before drop-ins go over it."""
    inner = document.get("kubeletconfig", document)
    if not isinstance(inner, dict):
        raise KubeletConfigError(f"{path} is no configuration of a kubelet: it is no mapping")
    if inner.get("evictionHard") is None:
        return {**inner, "evictionHard": DEFAULT_EVICTION_HARD}
    return inner


def _mapping(text: bytes, path: str) -> dict[str, Any]:
    from drakit.core.yaml import YamlError, load_strictly  # heavy; a few times in a life

    try:
        document = load_strictly(text.decode())
    except (UnicodeDecodeError, YamlError) as error:
        raise KubeletConfigError(f"{_told(path)} cannot be read: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise KubeletConfigError(
            f"{_told(path)} is no configuration of a kubelet: it is no mapping"
        )
    return document


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """*above* over *below*: mappings key by key, null takes a key away, everything else whole.

    Only two levels deep. Nothing that is read here is deeper, and with YAML's aliases a small file
    can have more branches than could ever be walked.
    """
    mappings = {
        key: _over(below.get(key), value)
        for key, value in above.items()
        if isinstance(value, Mapping)
    }
    return _over(below, {**above, **mappings})


def _over(below: object, above: Mapping[str, Any]) -> dict[str, Any]:
    both = {**below, **above} if isinstance(below, Mapping) else above
    return {key: value for key, value in both.items() if value is not None}


# -- files ------------------------------------------------------------------------------------------


def _entries(directory: str) -> list[tuple[str, bool]]:
    """The paths in a directory by name, as bytes, and whether they are directories themselves."""
    try:
        with os.scandir(directory) as found:
            entries = sorted(
                islice(found, MOST_ENTRIES + 1), key=lambda entry: os.fsencode(entry.name)
            )
            return [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise KubeletConfigError(f"{_told(directory)} cannot be read: {error}") from error


def _is_file(path: str) -> bool:
    """Whether it can be read without waiting for anybody, as for the other end of a pipe."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False
    except OSError as error:  # a loop of links, for one
        raise KubeletConfigError(f"{_told(path)} cannot be read: {error}") from error


def _text(path: str, room: int) -> bytes | None:
    """What a file holds, at most *room* bytes; None when there is none."""
    try:
        with open(path, "rb") as file:
            text = file.read(room + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KubeletConfigError(f"{_told(path)} cannot be read: {error}") from error
    if len(text) > room:
        raise KubeletConfigError(
            f"{_told(path)} cannot be read: with the files before it, it has more than {LARGEST} bytes"
        )
    return text


def _stamp(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def _told(path: str) -> str:
    """A path for people's eyes: names of files may have line ends in them, or be no text at all."""
    return path if path.isprintable() else repr(path)
