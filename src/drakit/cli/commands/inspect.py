"""``drakit inspect``: total and allocatable CPUs, memory and hugepages of a node."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from drakit.cli.errors import CliError, cli_errors
from drakit.core.cpuset import EMPTY, CpuSet
from drakit.core.text import align, human_bytes
from drakit.draw.layout import wrap
from drakit.draw.terminal import BOLD, Terminal
from drakit.drivers.cpumem.driver import CpuMemDriver
from drakit.drivers.cpumem.hugepages.settings import configuration_warnings
from drakit.drivers.cpumem.hugepages.sizes import size_name
from drakit.drivers.cpumem.kinds import CPU
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.drivers.models.resource import CapacityKind
from drakit.kit.config.settings import ConfigurationError, add_flags, resolve
from drakit.local.node_programs import current_cpumem_driver
from drakit.machine.model import Machine, NumaNode
from drakit.machine.sysfs import Reader, WarningCollector

LAYOUT: Final = 1
"""Version of the document; added fields do not change it."""
PREFIX: Final = "DRA_CPUMEM"
NEEDED_CONTROLLERS: Final = ("cpuset", "memory", "hugetlb")
_POOLS: Final = "/sys/kernel/mm/hugepages"

EXAMPLES: Final = """\
examples:
  drakit inspect                                     this machine
  drakit inspect --root ./dump                       another machine: ./dump/sys and ./dump/proc
  drakit inspect --reserved-memory '0:memory=1Gi;1:memory=1Gi' --reserved-cpus 0,1
  drakit inspect --config /etc/drakit/config.yaml --output json

Totals come from the kernel's files; allocatable amounts are what dra-driver-cpumem would publish
with these settings. Nothing is changed. The exit code is 1 if there is nothing to offer.
"""

Document = dict[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EXAMPLES
    parser.add_argument("--root", metavar="DIR", help="read DIR/sys and DIR/proc instead of this machine's")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    add_flags(parser, CpuMemConfig, prefix=PREFIX)


def run(options: argparse.Namespace) -> int:
    """Print the resources; returns 1 if nothing would be offered."""
    config = _config(options)
    remedy = "run as the driver's user, or give another --state-dir"
    with cli_errors(OSError, remedy, "cannot read the driver's files: {}".format):
        driver = current_cpumem_driver(config, with_claims=options.root is None)
    document = inspect_document(driver, config.sysfs_root)
    if options.output == "json":
        print(json.dumps(document, indent=2))
    else:
        print(report(driver, document, Terminal.of(sys.stdout)), end="")
    return 0 if document["devices"] else 1


def _config(options: argparse.Namespace) -> CpuMemConfig:
    if options.root is not None:
        if not os.path.isdir(options.root):
            raise CliError(
                f"--root {options.root!r} is not a directory",
                "give the directory with the sys/ (and proc/) of the machine",
            )
        options.sysfs_root = os.path.abspath(options.root)
    with cli_errors(ConfigurationError, "`dra-driver-cpumem --help` lists every setting"):
        return resolve(CpuMemConfig, options, os.environ, prefix=PREFIX).config


def inspect_document(driver: CpuMemDriver, root: str = "/") -> Document:
    """Return everything that is shown as plain dictionaries, lists, strings and numbers."""
    machine = driver.cpus.machine
    return {
        "layoutVersion": LAYOUT,
        "kernel": machine.kernel_release,
        "architecture": machine.architecture,
        "cgroups": _cgroups(machine),
        "numaNodes": [_node(driver, node) for node in machine.numa_nodes],
        "hugepages": _machine_pools(machine, root),
        "devices": [
            {
                "name": device.name,
                "numaNodes": str(CpuSet(device.group.nodes)),
                "offered": _amounts(device.amounts.items()),
            }
            for device in driver.devices
        ],
        "warnings": [*driver.warnings, *configuration_warnings(driver.memory.config.hugepages, machine)],
    }


def _cgroups(machine: Machine) -> Document:
    cgroups = machine.cgroups
    return {
        "mode": cgroups.mode.value,
        "mount": cgroups.v2_mount,
        "controllers": sorted(cgroups.controllers),
        "missing": [name for name in NEEDED_CONTROLLERS if name not in cgroups.controllers],
        "hugetlbAccounting": "memory" if cgroups.memory_hugetlb_accounting else "separate",
    }


def _node(driver: CpuMemDriver, node: NumaNode) -> Document:
    memory = driver.memory
    (here,) = (each for each in driver.localities if each.numa_node == node.id)
    offered = {CPU: len(here.cpus)} if here.cpus else {}
    return {
        "id": node.id,
        "cpus": str(driver.cpus.machine.node_cpus.get(node.id, EMPTY)),
        "memoryOnly": here.memory_only,
        "distances": {str(other): distance for other, distance in sorted(node.distances.items())},
        "memory": {"total": node.memory_bytes, "free": node.memory_free_bytes, "hugetlb": node.hugetlb_bytes},
        "hugepages": [
            {
                "size": size_name(pool.size_bytes),
                "bytes": pool.size_bytes,
                "total": pool.total,
                "free": pool.free,
                "surplus": pool.surplus,
                "growth": memory.growth.get(node.id, {}).get(pool.size_bytes, 0),
                "withheld": memory.withheld(node.id, pool.size_bytes),
            }
            for pool in node.hugepages
        ],
        "reserved": _amounts(memory.reserved.get(node.id, {}).items()),
        "offered": {"cpus": str(here.cpus), **_amounts({**offered, **memory.offered[node.id]}.items())},
    }


def _amounts(amounts: Iterable[tuple[CapacityKind, int]]) -> dict[str, int]:
    return {kind.name: amount for kind, amount in amounts}


def _machine_pools(machine: Machine, root: str) -> list[Document]:
    """Return the pools of the whole machine, for which alone the kernel has the reserved pages.

    *Reserved* pages are promised to a mapping but not yet used; they count as free.
    """
    reader = Reader(root, WarningCollector())
    sizes = sorted({pool.size_bytes for node in machine.numa_nodes for pool in node.hugepages})
    found = []
    for size in sizes:
        pools = [p for n in machine.numa_nodes for p in n.hugepages if p.size_bytes == size]
        path = f"{_POOLS}/hugepages-{size // 1024}kB"
        found.append(
            {
                "size": size_name(size),
                "bytes": size,
                "total": sum(pool.total for pool in pools),
                "free": sum(pool.free for pool in pools),
                "surplus": sum(pool.surplus for pool in pools),
                "reserved": reader.number(f"{path}/resv_hugepages"),
                "overcommit": reader.number(f"{path}/nr_overcommit_hugepages"),
            }
        )
    return found


def report(driver: CpuMemDriver, document: Document, terminal: Terminal) -> str:
    """Return the same as text: memory, hugepages, devices and warnings."""
    machine = driver.cpus.machine
    blocks = [
        _system(document),
        _heading(terminal, "memory", _memory_rows(machine)),
        _heading(terminal, "hugepages", _pool_rows(document)),
        _heading(terminal, "offered by dra-driver-cpumem", _offer_rows(driver)),
        [line for text in document["warnings"] for line in wrap(f"note: {text}", terminal.width)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _system(document: Document) -> list[str]:
    cgroups = document["cgroups"]
    words = [f"cgroup {cgroups['mode']}"]
    if cgroups["mount"]:
        words.append(f"controllers {' '.join(cgroups['controllers']) or 'none'}")
        if cgroups["missing"]:
            words.append(f"missing: {' '.join(cgroups['missing'])}")
        charged = cgroups["hugetlbAccounting"] == "memory"
        words.append(f"hugepages {'count' if charged else 'do not count'} as memory")
    return [f"Linux {document['kernel'] or '?'} · {document['architecture']}", " · ".join(words)]


def _heading(terminal: Terminal, title: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table with its title; a heading without rows becomes ``title: none``."""
    return [terminal.paint(title, BOLD), *align(rows)] if len(rows) > 1 else [f"{title}: none"]


