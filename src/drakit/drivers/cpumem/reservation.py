"""Reservation of memory and hugepages for the system, in the kubelet's syntax.

``0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=1Gi`` reserves amounts on each NUMA node, as the kubelet's
``--reserved-memory`` does. ``2Gi`` or ``memory=2Gi,hugepages-2Mi=64Mi`` are totals for the machine, taken
evenly from its nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from drakit.core.quantity import Quantity, QuantityError
from drakit.drivers.cpumem.hugepages.sizes import parse_size
from drakit.drivers.cpumem.kinds import MEMORY, hugepages
from drakit.drivers.models.resource import CapacityKind
from drakit.machine.model import Machine, NumaNode

SYNTAX: Final = "0:memory=1Gi,hugepages-2Mi=64Mi;1:memory=1Gi, or a total like 2Gi"
_HUGEPAGES: Final = "hugepages-"
_LARGEST_NODE: Final = 1 << 16

Amounts = Mapping[CapacityKind, int]


@dataclass(frozen=True, slots=True)
class Reservation:
    """Amounts reserved for the system, per NUMA node or as totals, in bytes."""

    by_node: Mapping[int, Amounts] = field(default_factory=dict)
    total: Amounts = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Reservation:
        """Parse a reservation; empty for none. Raises ``ValueError`` with the invalid part and the syntax."""
        parts = [part.strip() for part in text.split(";") if part.strip()]
        if len(parts) == 1 and ":" not in parts[0]:
            whole = parts[0] if "=" in parts[0] else f"{MEMORY.name}={parts[0]}"
            return cls(total=_amounts(whole))
        by_node: dict[int, Amounts] = {}
        for part in parts:
            number, colon, amounts = part.partition(":")
            number = number.strip()
            if not colon or not (number.isascii() and number.isdigit() and len(number) <= 5):
                raise ValueError(f"{part!r} does not name a NUMA node; write {SYNTAX}")
            node = int(number)
            if node in by_node or node >= _LARGEST_NODE:
                raise ValueError(f"NUMA node {node} is duplicate or impossible in {text!r}")
            by_node[node] = _amounts(amounts)
        return cls(by_node=by_node)

    def on(self, machine: Machine) -> dict[int, dict[CapacityKind, int]]:
        """The reservation on each node of *machine*. Totals are taken from :func:`_system_nodes`.

        In equal shares, of which the first nodes get the rest; a node that has less than its share
        passes the difference on to the others.
        """
        found: dict[int, dict[CapacityKind, int]] = {node.id: {} for node in machine.numa_nodes}
        for node, amounts in self.by_node.items():
            if node in found:
                found[node] |= amounts
        for kind, total in self.total.items():
            room = {node.id: _has(node, kind) for node in _system_nodes(machine)}
            for number, share in _even_shares(total, kind.step, room).items():
                found[number][kind] = share
        return found

    def warnings(self, machine: Machine) -> Iterator[str]:
        """Reservations of more than *machine* has, one sentence each."""
        known = {node.id for node in machine.numa_nodes}
        for number in self.by_node:
            if number not in known:
                yield f"reservedMemory names NUMA node {number}, which this machine does not have"
        reserved = self.on(machine)
        for node in machine.numa_nodes:
            for kind, amount in reserved[node.id].items():
                if amount > _has(node, kind):
                    yield (
                        f"reservedMemory takes {kind.quantity(amount)} of {kind.name} on NUMA node "
                        f"{node.id}, which has {kind.quantity(_has(node, kind))}: nothing is left"
                    )


def _system_nodes(machine: Machine) -> list[NumaNode]:
    """Nodes that the system uses: those with CPUs and memory, or with memory if none has both."""
    with_memory = [node for node in machine.numa_nodes if node.memory_bytes]
    return [node for node in with_memory if node.cpus] or with_memory


def _has(node: NumaNode, kind: CapacityKind) -> int:
    if kind == MEMORY:
        return node.usable_bytes
    return sum(p.size_bytes * p.total for p in node.hugepages if p.size_bytes == kind.page_size)


def _even_shares(total: int, step: int, room: Mapping[int, int]) -> dict[int, int]:
    """*total* in equal shares of whole steps, none above its node's room unless all are full."""
    shares = dict.fromkeys(room, 0)
    left = total
    while left > 0 and (open_nodes := [n for n in shares if shares[n] + step <= room[n]]):
        share = max(step, left // len(open_nodes) // step * step)
        for node in open_nodes:
            taken = min(share, (room[node] - shares[node]) // step * step, -(-left // step) * step)
            shares[node] += taken
            left -= taken
            if left <= 0:
                break
    if left > 0 and shares:
        shares[next(iter(shares))] += left  # more than the machine has: causes a warning
    return shares


def _amounts(text: str) -> dict[CapacityKind, int]:
    found: dict[CapacityKind, int] = {}
    for item in text.split(","):
        name, equals, value = (piece.strip() for piece in item.partition("="))
        if not equals:
            raise ValueError(f"{item.strip()!r} is not KIND=AMOUNT; write {SYNTAX}")
        kind = _kind(name)
        if kind in found:
            raise ValueError(f"duplicate {name} in {text!r}")
        found[kind] = _bytes(name, value)
    return found


def _kind(name: str) -> CapacityKind:
    if name == MEMORY.name:
        return MEMORY
    if name.startswith(_HUGEPAGES):
        return hugepages(parse_size(name.removeprefix(_HUGEPAGES)))
    raise ValueError(f"{name!r} is neither memory nor hugepages-<size>; write {SYNTAX}")


def _bytes(name: str, text: str) -> int:
    try:
        amount = Quantity(text)
    except QuantityError as error:
        raise ValueError(f"{name}: {error}") from error
    if amount.nanos < 0 or amount.ceil() >= 1 << 62:
        raise ValueError(f"{name}={text} is not a valid amount of memory")
    return amount.ceil()
