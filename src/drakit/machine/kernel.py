"""The kernel's release and architecture, and ``/proc/cpuinfo``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from drakit.machine.sysfs import Reader, parse_number


@dataclass(frozen=True, slots=True)
class ProcIds:
    """``physical id`` and ``core id`` of one processor (x86 only)."""

    socket: int | None = None
    core: int | None = None


@dataclass(frozen=True, slots=True)
class CpuInfo:
    """The part of ``/proc/cpuinfo`` that sysfs does not have, or may lack."""

    reader: Reader
    first: Mapping[str, str] = field(default_factory=dict)
    """Keys of the beginning of the file; the first value of each."""
    processors: dict[int, ProcIds] = field(default_factory=dict)

    @property
    def is_x86(self) -> bool:
        """Whether firmware numbers sockets uniquely, as x86 does."""
        return self.first.get("vendor_id") in ("GenuineIntel", "AuthenticAMD", "HygonGenuine")

    @property
    def has_compute_units(self) -> bool:
        """AMD families 15h and 16h, whose cores come in pairs that look like threads."""
        return self.first.get("vendor_id") == "AuthenticAMD" and self.first.get("cpu family") in ("21", "22")

    def ids(self, cpu: int) -> ProcIds:
        """Ids of *cpu*.

        The whole file is read on first use: most machines never need it, and reading it makes the kernel
        measure the frequency of every CPU.
        """
        if not self.processors:
            text = self.reader.text("/proc/cpuinfo", _LARGEST_CPUINFO) or ""
            self.processors.update(_parse_processors(text))
        return self.processors.get(cpu, _NO_IDS)


_NO_IDS: Final = ProcIds()
_LARGEST_CPUINFO: Final = 16 << 20


def read_cpuinfo(reader: Reader) -> CpuInfo:
    """The beginning of ``/proc/cpuinfo``; empty when missing."""
    first: dict[str, str] = {}
    for line in reader.beginning("/proc/cpuinfo").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            first.setdefault(key.strip(), value.strip())
    return CpuInfo(reader, first)


def _parse_processors(text: str) -> dict[int, ProcIds]:
    found: dict[int, ProcIds] = {-1: _NO_IDS}
    for paragraph in text.split("\n\n"):
        values = {}
        for line in paragraph.splitlines():
            key, _, value = line.partition(":")
            values[key.strip()] = parse_number(value)
        cpu = values.get("processor")
        if cpu is not None:
            found[cpu] = ProcIds(values.get("physical id"), values.get("core id"))
    return found


def read_release(reader: Reader) -> str:
    """The kernel release (``uname -r``); empty if unknown."""
    text = reader.text("/proc/sys/kernel/osrelease")
    if text is not None and text.strip():
        return text.strip()[:128]
    words = (reader.text("/proc/version") or "").split()
    if words[:2] == ["Linux", "version"] and len(words) > 2:
        return words[2][:128]
    release = _gathered(reader, "OSRelease")
    if release is None:
        reader.warn("/proc/sys/kernel/osrelease", "missing; the kernel release is unknown")
    return release or ""


_ARCHITECTURE_HINTS: Final = (
    # key of /proc/cpuinfo, words in its value, architecture
    ("vendor_id", "IBM/S390", "s390x"),
    ("CPU implementer", "", "aarch64"),
    ("isa", "rv64", "riscv64"),
    ("cpu", "POWER", "ppc64le"),
    ("CPU Family", "Loongson", "loongarch64"),
    ("arch", "IA-64", "ia64"),
)


def read_architecture(reader: Reader, cpuinfo: CpuInfo) -> str:
    """The architecture (``uname -m``).

    For a dump it comes from ``/proc/sys/kernel/arch`` (Linux 6.1), the notes of hwloc's gathering tool,
    or the style of ``/proc/cpuinfo``; else the running machine's is assumed.
    """
    if not reader.prefix:
        return os.uname().machine
    text = reader.text("/proc/sys/kernel/arch")
    if text is not None and text.strip():
        return text.strip()[:32]
    if gathered := _gathered(reader, "Architecture"):
        return gathered
    first = cpuinfo.first
    if "flags" in first and ("vendor_id" in first or "model name" in first):
        return "x86_64" if " lm " in f" {first['flags']} " else "i686"
    for key, word, architecture in _ARCHITECTURE_HINTS:
        if key in first and word in first[key]:
            return architecture
    here = os.uname().machine
    reader.warn("/proc/cpuinfo", f"does not identify the architecture; assumed {here} as on this machine")
    return here


def _gathered(reader: Reader, key: str) -> str | None:
    """A line of the file that hwloc's gathering tool adds to its dumps."""
    for line in (reader.text("/proc/hwloc-nofile-info") or "").splitlines():
        name, _, value = line.partition(": ")
        if name == key and value.strip():
            return value.strip()[:128]
    return None
