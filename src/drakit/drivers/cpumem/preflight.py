"""Checks of a node for memory and hugepage guarantees, for ``--check`` and ``drakit doctor``. Reads only."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Final

from drakit.drivers.cpumem.hugepages.settings import configuration_warnings
from drakit.drivers.cpumem.hugepages.sizes import kernel_size_name, size_name
from drakit.drivers.cpumem.qos.kubeletconfig import KubeletFiles
from drakit.drivers.cpumem.qos.ownership import decide
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.kit.preflight import CheckResult
from drakit.machine.discover import discover
from drakit.machine.model import Machine

CGROUP2_MAGIC: Final = 0x63677270
"""The type of a cgroup2 file system in ``statfs`` (``CGROUP2_SUPER_MAGIC``)."""
CONTROLLERS: Final = {
    "cpuset": "CPUs and memory nodes",
    "memory": "memory protection",
    "hugetlb": "hugepage limits",
}
_LEAST_KERNEL: Final = (5, 9)
_ADVISED_KERNEL: Final = (5, 15)
_KUBEPODS: Final = re.compile(r"(?:.*-)?kubepods(?:\.slice)?")

Magic = Callable[[str], int | None]


def findings(
    config: CpuMemConfig, kubelet_config: str | None = None, magic: Magic | None = None
) -> Iterator[CheckResult]:
    """All results for this node, quick ones first. *magic* reads the type of a file system."""
    machine = discover(config.sysfs_root)
    yield from about_cgroups(config, machine, magic or filesystem_magic)
    yield about_kernel(machine.kernel_release)
    yield from about_hugepages(config, machine)
    yield from about_kubelet(config, KubeletFiles.of(config, kubelet_config))


def failed(subject: str, problem: str, remedy: str) -> CheckResult:
    """A requirement that is not met."""
    return CheckResult(subject, "", problem, remedy)


def noted(subject: str, note: str, remedy: str = "") -> CheckResult:
    """Something worth knowing."""
    return CheckResult(subject, "", note=note, remedy=remedy)


def filesystem_magic(path: str) -> int | None:
    """The type of the file system at *path* (``statfs``); None if it does not exist."""
    import ctypes

    # struct statfs begins with f_type, a machine word; it has less than 256 bytes.
    buffer = (ctypes.c_long * 32)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), ctypes.byref(buffer)) != 0:
        return None
    return int(buffer[0]) & 0xFFFFFFFF


def about_cgroups(config: CpuMemConfig, machine: Machine, magic: Magic) -> Iterator[CheckResult]:
    """Check that cgroup v2 is mounted and has all controllers, also for the kubelet's pods."""
    root, mount = config.cgroup_root, "set cgroupRoot to the mount point of cgroup v2"
    if not root:
        text = "cgroupRoot is empty: pods get neither hugepages nor memory protection"
        yield noted("cgroups", text, mount)
        return
    found = magic(root)
    if found != CGROUP2_MAGIC:
        state = "does not exist" if found is None else f"is not cgroup v2 (magic {found:#x})"
        yield failed(
            "cgroups",
            f"{root} {state}; the node's hierarchy is {machine.cgroups.mode.value}",
            "boot with systemd.unified_cgroup_hierarchy=1 (hybrid and v1 hosts cannot limit "
            f"hugepages by pod), or {mount}",
        )
        return
    yield CheckResult("cgroups", f"{root} is cgroup v2")
    yield from _about_controllers(root, machine)
    if machine.cgroups.memory_hugetlb_accounting:
        text = "hugepages are accounted as memory (memory_hugetlb_accounting); taken into account"
        yield CheckResult("cgroups", text)


def _about_controllers(root: str, machine: Machine) -> Iterator[CheckResult]:
    pods = pods_cgroup(root)
    found = _words(os.path.join(pods or root, "cgroup.controllers"))
    for name, purpose in CONTROLLERS.items():
        if name not in found:
            yield failed(
                "cgroups",
                f"the controller {name} is missing in {pods or root}: no {purpose}",
                f"check that the kernel has it (/proc/cgroups) and that {name} is in "
                f"cgroup.subtree_control of every parent; the kubelet enables it when it starts",
            )
    if pods is None:
        text = f"no kubepods below {root}: the kubelet has not started yet"
        yield noted("cgroups", text, "check again when it runs")
        return
    if not os.access(pods, os.W_OK):
        text = f"{pods} is not writable"
        yield failed("cgroups", text, "run as root, with /sys/fs/cgroup mounted rw")
    sizes = {pool.size_bytes for node in machine.numa_nodes for pool in node.hugepages}
    missing = [
        size_name(size)
        for size in sorted(sizes)
        if not os.path.exists(f"{pods}/hugetlb.{kernel_size_name(size)}.rsvd.max")
    ]
    if missing and "hugetlb" in found:
        yield noted(
            "hugepages",
            f"the kernel does not limit reservations of {', '.join(missing)} pages (rsvd.max): a "
            "process that exceeds its limit is killed by SIGBUS instead of getting ENOMEM",
            "use Linux 5.7 or later",
        )


