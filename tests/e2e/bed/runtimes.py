"""Container runtime of a node: containerd or CRI-O, and their differences.

The runtime is independent of how programs are started: it defines what its service runs, where it
listens and how an image is loaded, but not process 1 of the guest.
"""

from __future__ import annotations

import json
import shlex
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from .busybox import IMAGE, SANDBOX_IMAGE
from .guest import guest_of
from .pins import HERE, Pins

# The image is loaded before the first pod can use it.
IMAGE_STAMP = "/var/lib/bed-image"
_PREPARE = """
mkdir -p /etc/cni/net.d /etc/cdi /var/run/cdi
cp /bed-node/cni.conflist /etc/cni/net.d/10-bed.conflist
"""
_CONTAINERD = """
(until ctr -n k8s.io version > /dev/null 2>&1; do sleep 0.5; done
 [ -e {stamp} ] || {{ ctr -n k8s.io images import /bed/image.tar && touch {stamp}; }}
) &
exec containerd --config /bed-node/containerd.toml
"""
_CRIO = """
mkdir -p /run/crio /run/nri /run/lock /etc/containers/registries.conf.d
# The chart's image has no registry in its name, and CRI-O completes it only by what is listed here.
echo 'unqualified-search-registries = ["docker.io"]' > /etc/containers/registries.conf.d/bed.conf
# Before CRI-O starts: it finds the images in its storage, and needs no registry.
[ -e {stamp} ] || {{ {load} && touch {stamp}; }}
exec crio --config /bed-node/crio.conf
"""


class NodeRuntime(ABC):
    """A container runtime, as the test cluster needs it."""

    service: str
    """The name of its service, and of its log in ``/var/log``."""
    socket: str
    """Its CRI endpoint, as configured in the kubelet."""

    @abstractmethod
    def script(self) -> str:
        """The shell script that executes the runtime."""

    @abstractmethod
    def write_configuration(self, tree: Path) -> None:
        """Write its configuration into the tree of the node's disk."""

    @abstractmethod
    def import_command(self, path: str, archive: Path) -> str:
        """The command that loads ``archive`` from ``path`` in the guest."""

    @abstractmethod
    def tag_command(self, name: str, others: Sequence[str]) -> str:
        """The command that adds names to a loaded image."""

    @abstractmethod
    def answers_command(self) -> str:
        """A command that succeeds once the runtime serves requests."""


class Containerd(NodeRuntime):
    """containerd 2 as built, or 1.7 of the guest's distribution."""

    service = "containerd"
    socket = "/run/containerd/containerd.sock"

    def __init__(self, pins: Pins) -> None:
        self._template = "containerd-2.toml" if pins.containerd_is_debians else "containerd-3.toml"
        self._systemd = guest_of(pins).systemd

    def script(self) -> str:
        """Import the test image in the background and execute containerd."""
        return _PREPARE + _CONTAINERD.format(stamp=IMAGE_STAMP)

    def write_configuration(self, tree: Path) -> None:
        """``containerd.toml``."""
        text = (HERE / "guest" / self._template).read_text()
        text = text.replace("@SYSTEMD_CGROUP@", str(self._systemd).lower())
        (tree / "containerd.toml").write_text(text)

    def import_command(self, path: str, archive: Path) -> str:
        """Uses containerd's client."""
        return f"ctr -n k8s.io images import {shlex.quote(path)}"

    def tag_command(self, name: str, others: Sequence[str]) -> str:
        """Uses containerd's client."""
        return shlex.join(["ctr", "-n", "k8s.io", "images", "tag", "--force", name, *others])

    def answers_command(self) -> str:
        """Its client gets a response."""
        return "ctr -n k8s.io version"


class Crio(NodeRuntime):
    """CRI-O, which stores images in a storage shared with other programs and has no client."""

    service = "crio"
    socket = "/var/run/crio/crio.sock"
    """The kubelet recognizes CRI-O by the end of this path."""

    def __init__(self, pins: Pins) -> None:
        self._guest = guest_of(pins)

    def script(self) -> str:
        """Load the test image and execute CRI-O."""
        load = _copies("/bed/image.tar", [IMAGE, SANDBOX_IMAGE])
        return _PREPARE + _CRIO.format(stamp=IMAGE_STAMP, load=load)

    def write_configuration(self, tree: Path) -> None:
        """``crio.conf``."""
        text = (HERE / "guest" / "crio.conf").read_text()
        text = text.replace("@CGROUP_DRIVER@", self._guest.cgroup_driver)
        # The cgroup of conmon: a separate scope with systemd, otherwise that of CRI-O.
        text = text.replace("@MONITOR@", "system.slice" if self._guest.systemd else "pod")
        (tree / "crio.conf").write_text(text)

    def import_command(self, path: str, archive: Path) -> str:
        """Uses skopeo, for every name of the image in the archive."""
        with tarfile.open(archive) as files:
            member = files.extractfile("manifest.json")
            assert member is not None
            names = [name for image in json.load(member) for name in image["RepoTags"]]
        return _copies(path, names)

    def tag_command(self, name: str, others: Sequence[str]) -> str:
        """A copy in the storage shares everything except the name."""
        return " && ".join(_copy(f"containers-storage:{name}", other) for other in others)

    def answers_command(self) -> str:
        """Uses CRI-O's status command on its socket."""
        return f"crio status --socket={self.socket} info"


def _copies(path: str, names: Sequence[str]) -> str:
    """The commands that copy an image into the storage, once for each of its names."""
    return " && ".join(_copy(f"docker-archive:{path}:{name}", name) for name in names)


def _copy(source: str, name: str) -> str:
    """The command that copies an image into the storage under a name."""
    words = ["skopeo", "copy", "--quiet", "--insecure-policy", source]
    return shlex.join([*words, f"containers-storage:{name}"])


def runtime_of(pins: Pins) -> NodeRuntime:
    """The selected runtime."""
    return Crio(pins) if pins.is_crio else Containerd(pins)
