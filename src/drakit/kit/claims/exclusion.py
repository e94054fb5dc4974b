"""Keeping drivers of the same things off one node: two would hand out each CPU twice.

Every instance of a driver holds a shared lock on a file in its plugin directory as long as it serves:
shared, because a rolling update runs two instances of one driver. It takes its own lock first and
then looks whether a rival holds theirs. Of two rivals that start at once at least one sees the
other, so never both serve. The kernel drops the lock when its holder dies, however it dies.

A rival that does not serve may still hold things: its pods run on. Its checkpoint files tell. A file
that is damaged, in quarantine, or written by a newer version may hold anything, so it counts. A file
or directory that cannot be read ends the start with an error; the kubelet starts the driver again.

A driver with a checkpoint elsewhere (``stateDir``) leaves a note in its plugin directory, with the boot it
is of, so that its rivals find the checkpoint. Limits: a driver older than this leaves none, and a rival
that cannot see the noted directory (not mounted into its container) does not start during that boot.
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
"""Directory of notes in the plugin directory: one for each checkpoint that is elsewhere."""


class _Note(msgspec.Struct, frozen=True):
    directory: str
    boot: str


class ConflictingDriverError(ValueError):
    """Another driver has the same things on this node; says which, and the way out."""


@contextlib.contextmanager
def exclude_other_drivers(
    options: HostOptions, driver: str, rivals: Sequence[str]
) -> Iterator[None]:
    """Serve as *driver* while none of *rivals* serves, nor holds anything, on this node.

    Without rivals nothing is asked of anybody. Raises :class:`ConflictingDriverError`, and ``OSError`` when the
    plugin directory cannot be written.
    """
    if not rivals:
        yield
        return
    directory = options.plugin_dir(driver)
    atomicfile.ensure_directory(directory)
    path = os.path.join(directory, LOCK)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits only while a rival looks
        for rival in rivals:
            _check(options, driver, rival)
        _leave_note(options, driver)
        yield
    finally:
        os.close(descriptor)


def _check(options: HostOptions, driver: str, rival: str) -> None:
    directory = options.plugin_dir(rival)
    if is_held(os.path.join(directory, LOCK)):
        raise ConflictingDriverError(
            f"the driver {rival} serves on this node and hands out the same things as {driver}: both "
            f"would give them away. Remove one of the two from this node (node selectors of their "
            f"DaemonSets keep them apart)"
        )
    for checkpoint in _checkpoints(directory):
        left = _claims_left(checkpoint)
        if left:
            raise ConflictingDriverError(
                f"{left} claims of the driver {rival} still hold things on this node that {driver} "
                f"would give away again (in {checkpoint}). Let {rival} serve until their pods are gone "
                f"(drain the node), or restart the node; if none of their pods runs any more, remove "
                f"{directory}" + ("" if checkpoint.startswith(directory) else f" and {checkpoint}")
            )


def _leave_note(options: HostOptions, driver: str) -> None:
    """Tell later rivals where the checkpoint is, unless it is where they look anyway."""
    checkpoint, directory = (
        os.path.abspath(options.checkpoint_dir(driver)),
        options.plugin_dir(driver),
    )
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
    """Where the driver with that plugin directory kept claims in this boot."""
    found = [os.path.join(directory, "claims")]
    for name in _names(os.path.join(directory, NOTES)):
        if name.startswith(".") or not name.endswith(".json"):
            continue
        path = os.path.join(directory, NOTES, name)
        try:
            with open(path, "rb") as file:
                note = msgspec.json.decode(file.read(), type=_Note)
        except ValueError as error:
            raise ConflictingDriverError(
                f"{path} should tell where a driver kept its claims, but is damaged ({error}); if "
                f"none of its pods runs any more, remove it"
            ) from error
        if note.boot != boot_id():
            continue  # no container of that boot is left
        if not os.path.isdir(note.directory):
            raise ConflictingDriverError(
                f"the driver of {directory} kept its claims in {note.directory}, which cannot be seen "
                f"from here. Mount it at the same place, or restart the node; if none of its pods runs "
                f"any more, remove {path}"
            )
        found.append(note.directory)
    return found


def _claims_left(checkpoint: str) -> int:
    """How many claims hold something, or may."""
    left = 0
    for name in _names(checkpoint):
        if name.startswith("."):
            continue
        if name.endswith(".json"):
            left += _holds(os.path.join(checkpoint, name))
        elif name.endswith(".json.unreadable"):
            left += 1
    return left


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def _holds(path: str) -> bool:
    """Whether a claim's record names exclusive things; one of an earlier boot holds none any more."""
    try:
        with open(path, "rb") as file:
            entry = decode(file.read())
    except FileNotFoundError:
        return False
    except (ValueError, RecursionError):  # damaged, or of a newer version
        return True  # better too careful than two tenants on one CPU
    return entry.boot_id == boot_id() and any(prepared.exclusive for prepared in entry.devices)
