"""Program that allocates memory and hugepages in a container and reports the kernel's response.

busybox cannot allocate hugepages. The program is copied to the node and mounted into a pod as a host
volume, so it needs no image.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cache import Artifact
from .gobuild import build_file
from .kubernetes import Manifest
from .node import Node
from .pins import HERE

_SOURCE = HERE / "guest" / "hold.go"
_DIRECTORY = "/opt/bed"
PROGRAM = f"{_DIRECTORY}/hold"


@dataclass(frozen=True)
class Holder(Artifact):
    """The compiled program."""

    source: str
    name: str = "hold"
    version: str = "1"

    def recipe(self) -> dict[str, Any]:
        """The program's text."""
        return {"source": self.source}

    def build(self, directory: Path, log: Path) -> None:
        """Compile it."""
        build_file(_SOURCE, directory / self.name, log)


def holder() -> Holder:
    """The program as its source is now."""
    return Holder(_SOURCE.read_text())


def install_holder(node: Node) -> None:
    """Put the program on a node, for :func:`holding`."""
    if not node.exists(PROGRAM):
        node.put(PROGRAM, (holder().get() / "hold").read_bytes(), 0o755)


def hold(memory: int = 0, pages: int = 0, more: int = 0) -> str:
    """The shell command that allocates memory and 2 Mi pages, then tries ``more`` pages."""
    return f"exec {PROGRAM} -memory={memory} -pages={pages} -more={more}"


def with_holder(pod: Manifest) -> Manifest:
    """The same pod with the program in each of its containers."""
    spec = pod["spec"]
    mount = {"name": "bed", "mountPath": _DIRECTORY, "readOnly": True}
    containers = [
        {**each, "volumeMounts": [*each.get("volumeMounts", []), mount]} for each in spec["containers"]
    ]
    volume = {"name": "bed", "hostPath": {"path": _DIRECTORY, "type": "Directory"}}
    volumes = [*spec.get("volumes", []), volume]
    return {**pod, "spec": {**spec, "containers": containers, "volumes": volumes}}
