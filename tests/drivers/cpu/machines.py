"""Random machines: asymmetric, with offline CPUs, sparse numbers, 1 to 8 threads per core."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.machine.model import Machine
from drakit.testing.synthetic import CoreSpec, Numbering, Surroundings, assemble

CHIPLETS = "caches inside nodes inside sockets"
SUB_NUMA = "nodes inside caches inside sockets"
ONE_NODE = "sockets inside nodes"
CROSSED = "anything anywhere, as broken firmware tells it"
NESTED = (CHIPLETS, SUB_NUMA, ONE_NODE)


def _place(nesting: str, socket: int, middle: int, inner: int) -> tuple[int, int]:
    """Node (on the machine) and cache (in the socket) of a core, as the nesting has it."""
    if nesting == CHIPLETS:
        return socket * 8 + middle, middle * 8 + inner
    if nesting == SUB_NUMA:
        return socket * 64 + middle * 8 + inner, middle
    if nesting == ONE_NODE:
        return socket // 2, middle
    return (socket + middle * inner) % 3, middle ^ inner


@st.composite
def machines(
    draw: st.DrawFn, *, cpus: int = 12, threads: int = 8, nestings: tuple[str, ...] = NESTED
) -> Machine:
    """A machine of at most *cpus* CPUs; every core has its own number of threads, up to *threads*."""
    nesting = draw(st.sampled_from(nestings))
    widest = draw(st.integers(1, min(threads, cpus)))
    uneven = draw(st.booleans())
    places = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))
    specs: list[CoreSpec] = []
    total = 0
    for socket, middle, inner in draw(st.lists(places, min_size=1, max_size=max(1, cpus))):
        width = draw(st.integers(1, widest)) if uneven else widest
        if total + width > cpus:
            break
        total += width
        node, llc = _place(nesting, socket, middle, inner)
        specs.append(CoreSpec(socket=socket, node=node, llc=llc, threads=width))
    specs = specs or [CoreSpec()]
    holes = draw(st.sets(st.integers(0, 10), max_size=3))
    around = Surroundings(numbering=draw(st.sampled_from(Numbering)), holes=CpuSet(holes))
    machine = assemble(specs, surroundings=around)
    offline = draw(st.sets(st.sampled_from(list(machine.present)), max_size=3))
    if len(offline) == len(machine.present) or not offline:
        return machine
    return assemble(specs, surroundings=replace(around, offline=CpuSet(offline)))


@st.composite
def large_machines(draw: st.DrawFn) -> Machine:
    """Machines of servers' sizes, up to 1 024 CPUs, with a few cores and threads missing."""
    specs: list[CoreSpec] = []
    width = draw(st.sampled_from([1, 2, 2, 4, 8]))
    cores = draw(st.integers(1, 8))
    llcs, nodes, sockets = draw(st.tuples(*[st.sampled_from([1, 2, 3, 4])] * 3))
    for socket in range(sockets):
        for node in range(nodes):
            specs += [
                CoreSpec(socket=socket, node=socket * nodes + node, llc=node * llcs + llc, threads=width)
                for llc in range(llcs)
                for _ in range(cores)
            ]
    while sum(core.threads for core in specs) > 1024:
        del specs[len(specs) // 2 :]
    dropped = draw(st.sets(st.integers(0, len(specs) - 1), max_size=len(specs) // 4))
    specs = [core for index, core in enumerate(specs) if index not in dropped]
    machine = assemble(specs)
    offline = draw(st.sets(st.sampled_from(list(machine.present)), max_size=4))
    if len(offline) == len(machine.present):
        return machine
    return assemble(specs, surroundings=Surroundings(offline=CpuSet(offline)))


@st.composite
def subset(draw: st.DrawFn, cpus: CpuSet) -> CpuSet:
    """Any part of *cpus*, large ones more often than a fair coin would give."""
    numbers = list(cpus)
    density = draw(st.sampled_from([0.3, 0.6, 0.9, 1.0]))
    random = draw(st.randoms(use_true_random=False))
    return CpuSet(cpu for cpu in numbers if random.random() < density)