def pods_cgroup(root: str) -> str | None:
    """The kubelet's ``kubepods`` below *root*, in either spelling, also under a ``cgroupRoot``."""
    level = [root]
    for _depth in range(3):
        level = sorted(path for parent in level for path in _directories(parent))
        for path in level:
            if _KUBEPODS.fullmatch(os.path.basename(path)):
                return path
    return None


def _directories(path: str) -> list[str]:
    try:
        with os.scandir(path) as found:
            return [each.path for each in found if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def about_kernel(release: str) -> CheckResult:
    """Check the kernel's version."""
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None:
        return noted("kernel", "its release is not known", "check that it is 5.15 or later")
    version = (int(found[1]), int(found[2]))
    if version < _LEAST_KERNEL:
        text = f"Linux {release} is too old: it does not protect memory of nested cgroups"
        return failed("kernel", text, "use 5.9 or later, better 5.15")
    if version < _ADVISED_KERNEL:
        text = f"Linux {release} does not migrate pages when cpuset.mems changes"
        return noted("kernel", text, "use 5.15 or later")
    return CheckResult("kernel", f"Linux {release}")


def about_hugepages(config: CpuMemConfig, machine: Machine) -> Iterator[CheckResult]:
    """Check that configured pools fit the machine and are writable."""
    settings = config.hugepages
    for doubt in configuration_warnings(settings, machine):
        yield noted("hugepages", doubt, "change the setting")
    directory = os.path.join(config.sysfs_root, "sys/devices/system/node")
    for node in machine.numa_nodes:
        for size in sorted({*settings.pools.of(node.id), *settings.growth.of(node.id)}):
            pool = f"{directory}/node{node.id}/hugepages/hugepages-{size // 1024}kB"
            exists = any(each.size_bytes == size for each in node.hugepages)
            if exists and not os.access(f"{pool}/nr_hugepages", os.W_OK):
                yield failed(
                    "hugepages",
                    f"{pool}/nr_hugepages is not writable: the pool cannot be resized",
                    f"mount the host's {directory} writable into the driver's container (the chart "
                    f"does so if hugepagePools or hugepageGrowth is set)",
                )


def about_kubelet(config: CpuMemConfig, files: KubeletFiles) -> Iterator[CheckResult]:
    """Check for managers of the same resources, and report what is left to the kubelet."""
    kubelet, error = files.read_or_reason()
    if kubelet is None:
        yield noted(
            "kubelet",
            error,
            "check that cpuManagerPolicy, memoryManagerPolicy and topologyManagerPolicy are none; "
            "--kubelet-config sets the file",
        )
        return
    root = os.path.normpath(config.kubelet_root_dir)
    for name, policy, resource in (
        ("cpu", kubelet.cpu_manager_policy, "CPUs"),
        ("memory", kubelet.memory_manager_policy, "memory"),
    ):
        if (policy or "none").lower() == "none":
            yield CheckResult("kubelet", f"{name}ManagerPolicy is none")
        else:
            yield failed(
                "kubelet",
                f"{name}ManagerPolicy is {policy}: it assigns the same {resource}",
                f"drain the node, set it to none, delete {root}/{name}_manager_state, restart the kubelet",
            )
    topology = kubelet.topology_manager_policy or "none"
    if topology.lower() != "none":
        text = f"topologyManagerPolicy is {topology}: it does not consider claims"
        yield noted("kubelet", text, "the driver aligns claims; keep the policy for other devices")
    ownership = decide(kubelet, mapped=config.publish_node_allocatable_resource_mapping)
    for reason in ownership.reasons:
        yield noted("kubelet", reason, "the driver does not manage these files")


def _words(path: str) -> set[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return set(file.read(4096).split())
    except OSError:
        return set()
