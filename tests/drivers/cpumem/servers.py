"""Random servers: nodes of uneven memory, some without CPUs, pools of several page sizes."""

from __future__ import annotations

from hypothesis import strategies as st

from drakit.machine.model import HugepagePool, Machine
from drakit.testing.synthetic import CoreSpec, NumaSpec, assemble
from tests.drivers.cpumem.amounts import GI, MI

SIZES = (64 << 10, 2 * MI, 32 * MI, GI)


@st.composite
def servers(draw: st.DrawFn) -> Machine:
    """One to four nodes with CPUs in one or two sockets, up to two without, with sparse numbers."""
    numbers = draw(st.lists(st.integers(0, 40), min_size=1, max_size=5, unique=True))
    bare = numbers[draw(st.integers(1, len(numbers))) :]
    cores = [
        CoreSpec(socket=position % 2, node=node, threads=draw(st.integers(1, 2)))
        for position, node in enumerate(numbers)
        if node not in bare
        for _ in range(draw(st.integers(1, 4)))
    ]
    return assemble(cores, nodes={node: draw(_node()) for node in numbers})


@st.composite
def _node(draw: st.DrawFn) -> NumaSpec:
    memory = draw(st.sampled_from([GI, 4 * GI, 4 * GI + 3 * MI, 16 * GI]))
    sizes = draw(st.lists(st.sampled_from(SIZES), max_size=3, unique=True))
    pools, left = [], memory
    for size in sizes:
        total = draw(st.integers(0, min(40, left // 2 // size)))
        left -= total * size
        surplus = draw(st.integers(0, total // 4))
        free = draw(st.integers(surplus, total))
        pools.append(HugepagePool(size, total, free - surplus, surplus))
    return NumaSpec(memory_bytes=memory, hugepages=tuple(pools))
