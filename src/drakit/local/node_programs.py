"""Driver programs of this node, for commands that inspect a node without changing it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from drakit.drivers.cpu.driver import cpu_driver
from drakit.drivers.cpu.program import program as cpu_program
from drakit.drivers.cpumem import preflight
from drakit.drivers.cpumem.discovery import read_driver
from drakit.drivers.cpumem.driver import CpuMemDriver
from drakit.drivers.cpumem.kinds import DRIVER as CPUMEM
from drakit.drivers.cpumem.program import program as cpumem_program
from drakit.drivers.cpumem.qos.kubeletconfig import KubeletFiles
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.drivers.models.cpu_settings import CpuSettings
from drakit.drivers.models.node_driver import NodeDriver
from drakit.kit.claims.checkpoint_files import read_checkpoint
from drakit.kit.preflight import CheckResult
from drakit.kit.program import Program
from drakit.machine.discover import discover
from drakit.machine.model import CgroupMode


class NodeProgram(NamedTuple):
    """A driver program: the driver for the current machine, and what it needs of the node.

    Both functions take the configuration and the path of the kubelet's configuration (None: the
    default), only read, and raise ``OSError`` if a file cannot be read.
    """

    program: Program[Any]
    driver: Callable[[Any, str | None], NodeDriver]
    checks: Callable[[Any, str | None], Iterator[CheckResult]]


def current_cpumem_driver(
    config: CpuMemConfig, kubelet_config: str | None = None, *, with_claims: bool = True
) -> CpuMemDriver:
    """Return the driver of CPUs, memory and hugepages for the machine and the claims of now."""
    claims = read_checkpoint(config.checkpoint_dir(CPUMEM)).entries if with_claims else ()
    return read_driver(config, claims, kubelet_config)


def _cpu_checks(config: CpuSettings, kubelet_config: str | None) -> Iterator[CheckResult]:
    """Check the cgroup version and that the kubelet's CPU manager is off."""
    cgroups = discover(config.sysfs_root).cgroups
    if cgroups.mode is CgroupMode.NONE:
        yield preflight.noted(
            "cgroups",
            "not mounted here: the cpusets of containers cannot be verified",
            "mount /sys/fs/cgroup, or set cgroupRoot to its mount point",
        )
    elif cgroups.mode in (CgroupMode.V1, CgroupMode.HYBRID):
        yield preflight.noted(
            "cgroups",
            f"{cgroups.mode.value}: CPUs are pinned, but the kubelet of 1.35 and later does not "
            "start unless failCgroupV1 is false, and dra-driver-cpumem needs v2",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )
    else:
        yield CheckResult("cgroups", cgroups.mode.value)
    files = KubeletFiles.of(config, kubelet_config)
    kubelet, error = files.read_or_reason()
    policy = "none" if kubelet is None else kubelet.cpu_manager_policy or "none"
    if kubelet is None:
        yield preflight.noted(
            "kubelet", error, "check that cpuManagerPolicy is none, or give the file with --kubelet-config"
        )
    elif policy == "none":
        yield CheckResult("kubelet", f"cpuManagerPolicy is none ({files})")
    else:
        state = os.path.join(os.path.normpath(config.kubelet_root_dir), "cpu_manager_state")
        yield preflight.failed(
            "kubelet",
            f"cpuManagerPolicy is {policy} ({files}): the kubelet assigns the same CPUs",
            f"drain the node, set it to none, delete {state}, restart the kubelet",
        )


NODE_PROGRAMS: Final = {
    "cpu": NodeProgram(
        cpu_program(), lambda config, _: cpu_driver(config, discover(config.sysfs_root)), _cpu_checks
    ),
    "cpumem": NodeProgram(cpumem_program(), current_cpumem_driver, preflight.findings),
}
