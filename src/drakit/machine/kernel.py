"""The kernel's release and architecture, and what ``/proc/cpuinfo`` adds."""

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
    """The part of ``/proc/cpuinfo`` that sysfs does not show, or may lack."""

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
        return self.first.get("vendor_id") == "AuthenticAMD" and self.first.get("cpu family") in (
            "21",
            "22",
        )

    def ids(self, cpu: int) -> ProcIds:
        """Ids of *cpu*.

        The whole file is read when first asked for: sound machines never need it, and reading it makes
        the kernel measure the frequency of every CPU.
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
    """The kernel release, as ``uname -r`` says it; empty when nothing tells."""
    text = reader.text("/proc/sys/kernel/osrelease")
    if text is not None and text.strip():
        return text.strip()[:128]
    words = (reader.text("/proc/version") or "").split()
    if words[:2] == ["Linux", "version"] and len(words) > 2:
        return words[2][:128]
    told = _gathered(reader, "OSRelease")
    if told is None:
        reader.warnings.note("/proc/sys/kernel/osrelease", "missing; the kernel release is unknown")
    return told or ""


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
    """The architecture, as ``uname -m`` says it.

    Of the running machine it is asked; of a dump, ``/proc/sys/kernel/arch`` (Linux 6.1), the notes of
    hwloc's gathering tool, or the style of ``/proc/cpuinfo`` tell. Last comes the running machine's.
    """
    if not reader.prefix:
        return os.uname().machine
    text = reader.text("/proc/sys/kernel/arch")
    if text is not None and text.strip():
        return text.strip()[:32]
    told = _gathered(reader, "Architecture")
    if told:
        return told
    first = cpuinfo.first
    if "flags" in first and ("vendor_id" in first or "model name" in first):
        return "x86_64" if " lm " in f" {first['flags']} " else "i686"
    for key, word, architecture in _ARCHITECTURE_HINTS:
        if key in first and word in first[key]:
            return architecture
    here = os.uname().machine
    reader.warnings.note("/proc/cpuinfo", f"does not tell the architecture; assumed {here} as here")
    return here


def _gathered(reader: Reader, key: str) -> str | None:
    """A line of the file that hwloc's gathering tool adds to its dumps."""
    for line in (reader.text("/proc/hwloc-nofile-info") or "").splitlines():
        name, _, value = line.partition(": ")
        if name == key and value.strip():
            return value.strip()[:128]
    return None
