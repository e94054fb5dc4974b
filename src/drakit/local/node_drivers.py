"""CPUs that Kubernetes drivers hold on this machine, so that ``drakit run`` does not use them.

Both have their own checkpoint. The driver of a node does not know commands started by hand, so this works
in one direction only: a command is not started on CPUs that a claim of the driver holds at that time.
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
from drakit.kit.claims.checkpoint_files import CheckpointFile, checkpoint_files
from drakit.kit.claims.exclusion import LOCK
from drakit.kit.config.options import HostOptions

DRIVERS: Final = (CPU_DRIVER, CPUMEM_DRIVER)


@dataclass(frozen=True, slots=True)
class NodeDrivers:
    """Drivers that serve Kubernetes on this machine."""

    cpus: CpuSet = CpuSet()
    """The CPUs their claims hold now."""
    warnings: tuple[str, ...] = ()
    """Warnings for commands started here, one sentence each."""


def find(kubelet_root: str, drivers: Iterable[str] = DRIVERS) -> NodeDrivers:
    """Read the checkpoints below *kubelet_root*, as far as permitted.

    Raises ``OSError`` if a record cannot be decoded: the CPUs it holds are unknown, so any may be in use.
    """
    options = HostOptions(kubelet_root_dir=os.path.abspath(kubelet_root))
    cpus, warnings = CpuSet(), []
    for driver in drivers:
        directory = options.checkpoint_dir(driver)
        try:
            files = [each for each in checkpoint_files(directory) if each.path.endswith(".json")]
        except FileNotFoundError:
            continue
        except OSError as error:
            warnings.append(
                f"cannot determine the CPUs that the driver {driver} holds on this machine: {error}; if it "
                f"serves here, run as root or exclude its CPUs with --reserved-cpus"
            )
            continue
        cpus |= CpuSet.union(map(_held, files))
        if _serves(os.path.join(options.plugin_dir(driver), LOCK)):
            warnings.append(
                f"the driver {driver} serves Kubernetes on this machine: CPUs that it assigns from now on "
                f"may be used by this command too"
            )
    return NodeDrivers(cpus, tuple(warnings))


def _held(file: CheckpointFile) -> CpuSet:
    """The CPUs that a record holds in this boot. Raises ``OSError``."""
    if file.entry is None:
        raise OSError(
            "cannot read a Kubernetes driver's record of a claim, so its CPUs are unknown: "
            f"{file.path}: {file.error}"
        )
    return file.entry.exclusive("cpu") if file.entry.boot_id == boot_id() else CpuSet()


def _serves(lock: str) -> bool:
    try:
        return is_held(lock)
    except OSError:
        return False
