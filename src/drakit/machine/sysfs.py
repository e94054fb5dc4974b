"""Files of a kernel, or of a dump of one, read without trusting their content.

A file may be missing, empty, binary, huge, unreadable, a loop of links or a FIFO. Reading never
blocks, never raises and never reads more than a bounded amount. The result for an unusable file is
``None`` and, unless the file is missing, a warning.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Final

from drakit.core.cpuset import CpuSet, CpuSetError
from drakit.machine.model import Warning  # noqa: A004 - named after Machine.warnings

LARGEST_FILE: Final = 1 << 20
"""No file read here is longer, except ``/proc/cpuinfo``."""
_PAGE: Final = 4096
_ENOUGH_MISSED: Final = 8
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_CPU_DIRECTORY: Final = "/sys/devices/system/cpu/cpu"


class WarningCollector:
    """Collects warnings. The same warning about many CPUs becomes one."""

    def __init__(self) -> None:
        self._plain: dict[Warning, None] = {}
        self._of_cpus: dict[tuple[str, str], int] = {}

    def note(self, file: str, reason: str) -> None:
        """Add a warning about *file*; *reason* has the problem and the assumption made."""
        self._plain.setdefault(Warning(file, reason))

    def note_cpu(self, cpu: int, name: str, reason: str) -> None:
        """As :meth:`note`, for the file *name* below the directory of *cpu*."""
        key = (name, reason)
        self._of_cpus[key] = self._of_cpus.get(key, 0) | 1 << cpu

    def warnings(self) -> tuple[Warning, ...]:
        """All warnings, in a stable order."""
        about_cpus = []
        for (name, reason), mask in self._of_cpus.items():
            cpus = CpuSet.from_mask(mask)
            if len(cpus) == 1:
                about_cpus.append(Warning(f"{_CPU_DIRECTORY}{cpus}{name}", reason))
            else:
                about_cpus.append(Warning(f"{_CPU_DIRECTORY}*{name}", f"CPUs {cpus}: {reason}"))
        return (*self._plain, *about_cpus)


class Reader:
    """Reads files below one root. Paths are those on the machine itself: ``/sys/…``."""

    def __init__(self, root: str, warnings: WarningCollector) -> None:
        self.prefix = root.rstrip("/")
        self.warn = warnings.note
        self.warn_cpu = warnings.note_cpu
        self._sets: dict[tuple[str, str], CpuSet | None] = {}
        self._missed: dict[str, int] = {}
        self._numbers: dict[str, int] = {}

    def text(self, path: str, limit: int = LARGEST_FILE) -> str | None:
        """The content, or ``None`` if missing or unusable."""
        try:
            handle = os.open(self.prefix + path, _FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            self.warn(path, f"cannot be opened: {_reason(error)}")
            return None
        try:
            data = os.read(handle, _PAGE)
            if not 0 < len(data) < _PAGE:  # most files of sysfs need no further system call
                data = self._rest(handle, data, path, limit)
        except OSError as error:
            self.warn(path, f"cannot be read: {_reason(error)}")
            return None
        finally:
            os.close(handle)
        return data.decode("latin-1")

    def _rest(self, handle: int, data: bytes, path: str, limit: int) -> bytes:
        """The content after the first page, for regular files only: a device has no end."""
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            self.warn(path, "is not a regular file; treated as empty")
            return b""
        parts, length = [data], len(data)
        while data and length < limit:
            data = os.read(handle, min(1 << 16, limit - length))
            parts.append(data)
            length += len(data)
        if data and os.read(handle, 1):
            self.warn(path, f"is longer than {limit} bytes; the rest was not read")
        return b"".join(parts)

    def beginning(self, path: str) -> str:
        """The first page of a file that may be long; empty if missing or unusable."""
        try:
            handle = os.open(self.prefix + path, _FLAGS)
        except (OSError, ValueError):
            return ""
        try:
            return os.read(handle, _PAGE).decode("latin-1")
        except OSError:
            return ""
        finally:
            os.close(handle)

    def number(self, path: str) -> int | None:
        """A decimal number, which may be negative."""
        text = self.text(path)
        if text is None:
            return None
        value = self._numbers.get(text)
        if value is None:
            value = parse_number(text)
            if value is None:
                self.warn(path, f"is not a number: {shown(text)}")
            else:
                self._numbers[text] = value
        return value

    def optional_number(self, place: str, name: str) -> int | None:
        """As :meth:`number` of ``place + name``, for a file that many kernels do not have.

        If the first CPUs do not have a file of that name, it is not read for the others.
        """
        missed = self._missed.get(name, 0)
        if missed >= _ENOUGH_MISSED:
            return None
        value = self.number(place + name)
        if missed >= 0:
            self._missed[name] = missed + 1 if value is None else -1
        return value

    def cpu_list(self, path: str) -> CpuSet | None:
        """A set of CPUs in list format."""
        return self._cpu_set(path, "list", CpuSet.parse)

    def cpu_mask(self, path: str) -> CpuSet | None:
        """A set of CPUs in mask format, a leading ``0x`` allowed."""
        return self._cpu_set(path, "mask", lambda text: CpuSet.parse_mask(text.strip().removeprefix("0x")))

    def _cpu_set(self, path: str, form: str, parse: Callable[[str], CpuSet]) -> CpuSet | None:
        text = self.text(path)
        if text is None:
            return None
        key = (form, text)
        if key not in self._sets:
            try:
                self._sets[key] = parse(text)
            except CpuSetError as error:
                self._sets[key] = None
                self.warn(path, f"is not a {form} of CPUs: {error.reason} in {shown(text)}")
                return None
        elif self._sets[key] is None:
            self.warn(path, f"is not a {form} of CPUs: {shown(text)}")
        return self._sets[key]

    def cpus(self, list_path: str, mask_path: str) -> CpuSet | None:
        """A set of CPUs from its list file or, if that is missing, invalid or empty, its mask file."""
        found = self.cpu_list(list_path)
        if found:
            return found
        other = self.cpu_mask(mask_path)
        if found is not None and other:
            self.warn(list_path, f"is empty; {mask_path.rpartition('/')[2]} is used")
        return found if other is None else other

    def cpus_around(self, cpu: int, place: str, list_name: str, mask_name: str) -> CpuSet | None:
        """A set that *cpu* belongs to, from two files below its own directory.

        The mask is read if the list is missing, invalid, or does not contain the CPU itself. The
        result does not contain the CPU only if neither file does.
        """
        directory = f"{_CPU_DIRECTORY}{cpu}{place}/"
        found = self.cpu_list(directory + list_name)
        if found is not None and cpu in found:
            return found
        other = self.cpu_mask(directory + mask_name)
        if other is None or cpu not in other:
            return found or other
        if found is not None:
            reason = f"does not contain the CPU itself; {mask_name} is used"
            self.warn_cpu(cpu, f"{place}/{list_name}", reason)
        return other

    def names(self, path: str) -> list[str]:
        """The entries of a directory, sorted; empty if it is missing or unreadable."""
        try:
            return sorted(os.listdir(self.prefix + path))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ValueError) as error:
            self.warn(path, f"cannot be listed: {_reason(error)}")
            return []

    def link(self, path: str) -> str | None:
        """The target of a symbolic link, unresolved."""
        try:
            return os.readlink(self.prefix + path)
        except (OSError, ValueError):
            return None

    def exists(self, path: str) -> bool:
        """Whether *path* exists."""
        try:
            os.stat(self.prefix + path)
        except (OSError, ValueError):
            return False
        return True

    def numbered(self, path: str, stem: str, limit: int) -> list[int]:
        """The numbers of the entries ``<stem><number>`` in a directory, ascending.

        Numbers from *limit* on are ignored with a warning: no kernel has them.
        """
        found = []
        for name in self.names(path):
            digits = name[len(stem) :]
            if not name.startswith(stem) or not (digits.isascii() and digits.isdigit()):
                continue
            number = int(digits) if len(digits) < 20 else limit
            if number < limit:
                found.append(number)
            else:
                self.warn(f"{path}/{name[:60]}", f"ignored: {stem} {limit} and up do not exist")
        return sorted(set(found))


def parse_number(text: str) -> int | None:
    """The decimal number in a text, or ``None``."""
    stripped = text.strip(" \t\r\n\0")
    digits = stripped.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
        return None
    return int(stripped)


def shown(text: str) -> str:
    """A short, printable form of a file's content for messages."""
    return repr(text if len(text) <= 40 else text[:37] + "…")


def _reason(error: OSError | ValueError) -> str:
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
