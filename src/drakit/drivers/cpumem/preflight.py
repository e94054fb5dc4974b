"""What a node must have for memory and hugepages to be guaranteed, looked at once.

For ``dra-driver-cpumem --check`` and ``drakit doctor``. Nothing is changed, least of all the container
runtime: what is missing is named, with the way to get it.
"""

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
"""What ``statfs`` calls a cgroup2 file system (``CGROUP2_SUPER_MAGIC``)."""
CONTROLLERS: Final = {
    "cpuset": "CPUs and memory nodes",
    "memory": "memory protection",
    "hugetlb": "hugepage limits",
}
_LEAST_KERNEL: Final = (5, 9)
_ADVISED_KERNEL: Final = (5, 15)

Magic = Callable[[str], int | None]


def findings(
    config: CpuMemConfig, kubelet_config: str | None = None, magic: Magic | None = None
) -> Iterator[CheckResult]:
    """All findings about this node, quick ones first. *magic* tells the kind of a file system."""
    machine = discover(config.sysfs_root)
    yield from about_cgroups(config, machine, magic or filesystem_magic)
    yield about_kernel(machine)
    yield from about_hugepages(config, machine)
    yield from about_kubelet(config, KubeletFiles.of(config, kubelet_config))


# -- cgroups and kernel ------------------------------------------------------------------------------


def filesystem_magic(path: str) -> int | None:
    """The kind of the file system at *path* (``statfs``); None when there is nothing."""
    import ctypes

    # struct statfs begins with f_type, a machine word; 256 bytes are room for all of it.
    buffer = (ctypes.c_long * 32)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), ctypes.byref(buffer)) != 0:
        return None
    return int(buffer[0]) & 0xFFFFFFFF


def about_cgroups(config: CpuMemConfig, machine: Machine, magic: Magic) -> Iterator[CheckResult]:
    """Whether cgroup v2 is there with all controllers, down to the kubelet's pods."""
    root = config.cgroup_root
    if not root:
        yield CheckResult(
            "cgroups",
            "",
            note="cgroupRoot is empty: pods get neither hugepages nor memory protection",
            remedy="set cgroupRoot to where cgroup v2 is mounted",
        )
        return
    found = magic(root)
    if found != CGROUP2_MAGIC:
        told = "is not there" if found is None else f"is no cgroup v2 (magic {found:#x})"
        yield CheckResult(
            "cgroups",
            "",
            f"{root} {told}; the node's hierarchy is {machine.cgroups.mode.value}",
            "boot with systemd.unified_cgroup_hierarchy=1 (hybrid and v1 hosts cannot limit "
            "hugepages by pod), or set cgroupRoot to where cgroup v2 is mounted",
        )
        return
    yield CheckResult("cgroups", f"{root} is cgroup v2")
    yield from _about_controllers(config, machine)
    if machine.cgroups.memory_hugetlb_accounting:
        yield CheckResult(
            "cgroups", "hugepages count as memory (memory_hugetlb_accounting); heeded"
        )


def _about_controllers(config: CpuMemConfig, machine: Machine) -> Iterator[CheckResult]:
    pods = pods_cgroup(config.cgroup_root)
    place = config.cgroup_root if pods is None else pods
    there = _words(os.path.join(place, "cgroup.controllers"))
    for name, purpose in CONTROLLERS.items():
        if name in there:
            continue
        yield CheckResult(
            "cgroups",
            "",
            f"the controller {name} is missing in {place}: no {purpose}",
            f"see that the kernel has it (/proc/cgroups) and that {name} stands in "
            f"cgroup.subtree_control of every cgroup above; the kubelet enables it when it starts",
        )
    if pods is None:
        yield CheckResult(
            "cgroups",
            "",
            note=f"no kubepods below {config.cgroup_root}: the kubelet has not started here yet",
            remedy="look again when it runs",
        )
        return
    if not os.access(pods, os.W_OK):
        yield CheckResult(
            "cgroups", "", f"{pods} is not writable", "run as root, with /sys/fs/cgroup mounted rw"
        )
    if "hugetlb" in there:
        yield from _about_reservation_limits(machine, pods)


def _about_reservation_limits(machine: Machine, pods: str) -> Iterator[CheckResult]:
    sizes = sorted({pool.size_bytes for node in machine.numa_nodes for pool in node.hugepages})
    missing = [
        size_name(size)
        for size in sizes
        if not os.path.exists(f"{pods}/hugetlb.{kernel_size_name(size)}.rsvd.max")
    ]
    if missing:
        yield CheckResult(
            "hugepages",
            "",
            note=f"the kernel does not limit reservations of {', '.join(missing)} pages (rsvd.max): "
            "who takes too many is killed by SIGBUS instead of getting ENOMEM",
            remedy="use Linux 5.7 or later",
        )


