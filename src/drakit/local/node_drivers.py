"""What the Kubernetes drivers hold on this machine, for ``drakit run`` to keep off it.

Both keep their own checkpoint. The driver of a node does not know of commands started by hand, so
this goes one way only: a command is not started on CPUs that a claim of the driver holds then.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from drakit.core.bootrecord import boot_id
from drakit.core.cpuset import CpuSet
from drakit.core.filelock import is_held
from drakit.drivers.cpumem.kinds import DRIVER as CPUMEM_DRIVER
from drakit.drivers.models.cpus import DRIVER as CPU_DRIVER
from drakit.kit.claims import checkpoint as checkpoint
from drakit.kit.claims.exclusion import LOCK
from drakit.kit.config.options import HostOptions

DRIVERS: Final = (CPU_DRIVER, CPUMEM_DRIVER)


@dataclass(frozen=True, slots=True)
class NodeDrivers:
    """What is known of the drivers that serve Kubernetes on this machine."""

    cpus: CpuSet = CpuSet()
    """The CPUs their claims hold now."""
    warnings: tuple[str, ...] = ()
    """What their presence means for commands started here; one sentence each."""


def find(kubelet_root: str, drivers: Iterable[str] = DRIVERS) -> NodeDrivers:
    """Read the checkpoints below *kubelet_root* as far as we may.

    Raises ``OSError`` when a record is there and cannot be understood: the CPUs it holds are not
    known then, so none is certainly free.
    """
    options = HostOptions(kubelet_root_dir=os.path.abspath(kubelet_root))
    cpus, warnings = CpuSet(), []
    for driver in drivers:
        directory = options.checkpoint_dir(driver)
        try:
            names = sorted(os.listdir(directory))
        except FileNotFoundError:
            continue
        except OSError as error:
            warnings.append(
                f"cannot tell whether the driver {driver} holds CPUs of this machine: {error}; "
                f"where it serves, run as root or keep off its CPUs with --reserved-cpus"
            )
            continue
        for name in names:
            if name.endswith(".json") and not name.startswith("."):
                cpus |= _held(os.path.join(directory, name))
        if _serves(os.path.join(options.plugin_dir(driver), LOCK)):
            warnings.append(
                f"the driver {driver} serves Kubernetes on this machine: CPUs it hands out from now "
                f"on are not kept away from this command"
            )
    return NodeDrivers(cpus, tuple(warnings))


def _held(path: str) -> CpuSet:
    """The CPUs that a record holds in this boot. Raises ``OSError``."""
    try:
        with open(path, "rb") as file:
            entry = checkpoint.decode(file.read())
    except FileNotFoundError:
        return CpuSet()  # unprepared meanwhile
    except ValueError as error:
        raise OSError(
            f"a Kubernetes driver's record of a claim cannot be read, and with it which CPUs are "
            f"held: {path}: {error}"
        ) from error
    return entry.exclusive("cpu") if entry.boot_id == boot_id() else CpuSet()


def _serves(lock: str) -> bool:
    try:
        return is_held(lock)
    except OSError:
        return False