def _memory_rows(machine: Machine) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("NODE", "CPUS", "TOTAL", "FREE", "IN HUGEPAGES")]
    for node in machine.numa_nodes:
        cpus = machine.node_cpus.get(node.id, EMPTY)
        amounts = (node.memory_bytes, node.memory_free_bytes, node.hugetlb_bytes)
        rows.append((str(node.id), str(cpus) or "none", *map(_shown, amounts)))
    return rows


def _pool_rows(document: Document) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("NODE", "SIZE", "TOTAL", "FREE", "SURPLUS", "RESERVED", "MAY GROW", "WITHHELD")
    ]
    for node in document["numaNodes"]:
        for pool in node["hugepages"]:
            cells = [str(pool[key]) for key in ("size", "total", "free", "surplus")]
            rows.append((str(node["id"]), *cells, "", str(pool["growth"]), str(pool["withheld"])))
    for pool in document["hugepages"]:
        cells = [str(pool[key]) for key in ("size", "total", "free", "surplus")]
        reserved = "?" if pool["reserved"] is None else str(pool["reserved"])
        rows.append(("all", *cells, reserved, "", ""))
    return rows


def _offer_rows(driver: CpuMemDriver) -> list[tuple[str, ...]]:
    kinds = [kind for resource in driver.resources for kind in resource.kinds]
    kinds = [kind for kind in kinds if any(kind in each.amounts for each in driver.devices)]
    rows: list[tuple[str, ...]] = [("DEVICE", *(kind.name for kind in kinds))]
    for device in driver.devices:
        cells = []
        for kind in kinds:
            amount = device.amounts.get(kind, 0)
            cells.append(str(amount) if kind == CPU else _shown(amount))
        rows.append((device.name, *cells))
    return rows


def _shown(amount: int) -> str:
    return human_bytes(amount) if amount else "-"
