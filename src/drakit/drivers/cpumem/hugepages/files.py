"""The kernel's files of hugepage pools, below any root."""

from __future__ import annotations

import os

from drakit.drivers.cpumem.hugepages.settings import PoolKey
from drakit.machine.model import HugepagePool

_NODES = "sys/devices/system/node"
_MACHINE = "sys/kernel/mm/hugepages"


class SysfsPools:
    """The pools of the machine whose ``sys`` and ``proc`` are below *root*. Methods raise ``OSError``."""

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def read(self, key: PoolKey) -> HugepagePool:
        """Count the pages; total last, so that pages freed meanwhile count as used, not as free."""
        place = self._place(key)
        free = _number(f"{place}/free_hugepages")
        surplus = _number(f"{place}/surplus_hugepages")
        total = _number(f"{place}/nr_hugepages")
        return HugepagePool(key.size, total, min(free, total), min(surplus, total))

    def write(self, key: PoolKey, pages: int) -> None:
        """Request *pages*. Blocks while the kernel reclaims; it allocates what it can, without error."""
        _write(f"{self._place(key)}/nr_hugepages", str(pages))

    def compact(self, node: int) -> None:
        """Compact the node, or the whole machine on kernels without NUMA."""
        place = os.path.join(self._root, _NODES, f"node{node}/compact")
        if not os.path.exists(place):
            place = os.path.join(self._root, "proc/sys/vm/compact_memory")
        _write(place, "1")

    def _place(self, key: PoolKey) -> str:
        name = f"hugepages-{key.size // 1024}kB"
        nodes = os.path.join(self._root, _NODES)
        place = os.path.join(nodes, f"node{key.node}/hugepages", name)
        if os.path.isdir(place) or os.path.isdir(f"{nodes}/node1"):
            return place
        return os.path.join(self._root, _MACHINE, name)  # a kernel without pools per node


def _number(path: str) -> int:
    with open(path, encoding="ascii", errors="replace") as file:
        text = file.read(64).strip()
    if not (text.isascii() and text.isdigit()):
        raise OSError(f"{path} does not contain a number: {text!r}")
    return int(text)


def _write(path: str, value: str) -> None:
    """Write once and never create a file. Truncation is for dumps; sysfs ignores it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode("ascii"))
    finally:
        os.close(descriptor)
