"""Node made of this machine for ``drakit run`` and ``drakit ps``, and its claims as text."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from string import ascii_uppercase

from drakit.cli.errors import CliError, cli_errors
from drakit.core.cpuset import CpuSet
from drakit.core.objects import DeviceClass
from drakit.core.text import cpu_list, human_bytes
from drakit.draw.machine_map import draw
from drakit.draw.marks import Mark
from drakit.draw.memory_map import Bar, memory_lines
from drakit.draw.terminal import Terminal
from drakit.drivers.models.node_driver import NodeDriver
from drakit.kit.driver import PreparedClaim
from drakit.local import node_drivers
from drakit.local.local_drivers import CPU_DRIVER, local_driver
from drakit.local.node import LocalNode, state_directory
from drakit.local.node_drivers import NodeDrivers
from drakit.machine.discover import discover


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that determine what this machine offers."""
    group = parser.add_argument_group("what this machine offers (settings of the drivers)")
    group.add_argument("--cpu-device-mode", choices=("grouped", "individual"), default="grouped")
    group.add_argument("--group-by", choices=("numanode", "socket", "machine"), default="numanode")
    group.add_argument("--reserved-cpus", metavar="LIST", default="", help="CPUs that claims cannot use")
    group.add_argument(
        "--min-shared-cpus", metavar="N", type=int, default=1,
        help="number of CPUs that are never claimed (default: 1)",
    )  # fmt: skip
    group.add_argument(
        "--reserved-memory", metavar="TEXT", default="100Mi",
        help="memory and hugepages that claims cannot use: 2Gi, or 0:memory=1Gi,hugepages-2Mi=64Mi;… "
        "(default: 100Mi)",
    )  # fmt: skip
    group.add_argument(
        "--state-dir", metavar="DIR",
        help="directory of the claims (default: /run/drakit, or the user's runtime directory)",
    )  # fmt: skip
    group.add_argument(
        "--kubelet-root-dir", metavar="DIR", default="/var/lib/kubelet",
        help="where to look for claims of Kubernetes drivers, whose CPUs are not used "
        "(default: /var/lib/kubelet)",
    )  # fmt: skip


def local_node(
    options: argparse.Namespace, classes: Iterable[DeviceClass] = (), driver_name: str = CPU_DRIVER
) -> tuple[NodeDriver, LocalNode]:
    """Return this machine as a node. CPUs outside this process's affinity are not offered."""
    machine = discover("/")
    if not machine.cpus:
        raise CliError("no CPU found below /sys", "run `drakit topology --warnings` for details")
    try:
        directory = options.state_dir or state_directory()
        held = find_node_drivers(options).cpus & machine.online
        driver = local_driver(
            driver_name,
            machine,
            directory,
            reserved_cpus=CpuSet.parse(options.reserved_cpus) | held,
            reserved_memory=options.reserved_memory,
            cpu_device_mode=options.cpu_device_mode,
            group_by=options.group_by,
            min_shared_cpus=options.min_shared_cpus,
        )
        return driver, LocalNode(driver, directory, classes)
    except ValueError as error:
        raise CliError(str(error), "see --help") from None
    except OSError as error:
        raise CliError(f"cannot store claims: {error}", "give another --state-dir") from None


def find_node_drivers(options: argparse.Namespace) -> NodeDrivers:
    """Return what Kubernetes drivers hold on this machine. Raises :class:`CliError`."""
    with cli_errors(OSError, "let the driver run until the claim's pod is gone, or restart the node"):
        return node_drivers.find(options.kubelet_root_dir)


def print_claims(
    driver: NodeDriver, claims: Sequence[PreparedClaim], terminal: Terminal, *, bars: bool
) -> None:
    """Draw *claims* on the machine; with *bars* also the memory and hugepages they hold."""
    marks = {
        cpu: mark
        for claim, mark in zip(claims, _marks(claims), strict=True)
        for cpu in claim.exclusive("cpu")
    }
    print(draw(driver.cpus.machine, marks, terminal), end="")
    if bars and driver.node_amounts:
        print("\n".join(memory_lines(claim_bars(driver, claims), terminal)))


def claim_bars(driver: NodeDriver, claims: Sequence[PreparedClaim]) -> list[Bar]:
    """Return the memory and hugepages that *driver* offers, with the shares of *claims*."""
    held: dict[str, list[tuple[Mark, int]]] = {}
    for claim, mark in zip(claims, _marks(claims), strict=True):
        for key, amount in amounts_of(claim).items():
            held.setdefault(key, []).append((mark, amount))
    return [
        Bar(f"node {each.numa_node} {each.resource}", each.offered, held.get(each.key, []))
        for each in driver.node_amounts
    ]


def _marks(claims: Sequence[PreparedClaim]) -> list[Mark]:
    return [Mark(ascii_uppercase[n % 26], claim.name, n) for n, claim in enumerate(claims)]


def amounts_of(claim: PreparedClaim) -> dict[str, int]:
    """Return the memory and hugepages that *claim* holds, in bytes by key: ``numa0/memory``."""
    found: dict[str, int] = {}
    for prepared in claim.devices:
        for key, amount in prepared.amounts.items():
            found[key] = found.get(key, 0) + amount
    return found


def held_words(claim: PreparedClaim) -> str:
    """Return what *claim* holds: ``CPUs 2-3, 256 MiB memory on node 0``."""
    cpus = claim.exclusive("cpu")
    words = [cpu_list(cpus)] if cpus else []
    for key, amount in amounts_of(claim).items():
        node, _, kind = key.partition("/")
        what = "memory" if kind == "memory" else f"in {kind.removeprefix('hugepages')} pages"
        words.append(f"{human_bytes(amount)} {what} on node {node.removeprefix('numa')}")
    return ", ".join(words) or "nothing"
