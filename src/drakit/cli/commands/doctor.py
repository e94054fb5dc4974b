"""``drakit doctor``: what this node lacks for a driver, and how to get it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from drakit.cli.driver_settings import (
    DriverSettings,
    add_kubelet_config,
    add_options,
    ask_driver,
    driver_settings,
)
from drakit.cli.node_runtime import about_node
from drakit.core.cpuset import CpuSet, CpuSetError
from drakit.drivers.cpu.config import CpuSettings
from drakit.drivers.cpumem import preflight
from drakit.drivers.cpumem.driver import CpuMem
from drakit.drivers.cpumem.qos.kubeletconfig import KubeletFiles
from drakit.drivers.models.cpus import NodeCpus
from drakit.kit.preflight import CheckResult, findings
from drakit.machine.model import CgroupMode, Machine

EXAMPLES: Final = """\
examples:
  drakit doctor                                   this node, for dra-driver-cpu with its defaults
  drakit doctor --driver cpumem                   the same for dra-driver-cpumem
  drakit doctor --config /etc/drakit/config.yaml --kubeconfig ~/.kube/config
  drakit doctor --output json
  kubectl -n kube-system exec ds/dra-driver-cpu -- drakit doctor --pid 1

Nothing is changed. [+] is fine, [!] is worth knowing, [-] keeps the driver from serving.
The exit code is 0 without a [-], else 1.
"""

Level = Literal["good", "note", "problem"]
_SIGNS: Final[dict[Level, str]] = {"good": "[+]", "note": "[!]", "problem": "[-]"}


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing looked at: how grave, about what, in words, and the way out if there is one."""

    level: Level
    subject: str
    text: str
    way_out: str = ""

    def __str__(self) -> str:
        line = f"{_SIGNS[self.level]} {self.subject}: {self.text}"
        return f"{line}\n      {self.way_out}" if self.way_out else line

    def document(self) -> dict[str, str]:
        """For programs."""
        return {
            "level": self.level,
            "subject": self.subject,
            "text": self.text,
            "wayOut": self.way_out,
        }


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EXAMPLES
    parser.add_argument("--output", choices=("text", "json"), default="text")
    add_kubelet_config(parser)
    add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Look at everything and print it; 0 when nothing is missing, else 1."""
    settings = driver_settings(options)
    remarks = list(examine(settings, options.kubelet_config, options.pid))
    ready = all(remark.level != "problem" for remark in remarks)
    if options.output == "json":
        document: dict[str, Any] = {
            "node": settings.node,
            "ready": ready,
            "remarks": [remark.document() for remark in remarks],
        }
        print(json.dumps(document, indent=2))
    else:
        for remark in remarks:
            print(remark)
        print("ready to serve" if ready else "not ready: see the lines marked [-]")
    return 0 if ready else 1


def examine(
    settings: DriverSettings, kubelet_config: str | None = None, pid: int | None = None
) -> Iterator[Remark]:
    """All remarks about this node, quick ones first; *pid* is a running driver. Changes nothing."""
    config = settings.config
    try:
        driver = settings.driver()
    except OSError as error:
        yield Remark("problem", "driver", str(error), "run as root, or as the driver's user")
        return
    cpus = driver.cpus
    yield from about_machine(cpus)
    files = KubeletFiles.of(config, kubelet_config)
    if isinstance(driver, CpuMem):
        yield from about_memory(driver, kubelet_config)
    else:
        yield about_cgroups(cpus.machine)
        yield about_kubelet(config, files)
    yield from about_reserved_cpus(config, files)
    for finding in about_node(config, pid):
        yield _checked(finding, config)
    for finding in findings(lambda: driver, config, settings.node):
        yield _checked(finding, config)


# -- what was found ----------------------------------------------------------------------------------


def about_machine(node: NodeCpus) -> Iterator[Remark]:
    """The CPUs, what the configuration makes of them, and what the kernel's files left in doubt."""
    machine = node.machine
    if not machine.cpus:
        yield Remark(
            "problem", "machine", "no CPU was found", "set sysfsRoot to where sys/ and proc/ are"
        )
        return
    yield Remark(
        "good",
        "machine",
        f"CPUs {machine.online} online, {node.reserved or 'none'} reserved, "
        f"{node.offered or 'none'} offered, {len(machine.numa_nodes)} NUMA nodes",
    )
    for warning in node.warnings:
        level: Level = "note" if node.offered else "problem"
        yield Remark(level, "configuration", warning, "change the setting")
    for doubt in machine.warnings:
        yield Remark("note", "machine", f"{doubt.file}: {doubt.reason}")


