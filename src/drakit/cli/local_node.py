"""What ``drakit run`` and ``drakit ps`` have in common: this machine as a node, and its picture."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from drakit.cli.checkpoint_view import look
from drakit.cli.errors import Problem
from drakit.core.cpuset import CpuSet
from drakit.core.objects import DeviceClass, ResourceClaim
from drakit.draw.machine_tree import human_bytes
from drakit.draw.marks import Mark
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.driver import cpu_driver
from drakit.drivers.cpumem.driver import cpumem_driver
from drakit.drivers.cpumem.kinds import DRIVER as CPUMEM
from drakit.drivers.cpumem.others import held_by_others
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.drivers.models.cpus import NodeCpus
from drakit.drivers.models.node_driver import NodeDriver
from drakit.kit.driver import PreparedClaim
from drakit.local import node_drivers as nodedrivers
from drakit.local.node import LocalNode, state_directory
from drakit.local.node_drivers import NodeDrivers
from drakit.machine.discover import discover
from drakit.machine.model import Machine

CPU_DRIVER: Final = "dra.cpu"
LocalDriver = NodeDriver


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say how this machine is offered."""
    group = parser.add_argument_group("how this machine is offered (as for the drivers)")
    group.add_argument("--cpu-device-mode", choices=("grouped", "individual"), default="grouped")
    group.add_argument("--group-by", choices=("numanode", "socket", "machine"), default="numanode")
    group.add_argument("--reserved-cpus", metavar="LIST", default="", help="CPUs nobody gets")
    group.add_argument(
        "--min-shared-cpus", metavar="N", type=int, default=1, help="CPUs never given away (1)"
    )
    group.add_argument(
        "--reserved-memory",
        metavar="TEXT",
        default="100Mi",
        help="memory and hugepages nobody gets: 2Gi, or 0:memory=1Gi,hugepages-2Mi=64Mi;… (100Mi)",
    )
    group.add_argument(
        "--state-dir", metavar="DIR", help="where claims are kept (default: /run/drakit, or yours)"
    )
    group.add_argument(
        "--kubelet-root-dir",
        metavar="DIR",
        default="/var/lib/kubelet",
        help="where to look for claims of Kubernetes drivers, to keep off their CPUs "
        "(/var/lib/kubelet)",
    )


def local_node(
    options: argparse.Namespace, classes: Iterable[DeviceClass] = (), driver_name: str = CPU_DRIVER
) -> tuple[LocalDriver, LocalNode]:
    """A node made of this machine. CPUs outside this process's own affinity are not offered."""
    machine = discover("/")
    if not machine.cpus:
        raise Problem("no CPU could be found below /sys", "drakit topology --warnings says why")
    try:
        directory = options.state_dir or state_directory()
    except OSError as error:
        raise Problem(f"cannot keep claims: {error}", "or give another --state-dir") from None
    try:
        driver = _driver(options, machine, driver_name, directory)
    except ValueError as error:
        raise Problem(str(error), "see --help") from None
    try:
        return driver, LocalNode(driver, directory, classes)
    except OSError as error:
        raise Problem(f"cannot keep claims: {error}", "give another --state-dir") from None


def _driver(
    options: argparse.Namespace, machine: Machine, name: str, directory: str
) -> LocalDriver:
    reserved = CpuSet.parse(options.reserved_cpus)
    # In a container or a cpuset the rest of the machine is visible, but not ours.
    foreign = machine.online - CpuSet(os.sched_getaffinity(0))
    foreign |= node_drivers(options).cpus & machine.online
    if name == CPUMEM:
        config = CpuMemConfig(
            group_by=options.group_by,
            reserved_cpus=str(reserved | foreign),
            min_shared_cpus=options.min_shared_cpus,
            hold_back_shared=True,
            reserved_memory=options.reserved_memory,
        )
        others = held_by_others(machine, _entries(directory), "")
        return cpumem_driver(config, machine, held_by_others=others)
    return cpu_driver(
        CpuConfig(
            cpu_device_mode=options.cpu_device_mode,
            group_by=options.group_by,
            reserved_cpus=str(reserved | foreign),
            min_shared_cpus=options.min_shared_cpus,
            hold_back_shared=True,
        ),
        machine,
    )


def node_drivers(options: argparse.Namespace) -> NodeDrivers:
    """What Kubernetes drivers hold on this machine. Raises :class:`Problem`."""
    try:
        return nodedrivers.find(options.kubelet_root_dir)
    except OSError as error:
        raise Problem(
            str(error),
            "let the driver serve the node until the claim's pod is gone, or restart the node",
        ) from None


def _entries(directory: str) -> tuple[PreparedClaim, ...]:
    """The claims held now; a directory that cannot be read is told when it is used."""
    try:
        return look(directory).entries
    except OSError:
        return ()


def driver_for(claims: Iterable[ResourceClaim], classes: Iterable[DeviceClass]) -> str:
    """The driver whose classes *claims* name. Raises :class:`Problem` when they name both.

    A class of the file's own tells by its selectors.
    """
    own = {each.metadata.name: each for each in classes}
    found = set()
    for claim in claims:
        for request in claim.spec.devices.requests:
            wishes = (*request.first_available, *([request.exactly] if request.exactly else ()))
            found |= {_driver_of(wish.device_class_name, own) for wish in wishes}
    if found == {CPU_DRIVER, CPUMEM}:
        raise Problem(
            f"the claims are of both {CPU_DRIVER} and {CPUMEM}",
            f"a machine is offered by one of them: {CPUMEM} has CPUs, too",
        )
    return CPUMEM if CPUMEM in found else CPU_DRIVER


def _driver_of(class_name: str, classes: Mapping[str, DeviceClass]) -> str:
    made = classes.get(class_name)
    if made is None:
        return CPUMEM if class_name.startswith(CPUMEM) else CPU_DRIVER
    told = " ".join(each.cel.expression for each in made.spec.selectors if each.cel is not None)
    return CPUMEM if CPUMEM in told else CPU_DRIVER


def cpus_of(driver: LocalDriver) -> NodeCpus:
    """The CPUs of the machine as a driver offers them."""
    return driver.cpus


def entry_marks(entries: Sequence[PreparedClaim]) -> list[Mark]:
    """A letter and a color for each claim, in their order."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return [Mark(letters[n % 26], entry.name, n) for n, entry in enumerate(entries)]


def marks_for(entries: Iterable[PreparedClaim]) -> dict[int, Mark]:
    """The marks of claims, by CPU."""
    marks: dict[int, Mark] = {}
    listed = list(entries)
    for entry, mark in zip(listed, entry_marks(listed), strict=True):
        marks.update(dict.fromkeys(entry.exclusive("cpu"), mark))
    return marks


def amounts_of(entry: PreparedClaim) -> dict[str, int]:
    """The memory and hugepages a claim holds, in bytes, by key: ``numa0/memory``."""
    found: dict[str, int] = {}
    for prepared in entry.devices:
        for key, amount in prepared.amounts.items():
            found[key] = found.get(key, 0) + amount
    return found


def held_words(entry: PreparedClaim) -> str:
    """What a claim holds: ``CPUs 2-3, 256 MiB memory on node 0``."""
    cpus = entry.exclusive("cpu")
    words = [f"CPUs {cpus}"] if cpus else []
    for key, amount in amounts_of(entry).items():
        node, _, kind = key.partition("/")
        what = "memory" if kind == "memory" else f"in {kind.removeprefix('hugepages')} pages"
        words.append(f"{human_bytes(amount)} {what} on node {node.removeprefix('numa')}")
    return ", ".join(words) or "nothing"
