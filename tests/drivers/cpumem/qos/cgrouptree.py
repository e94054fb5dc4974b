"""A cgroup tree of plain files, with what a kubelet would have put into it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

MEMORY_FILES: Mapping[str, str] = {"memory.min": "0", "memory.low": "0", "memory.high": "max"}


class Tree:
    """Below *root*: cgroups with their files."""

    def __init__(self, root: str, sizes: Iterable[str] = ("2MB",)) -> None:
        self.root = str(root)
        self.sizes = tuple(sizes)
        os.makedirs(self.root, exist_ok=True)

    def make(self, path: str, **classic: int) -> str:
        """A cgroup and those above it, as the kubelet makes them; *classic* as ``s2MB=…`` bytes."""
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            where = "/".join(parts[:depth])
            if not os.path.isdir(os.path.join(self.root, where)):
                os.makedirs(os.path.join(self.root, where))
                for file, value in MEMORY_FILES.items():
                    self.set(where, file, value)
                for size in self.sizes:
                    limit = str(classic.get(f"s{size}", 0)) if depth == len(parts) else str(1 << 62)
                    for file, value in (("max", limit), ("rsvd.max", limit)):
                        self.set(where, f"hugetlb.{size}.{file}", value)
                    for file in ("current", "rsvd.current"):
                        self.set(where, f"hugetlb.{size}.{file}", "0")
        return path

    def set(self, path: str, file: str, value: str) -> None:
        """Somebody writes a file."""
        with open(os.path.join(self.root, path, file), "w", encoding="ascii") as opened:
            opened.write(value + "\n")

    def get(self, path: str, file: str) -> str:
        """What a file says."""
        with open(os.path.join(self.root, path, file), encoding="ascii") as opened:
            return opened.read().partition("\n")[0]

    def remove(self, path: str) -> None:
        """A cgroup ends."""
        where = os.path.join(self.root, path)
        for name in os.listdir(where):
            os.unlink(os.path.join(where, name))
        os.rmdir(where)

    def snapshot(self) -> dict[str, str]:
        """Everything, by path."""
        found = {}
        for where, _, files in os.walk(self.root):
            for file in files:
                path = os.path.relpath(where, self.root)
                found[f"{path}/{file}"] = self.get(path, file)
        return found