def about_cgroups(machine: Machine) -> Remark:
    """The cgroup version; without any the kernel's cpusets cannot be compared with intent."""
    cgroups = machine.cgroups
    if cgroups.mode is CgroupMode.NONE:
        return Remark(
            "note",
            "cgroups",
            "none are mounted here: what containers really have cannot be compared",
            "mount /sys/fs/cgroup, or set cgroupRoot to where it is",
        )
    if cgroups.mode in (CgroupMode.V1, CgroupMode.HYBRID):
        return Remark(
            "note",
            "cgroups",
            f"{cgroups.mode.value}: CPUs are pinned, but kubelets from 1.35 on do not start here unless "
            "failCgroupV1 is false, and dra-driver-cpumem needs v2",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )
    return Remark("good", "cgroups", cgroups.mode.value)


def about_memory(driver: CpuMem, kubelet_config: str | None = None) -> Iterator[Remark]:
    """What memory and hugepages need of the kernel and of the kubelet."""
    inventory = driver.inventory
    for warning in inventory.reservation.doubts(inventory.machine):
        yield Remark("note", "configuration", warning, "change the setting")
    for finding in preflight.findings(inventory.config, kubelet_config):
        yield _checked(finding, inventory.config)


def about_kubelet(config: CpuSettings, files: KubeletFiles) -> Remark:
    """The kubelet's CPU manager, which must be off."""
    kubelet, problem = files.read_or_reason()
    if kubelet is None:
        return Remark(
            "note",
            "kubelet",
            problem,
            "see that cpuManagerPolicy is none; --kubelet-config says where the file is",
        )
    policy = kubelet.cpu_manager_policy or "none"
    if policy == "none":
        return Remark("good", "kubelet", f"cpuManagerPolicy is none ({files})")
    state = os.path.join(os.path.normpath(config.kubelet_root_dir), "cpu_manager_state")
    return Remark(
        "problem",
        "kubelet",
        f"cpuManagerPolicy is {policy} ({files}): it hands out the same CPUs",
        f"drain the node, set it to none, delete {state}, restart the kubelet",
    )


def about_reserved_cpus(config: CpuSettings, files: KubeletFiles) -> Iterator[Remark]:
    """Whether the kubelet reserves the same CPUs; nothing where its settings cannot be read."""
    kubelet, _ = files.read_or_reason()
    reserved = (kubelet and kubelet.reserved_system_cpus) or ""
    if reserved and _as_set(reserved) != config.reserved:
        yield Remark(
            "note",
            "kubelet",
            f"reservedSystemCPUs is {reserved}, the driver's reservedCPUs "
            f"{config.reserved_cpus or 'empty'}",
            "give both the same list: with its CPU manager off the kubelet only counts them",
        )


def _as_set(text: str) -> CpuSet | None:
    try:
        return CpuSet.parse(text)
    except CpuSetError:
        return None


def _checked(finding: CheckResult, config: CpuSettings) -> Remark:
    if not finding.problem and not finding.note:
        return Remark("good", finding.subject, finding.detail)
    if not finding.problem:
        return Remark("note", finding.subject, finding.note, finding.remedy)
    if finding.subject == "health pages":
        served = _served(config.bind_address)
        if served is not None:
            return served
    return Remark("problem", finding.subject, finding.problem, finding.remedy)


def _served(bind_address: str) -> Remark | None:
    """What the driver says that has the address of the health pages; None when it is another's."""
    try:
        status, text = ask_driver(bind_address, "/readyz")
    except OSError:
        return None
    missing = [line for line in text.splitlines() if line.startswith("[-] ")]
    if status == 200:
        return Remark("good", "driver", f"runs on {bind_address} and is ready")
    if not missing:
        return None
    told = "; ".join(line.removeprefix("[-] ") for line in missing)
    return Remark("problem", "driver", f"runs on {bind_address}, not ready: {told}", "see its log")
