"""How NUMA nodes are put together to groups: one by one, by socket, or all of a machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from drakit.core.cpuset import CpuSet
from drakit.drivers.cpu.config import GroupBy
from drakit.drivers.cpumem.inventory import Inventory, Stock
from drakit.drivers.cpumem.kinds import Kind


@dataclass(frozen=True, slots=True)
class Zone:
    """A group of NUMA nodes from which amounts are handed out together."""

    name: str
    """``numa0``, ``socket0``, ``machine``: stable for ever."""
    stocks: tuple[Stock, ...]
    socket: int | None

    @property
    def node(self) -> int | None:
        """The NUMA node, if it is one: without that there is nothing to be aligned by."""
        return self.stocks[0].node if len(self.stocks) == 1 else None

    @property
    def memory_only(self) -> bool:
        """Whether no CPU is here."""
        return all(stock.memory_only for stock in self.stocks)

    @property
    def cpus(self) -> CpuSet:
        """The CPUs to give."""
        return CpuSet.union(stock.cpus for stock in self.stocks)

    @property
    def amounts(self) -> dict[Kind, int]:
        """What there is of each kind in all, CPUs first, pages by size."""
        found: dict[Kind, int] = {}
        for stock in self.stocks:
            for kind, amount in stock.amounts.items():
                found[kind] = found.get(kind, 0) + amount
        ordered = sorted(found, key=lambda kind: (kind.page_size or 0, kind.name))
        return {kind: found[kind] for kind in ordered}


Grouping = Callable[[Inventory], tuple[Zone, ...]]


def by_numa_node(inventory: Inventory) -> tuple[Zone, ...]:
    """One zone per NUMA node that has anything to give; those without CPUs come last.

    The scheduler takes the first that fits: memory without CPUs shall not be what it tries first.
    """
    near = [_alone(stock) for stock in inventory.stocks if not stock.memory_only]
    return _useful([*near, *_bare_memory(inventory)])


def by_socket(inventory: Inventory) -> tuple[Zone, ...]:
    """One zone per socket. Bare memory belongs to no socket and stays on its own."""
    members: dict[int, list[Stock]] = {}
    for stock in inventory.stocks:
        if stock.socket is not None:
            members.setdefault(stock.socket, []).append(stock)
    sockets = [
        Zone(f"socket{number}", tuple(stocks), number) for number, stocks in sorted(members.items())
    ]
    return _useful([*sockets, *_bare_memory(inventory)])


def by_machine(inventory: Inventory) -> tuple[Zone, ...]:
    """All nodes with CPUs as one zone. Bare memory, being much slower, stays on its own."""
    stocks = tuple(stock for stock in inventory.stocks if not stock.memory_only)
    sockets = {stock.socket for stock in stocks}
    machine = [Zone("machine", stocks, sockets.pop() if len(sockets) == 1 else None)]
    return _useful([*(machine if stocks else ()), *_bare_memory(inventory)])


GROUPINGS: Final[Mapping[GroupBy, Grouping]] = {
    "numanode": by_numa_node,
    "socket": by_socket,
    "machine": by_machine,
}


def _alone(stock: Stock) -> Zone:
    return Zone(f"numa{stock.node}", (stock,), stock.socket)


def _bare_memory(inventory: Inventory) -> list[Zone]:
    return [_alone(stock) for stock in inventory.stocks if stock.memory_only]


def _useful(zones: list[Zone]) -> tuple[Zone, ...]:
    return tuple(zone for zone in zones if zone.amounts)