def pods_cgroup(root: str) -> str | None:
    """The kubelet's ``kubepods`` below *root*, in either spelling, also under a ``cgroupRoot``."""
    name = re.compile(r"(?:.*-)?kubepods(?:\.slice)?")
    level = [root]
    for _depth in range(3):
        below = [
            entry.path
            for place in level
            for entry in _directories(place)
            if not entry.name.startswith(".")
        ]
        for path in sorted(below):
            if name.fullmatch(os.path.basename(path)):
                return path
        level = below
    return None


def _directories(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            return [entry for entry in found if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def about_kernel(machine: Machine) -> CheckResult:
    """Whether the kernel's files mean what the driver needs."""
    found = re.match(r"(\d+)\.(\d+)", machine.kernel_release)
    if found is None:
        return CheckResult(
            "kernel", "", note="its release is not known", remedy="see that it is 5.15 or later"
        )
    version = (int(found[1]), int(found[2]))
    release = machine.kernel_release
    if version < _LEAST_KERNEL:
        return CheckResult(
            "kernel",
            "",
            f"Linux {release} is too old: memory is not protected down a tree of cgroups",
            "use 5.9 or later, better 5.15",
        )
    if version < _ADVISED_KERNEL:
        return CheckResult(
            "kernel",
            "",
            note=f"Linux {release}: pages do not follow when cpuset.mems changes",
            remedy="5.15 or later moves them",
        )
    return CheckResult("kernel", f"Linux {release}")


def about_hugepages(config: CpuMemConfig, machine: Machine) -> Iterator[CheckResult]:
    """Whether configured pools can be, and may be written."""
    settings = config.hugepages
    for doubt in configuration_warnings(settings, machine):
        yield CheckResult("hugepages", "", note=doubt, remedy="change the setting")
    if not settings:
        return
    place = os.path.join(config.sysfs_root, "sys/devices/system/node")
    for node in machine.numa_nodes:
        wanted = {*settings.pools.of(node.id), *settings.growth.of(node.id)}
        for pool in node.hugepages:
            name = f"hugepages-{pool.size_bytes // 1024}kB/nr_hugepages"
            path = f"{place}/node{node.id}/hugepages/{name}"
            if pool.size_bytes in wanted and not os.access(path, os.W_OK):
                yield CheckResult(
                    "hugepages",
                    "",
                    f"{path} is not writable: pools cannot be sized",
                    f"mount the host's {place} writable into the driver's container (the chart does "
                    f"where hugepagePools or hugepageGrowth is set)",
                )


# -- the kubelet ---------------------------------------------------------------------------------------


def about_kubelet(config: CpuMemConfig, files: KubeletFiles) -> Iterator[CheckResult]:
    """Managers that hand out the same things, and what the driver leaves to the kubelet."""
    kubelet, problem = files.read_or_reason()
    if kubelet is None:
        yield CheckResult(
            "kubelet",
            "",
            note=problem,
            remedy="see that cpuManagerPolicy, memoryManagerPolicy and topologyManagerPolicy are "
            "none; --kubelet-config says where the file is",
        )
        return
    root = os.path.normpath(config.kubelet_root_dir)
    yield _manager(
        "cpuManagerPolicy", kubelet.cpu_manager_policy, "CPUs", f"{root}/cpu_manager_state"
    )
    yield _manager(
        "memoryManagerPolicy",
        kubelet.memory_manager_policy,
        "memory",
        f"{root}/memory_manager_state",
    )
    topology = kubelet.topology_manager_policy or "none"
    if topology.lower() != "none":
        yield CheckResult(
            "kubelet",
            "",
            note=f"topologyManagerPolicy is {topology}: claims take no part in it",
            remedy="claims are aligned by the driver; keep the policy only for other devices",
        )
    ownership = decide(kubelet, mapped=config.publish_node_allocatable_resource_mapping)
    for reason in ownership.reasons:
        yield CheckResult(
            "kubelet", "", note=reason, remedy="the driver keeps away from these files"
        )


def _manager(key: str, policy: str | None, what: str, state: str) -> CheckResult:
    if (policy or "none").lower() == "none":
        return CheckResult("kubelet", f"{key} is none")
    return CheckResult(
        "kubelet",
        "",
        f"{key} is {policy}: it hands out the same {what}",
        f"drain the node, set it to none, delete {state}, restart the kubelet",
    )


def _words(path: str) -> set[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return set(file.read(4096).split())
    except OSError:
        return set()
