"""Keeping drivers of the same things off one node: two would hand out each CPU twice.

Every instance of a driver holds a shared lock on a file in its plugin directory as long as it serves:
shared, because a rolling update runs two instances of one driver. It takes its own lock first and
then looks whether a rival holds theirs. Of two rivals that start at once at least one sees the
other, so never both serve. The kernel drops the lock when its holder dies, however it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
from collections.abc import Iterator, Sequence
from typing import Final

from drakit.core import atomicfile
from drakit.core.filelock import is_held
from drakit.kit.ledger import boot_id, decode
from drakit.kit.options import HostOptions

LOCK: Final = "serving.lock"


class RivalError(ValueError):
    """Another driver has the same things on this node; says which, and the way out."""


@contextlib.contextmanager
def serving_without(options: HostOptions, driver: str, rivals: Sequence[str]) -> Iterator[None]:
    """Serve as *driver* while none of *rivals* serves, nor holds anything, on this node.

    Without rivals nothing is asked of anybody. Raises :class:`RivalError`, and ``OSError`` when the
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
        yield
    finally:
        os.close(descriptor)


def _check(options: HostOptions, driver: str, rival: str) -> None:
    directory = options.plugin_dir(rival)
    if is_held(os.path.join(directory, LOCK)):
        raise RivalError(
            f"the driver {rival} serves on this node and hands out the same things as {driver}: both "
            f"would give them away. Remove one of the two from this node (node selectors of their "
            f"DaemonSets keep them apart)"
        )
    left = sum(_holds(path) for path in glob.iglob(os.path.join(directory, "claims", "*.json")))
    if left:
        raise RivalError(
            f"{left} claims of the driver {rival} still hold things on this node that {driver} would "
            f"give away again. Let {rival} serve until their pods are gone (drain the node), or "
            f"restart the node; if none of their pods runs any more, remove {directory}"
        )


def _holds(path: str) -> bool:
    """Whether a claim's record names exclusive things; one of an earlier boot holds none any more."""
    try:
        with open(path, "rb") as file:
            entry = decode(file.read())
    except FileNotFoundError:
        return False
    except ValueError:
        return True  # better too careful than two tenants on one CPU
    return entry.boot_id == boot_id() and any(grant.exclusive for grant in entry.grants)
