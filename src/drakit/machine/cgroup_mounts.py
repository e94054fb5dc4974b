"""Mounts of control groups."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from drakit.machine.model import CgroupMode, Cgroups
from drakit.machine.sysfs import Reader

_ROOT_MOUNT: Final = "/sys/fs/cgroup"
_V1_OPTIONS: Final = frozenset({"rw", "ro", "xattr", "clone_children", "noprefix", "all", "none"})
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class _Mount:
    point: str
    kind: str
    options: tuple[str, ...]


def read_cgroups(reader: Reader) -> Cgroups:
    """The cgroup mode by the mount table.

    cgroup2 at ``/sys/fs/cgroup`` means v2, as for container runtimes, even if a v1 hierarchy is mounted
    elsewhere; cgroup2 elsewhere together with v1 controllers means hybrid.
    """
    unified: _Mount | None = None
    v1: dict[str, str] = {}
    for mount in _mounts(reader):
        if mount.kind == "cgroup2" and (unified is None or mount.point == _ROOT_MOUNT):
            unified = mount
        elif mount.kind == "cgroup":
            for name in mount.options:
                if name not in _V1_OPTIONS and "=" not in name:
                    v1.setdefault(name, mount.point)
    if unified is None:
        return Cgroups(CgroupMode.V1 if v1 else CgroupMode.NONE, v1_mounts=v1)
    hybrid = bool(v1) and unified.point != _ROOT_MOUNT
    controllers = reader.text(f"{unified.point}/cgroup.controllers")
    return Cgroups(
        CgroupMode.HYBRID if hybrid else CgroupMode.V2,
        v2_mount=unified.point,
        v1_mounts=v1,
        controllers=frozenset((controllers or "").split()),
        memory_hugetlb_accounting="memory_hugetlb_accounting" in unified.options,
    )


def _mounts(reader: Reader) -> list[_Mount]:
    """The mount table of this process or, when reading another root, of init there.

    Below another root ``self`` is still this process, in its own mount namespace.
    """
    tables = ["/proc/self/mountinfo", "/proc/self/mounts", "/proc/mounts"]
    if reader.prefix:
        tables.insert(0, "/proc/1/mountinfo")
    for path in tables:
        if text := reader.text(path):
            parse = _parse_mountinfo if path.endswith("mountinfo") else _parse_mounts
            return [mount for line in text.splitlines() if (mount := parse(line)) is not None]
    reader.warn("/proc/self/mountinfo", "missing; the cgroup version is unknown")
    return []


def _parse_mountinfo(line: str) -> _Mount | None:
    before, dash, after = line.partition(" - ")
    left, right = before.split(" "), after.split(" ")
    if not dash or len(left) < 6 or len(right) < 3:
        return None
    return _Mount(_unescape(left[4]), right[0], tuple(right[2].split(",")))


def _parse_mounts(line: str) -> _Mount | None:
    fields = line.split(" ")
    if len(fields) < 4:
        return None
    return _Mount(_unescape(fields[1]), fields[2], tuple(fields[3].split(",")))


def _unescape(text: str) -> str:
    r"""Spaces and similar characters are octal escapes: ``\040``."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
