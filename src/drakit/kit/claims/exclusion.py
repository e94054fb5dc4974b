"""Mutual exclusion of drivers that assign the same resources: two would assign each CPU twice.

Every instance of a driver holds a shared lock on a file in its plugin directory while it serves: shared,
because a rolling update runs two instances of one driver. It takes its own lock first and then checks the
locks of conflicting drivers. If two of them start at once, at least one sees the other, so never both serve.

A conflicting driver that does not run may still hold resources, because its pods keep running: its
checkpoint files show that. A file that is damaged, quarantined, or written by a newer version may hold
anything, so it counts; one that cannot be read is an error. A driver with its checkpoint elsewhere
(``stateDir``) records the directory and the boot in its plugin directory. Limits: older versions do not,
and a driver that cannot access the recorded directory does not start during that boot.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from drakit.core import atomicfile
from drakit.core.bootrecord import boot_id
from drakit.core.filelock import is_held
from drakit.kit.claims.checkpoint import decode
from drakit.kit.config.options import HostOptions

LOCK: Final = "serving.lock"
NOTES: Final = "ledgers"
"""Directory in the plugin directory with a record of each checkpoint that is elsewhere."""


class _Note(msgspec.Struct, frozen=True):
    directory: str
    boot: str


class ConflictingDriverError(ValueError):
    """Another driver assigns the same resources on this node; the text states which, and what to do."""


@contextlib.contextmanager
def exclude_other_drivers(options: HostOptions, driver: str, others: Sequence[str]) -> Iterator[None]:
    """Serve as *driver* while none of *others* runs, or holds anything, on this node.

    Raises :class:`ConflictingDriverError`, and ``OSError`` if the plugin directory cannot be written.
    """
    if not others:
        yield
        return
    directory = options.plugin_dir(driver)
    atomicfile.ensure_directory(directory)
    path = os.path.join(directory, LOCK)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits only while another driver checks
        for other in others:
            _check(options, driver, other)
        _leave_note(options, driver)
        yield
    finally:
        os.close(descriptor)


def _check(options: HostOptions, driver: str, other: str) -> None:
    directory = options.plugin_dir(other)
    if is_held(os.path.join(directory, LOCK)):
        raise ConflictingDriverError(
            f"the driver {other} serves on this node and assigns the same resources as {driver}. Remove "
            f"one of the two from this node (use node selectors in their DaemonSets)"
        )
    for checkpoint in _checkpoints(directory):
        left = _claims_left(checkpoint)
        if left:
            raise ConflictingDriverError(
                f"{left} claims of the driver {other} still hold resources on this node that {driver} "
                f"would assign again (in {checkpoint}). Run {other} until their pods are gone "
                f"(drain the node), or restart the node; if none of their pods is running, remove "
                f"{directory}" + ("" if checkpoint.startswith(directory) else f" and {checkpoint}")
            )


def _leave_note(options: HostOptions, driver: str) -> None:
    """Record where the checkpoint is, unless it is in the default place."""
    directory = options.plugin_dir(driver)
    checkpoint = os.path.abspath(options.checkpoint_dir(driver))
    if checkpoint == os.path.join(directory, "claims"):
        return
    data = msgspec.json.encode(_Note(directory=checkpoint, boot=boot_id()))
    path = os.path.join(directory, NOTES, f"{zlib.crc32(checkpoint.encode()):08x}.json")
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        if file.read() == data:
            return
    atomicfile.ensure_directory(os.path.dirname(path))
    atomicfile.write_atomic(path, data, 0o644)


def _checkpoints(directory: str) -> list[str]:
    """The checkpoints in this boot of the driver with that plugin directory."""
    found = [os.path.join(directory, "claims")]
    for path in _files(os.path.join(directory, NOTES), ".json"):
        try:
            with open(path, "rb") as file:
                note = msgspec.json.decode(file.read(), type=_Note)
        except ValueError as error:
            raise ConflictingDriverError(
                f"{path}, which records where a driver keeps its claims, is damaged ({error}); if "
                f"none of its pods is running, remove it"
            ) from error
        if note.boot != boot_id():
            continue  # no container of that boot is left
        if not os.path.isdir(note.directory):
            raise ConflictingDriverError(
                f"the driver of {directory} keeps its claims in {note.directory}, which is not accessible "
                f"here. Mount it at the same path, or restart the node; if none of its pods is "
                f"running, remove {path}"
            )
        found.append(note.directory)
    return found


def _claims_left(checkpoint: str) -> int:
    """The number of claims that hold something, or may."""
    left = sum(map(_holds, _files(checkpoint, ".json")))
    return left + len(_files(checkpoint, ".json.unreadable"))


def _files(directory: str, suffix: str) -> list[str]:
    """The paths of the files with this suffix, except hidden ones; none if the directory does not exist."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    return [os.path.join(directory, each) for each in names if each.endswith(suffix) and each[0] != "."]


def _holds(path: str) -> bool:
    """Whether a claim's record holds exclusive resources; one of an earlier boot no longer does."""
    try:
        with open(path, "rb") as file:
            entry = decode(file.read())
    except FileNotFoundError:
        return False
    except (ValueError, RecursionError):  # damaged, or of a newer version
        return True  # rather too careful than two claims on one CPU
    return entry.boot_id == boot_id() and any(prepared.exclusive for prepared in entry.devices)
