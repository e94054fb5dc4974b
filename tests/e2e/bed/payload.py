"""Payload disk of the guest: the Go programs, read-only."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .busybox import write_image_archive
from .cache import Artifact
from .debian import make_image
from .gobuild import Program, kubernetes_programs, runtime_programs
from .pins import HERE, Pins

_PROGRAMS = ("init", "init-systemd", "init-cgroupfs", "network", "service", "agent.py")
_SETTINGS = ("bed-agent.service", "bed-network.service", "journald.conf", "masked", "system.conf")
_GUEST_FILES = (*_PROGRAMS, *_SETTINGS)


@dataclass(frozen=True)
class Payload(Artifact):
    """``disk.img`` with ``bin/`` (programs), the guest's own files and the test image."""

    programs: tuple[Program, ...]
    version: str
    name: str = "payload"

    def recipe(self) -> dict[str, Any]:
        """The recipes of the programs and the content of the guest files."""
        return {
            "programs": [program.directory().name for program in self.programs],
            "files": {name: (HERE / "guest" / name).read_text() for name in _GUEST_FILES},
            "revision": 1,
        }

    def build(self, directory: Path, log: Path) -> None:
        """Collect the files and write the disk."""
        tree = directory / "tree"
        (tree / "bin").mkdir(parents=True)
        for program in self.programs:
            shutil.copy(program.path(), tree / "bin" / program.name)
        for name in _GUEST_FILES:
            shutil.copy(HERE / "guest" / name, tree / name)
            (tree / name).chmod(0o755 if name in _PROGRAMS else 0o644)
        write_image_archive(tree / "image.tar")
        size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
        make_image(directory / "disk.img", tree, f"{size * 5 // 4 // 2**20 + 16}M", log)
        shutil.rmtree(tree)


def payload(pins: Pins, kubelet: Program | None) -> Payload:
    """The payload for these pins; a node tier without Go has no kubelet and Debian's containerd."""
    programs = tuple(runtime_programs(pins).values())
    version = f"crio-{pins.crio}" if pins.is_crio else f"containerd-{pins.containerd}"
    if kubelet is not None:
        programs += (kubelet,)
        version += f"-kubernetes-{pins.kubernetes}"
    return Payload(programs, version)


def full_payload(pins: Pins) -> Payload:
    """The payload of a cluster node."""
    return payload(pins, kubernetes_programs(pins)["kubelet"])
