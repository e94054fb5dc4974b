"""Present, online, isolated and other states of CPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from drakit.core.cpuset import EMPTY, CpuSet, CpuSetError
from drakit.machine.sysfs import Reader

CPU: Final = "/sys/devices/system/cpu"
MAX_CPUS: Final = 8192
"""The largest ``NR_CPUS`` a kernel can be built with; higher numbers come from damaged files."""


@dataclass(frozen=True, slots=True)
class CpuStates:
    """CPUs by state. ``known`` is every CPU in any source."""

    possible: CpuSet
    present: CpuSet
    online: CpuSet
    known: CpuSet
    isolated: CpuSet
    nohz_full: CpuSet


def read_states(reader: Reader) -> CpuStates:
    """Read the lists; missing or contradicting ones are derived from the ``cpuN`` directories."""
    directories = CpuSet(reader.numbered(CPU, "cpu", MAX_CPUS))
    listed_present = _plausible(reader, "present", directories)
    listed_online = _plausible(reader, "online", directories)
    if listed_online is not None and not listed_online:
        reader.warn(f"{CPU}/online", "is empty; read for each CPU instead")
        listed_online = None
    if listed_present is None and directories:
        reader.warn(f"{CPU}/present", "missing or unusable; every cpuN directory is taken as present")
    named = directories | (listed_present or EMPTY) | (listed_online or EMPTY)
    if not named:
        named = listed_online = _from_proc(reader)
    if listed_online is None:
        reader.warn(f"{CPU}/online", "missing or unusable; read for each CPU instead")
        listed_online = _read_online(reader, named)
    else:
        _check_offline(reader, directories - listed_online)
    present = (directories if listed_present is None else listed_present) | listed_online
    possible = _plausible(reader, "possible", directories)
    for cpu in named - (possible if possible is not None else named):
        reader.warn_cpu(cpu, "", "not in the list of possible CPUs; kept")
    for cpu in named - directories if directories else EMPTY:
        reader.warn_cpu(cpu, "", "listed, but has no directory; its topology is derived")
    return CpuStates(
        possible=(possible or EMPTY) | named,
        present=present,
        online=listed_online,
        known=named,
        isolated=_isolated(reader) & named,
        nohz_full=(_list_or_null(reader, f"{CPU}/nohz_full") or EMPTY) & named,
    )


def _plausible(reader: Reader, name: str, directories: CpuSet) -> CpuSet | None:
    """A list of CPUs, without numbers no kernel can have."""
    listed = reader.cpu_list(f"{CPU}/{name}")
    if listed is None:
        return None
    if absurd := listed - CpuSet.range(0, MAX_CPUS):
        reader.warn(f"{CPU}/{name}", f"CPUs from {absurd.min()} on ignored: no kernel has them")
        listed = (listed - absurd) | (listed & directories)
    return listed


def _read_online(reader: Reader, named: CpuSet) -> CpuSet:
    """The CPUs that are online by ``cpuN/online``.

    Without that file a CPU is online if it has a topology directory, which the kernel removes for an
    offline CPU; if no CPU has one, all are online.
    """
    states: dict[int, bool | None] = {}
    for cpu in named:
        value = reader.number(f"{CPU}/cpu{cpu}/online")
        states[cpu] = None if value is None else value != 0
    unknown = [cpu for cpu, state in states.items() if state is None]
    shows = {cpu for cpu in unknown if reader.exists(f"{CPU}/cpu{cpu}/topology")}
    any_shown = bool(shows) or any(
        reader.exists(f"{CPU}/cpu{cpu}/topology") for cpu, state in states.items() if state
    )
    for cpu in unknown:
        states[cpu] = cpu in shows or not any_shown
        if not states[cpu]:
            reader.warn_cpu(cpu, "/online", "missing, and has no topology: taken as offline")
    online = CpuSet(cpu for cpu, state in states.items() if state)
    if not online and named:
        reader.warn(CPU, "every CPU is reported offline; taken as online")
        return named
    return online


def _check_offline(reader: Reader, offline: CpuSet) -> None:
    """Warn about CPUs that are not in the online list but look online."""
    for cpu in offline:
        value = reader.number(f"{CPU}/cpu{cpu}/online")
        if value == 1 or (value is None and reader.exists(f"{CPU}/cpu{cpu}/topology")):
            reader.warn_cpu(cpu, "/online", "looks online but is not listed: taken as offline")


def _from_proc(reader: Reader) -> CpuSet:
    """Without any CPU in sysfs: ``cpuN`` lines of ``/proc/stat``, or processors of ``cpuinfo``."""
    found = []
    for line in (reader.text("/proc/stat") or "").splitlines():
        name = line.split(" ", 1)[0]
        if name.startswith("cpu") and name[3:].isascii() and name[3:].isdigit():
            found.append(name[3:])
    if not found:
        for line in (reader.text("/proc/cpuinfo") or "").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "processor" and value.strip().isascii() and value.strip().isdigit():
                found.append(value.strip())
    numbers = [int(digits) for digits in found if len(digits) < 10]
    cpus = CpuSet(number for number in numbers if number < MAX_CPUS)
    source = "/proc/stat or /proc/cpuinfo"
    reader.warn(CPU, f"has no CPU; {len(cpus)} taken from {source}" if cpus else "has no CPU")
    return cpus


def _list_or_null(reader: Reader, path: str) -> CpuSet | None:
    """A list that the kernel writes as ``(null)`` when the feature is off."""
    text = reader.text(path)
    if text is None or text.strip(" \t\r\n\0") in ("(null)", ""):
        return None if text is None else EMPTY
    return reader.cpu_list(path)


def _isolated(reader: Reader) -> CpuSet:
    """The ``isolated`` list or, before Linux 4.2 had it, ``isolcpus=`` of the command line."""
    listed = _list_or_null(reader, f"{CPU}/isolated")
    if listed is not None:
        return listed
    for word in (reader.text("/proc/cmdline") or "").split():
        if word.startswith("isolcpus="):
            items = word.removeprefix("isolcpus=").split(",")
            # Flags such as "nohz," or "domain,managed_irq," may precede the list.
            text = ",".join(item for item in items if item[:1].isdigit())
            try:
                return CpuSet.parse(text)
            except CpuSetError as error:
                reader.warn("/proc/cmdline", f"isolcpus: {error.reason}; none isolated")
    return EMPTY
