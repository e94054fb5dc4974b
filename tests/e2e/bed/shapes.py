"""VM shapes: data in ``shapes.toml``, here as values, QEMU arguments and expectations."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from .pins import HERE


@dataclass(frozen=True, slots=True)
class NumaNode:
    """Memory and CPUs of one NUMA node; no CPUs means memory only."""

    mib: int
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """CPUs and memory of a guest."""

    name: str
    sockets: int
    cores: int
    threads: int
    l3: str
    numa: tuple[NumaNode, ...]
    hugepages: Mapping[str, int]

    @property
    def cpu_count(self) -> int:
        """All CPUs of the machine."""
        return self.sockets * self.cores * self.threads

    @property
    def mib(self) -> int:
        """All memory of the machine."""
        return sum(node.mib for node in self.numa)

    def cpu_places(self) -> dict[int, tuple[int, int, int]]:
        """Each CPU's (socket, core, thread), in the order QEMU numbers them."""
        places = product(range(self.sockets), range(self.cores), range(self.threads))
        return dict(enumerate(places))

    def siblings(self, cpu: int) -> frozenset[int]:
        """The CPUs of the same core, ``cpu`` included."""
        places = self.cpu_places()
        return frozenset(c for c, place in places.items() if place[:2] == places[cpu][:2])

    def socket_mates(self, cpu: int) -> frozenset[int]:
        """The CPUs of the same socket, ``cpu`` included."""
        places = self.cpu_places()
        return frozenset(c for c, place in places.items() if place[0] == places[cpu][0])

    def l3_mates(self, cpu: int) -> frozenset[int]:
        """The CPUs that share a last-level cache with ``cpu``."""
        return self.siblings(cpu) if self.l3 == "core" else self.socket_mates(cpu)

    def qemu_arguments(self) -> list[str]:
        """Machine, CPUs and memory on QEMU's command line."""
        # QEMU's default is one L3 per socket; `smp-cache` moves it to the core.
        machine = "pc" if self.l3 == "socket" else f"pc,smp-cache.0.cache=l3,smp-cache.0.topology={self.l3}"
        words = ["-machine", machine, "-m", f"{self.mib}M"]
        layout = f"sockets={self.sockets},cores={self.cores},threads={self.threads}"
        words += ["-smp", f"{self.cpu_count},{layout}"]
        for index, node in enumerate(self.numa):
            words += ["-object", f"memory-backend-ram,id=memory{index},size={node.mib}M"]
            cpus = "".join(f",cpus={cpu}" for cpu in node.cpus)
            words += ["-numa", f"node,nodeid={index}{cpus},memdev=memory{index}"]
        return words

    def kernel_arguments(self) -> str:
        """Hugepages on the kernel's command line."""
        return " ".join(f"hugepagesz={size} hugepages={count}" for size, count in self.hugepages.items())


def load_shapes() -> dict[str, Shape]:
    """All shapes by name."""
    data = tomllib.loads((HERE / "shapes.toml").read_text())
    return {
        name: Shape(
            name=name,
            **entry["cpus"],
            numa=tuple(NumaNode(n["mib"], parse_cpus(n.get("cpus", ""))) for n in entry["numa"]),
            hugepages=entry["hugepages"],
        )
        for name, entry in data.items()
    }


def parse_cpus(text: str) -> tuple[int, ...]:
    """Parse the kernel's list format, ``0-3,8``; the empty string is the empty set."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)
