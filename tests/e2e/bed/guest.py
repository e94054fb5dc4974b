"""Process 1 of a guest, and the resulting location of pod cgroups.

With systemd, as on nearly every production node, the kubelet and the runtime request slices and scopes
(cgroup driver ``systemd``). Without it they create directories (cgroup driver ``cgroupfs``).
"""

from __future__ import annotations

from dataclasses import dataclass

from .pins import Pins

CGROUPS = "/sys/fs/cgroup"
CONTAINER_CGROUP = r"(?:cri-containerd-|crio-)?([0-9a-f]{64})(?:\.scope)?"
"""A regular expression for the name of a container's cgroup, of any runtime and driver, with its id."""


@dataclass(frozen=True, slots=True)
class Guest:
    """Kind of guest; ``cgroup_driver`` is the kubelet's name for it."""

    cgroup_driver: str
    kubepods: str
    """Parent cgroup of the kubelet's pods."""
    node_tier_pods: str
    """Parent cgroup of the pods of the node tier, which has no kubelet."""

    @property
    def systemd(self) -> bool:
        """True when process 1 is systemd."""
        return self.cgroup_driver == "systemd"

    def cgroup_parent(self, uid: str) -> str:
        """The cgroup of a pod of the node tier, in the kubelet's notation for the runtime."""
        parent = self.node_tier_pods.removeprefix(CGROUPS)
        return f"{parent}/test-{uid}.slice" if self.systemd else f"{parent}/{uid}"


_GUESTS = {
    "systemd": Guest("systemd", f"{CGROUPS}/kubepods.slice", f"{CGROUPS}/test.slice"),
    "cgroupfs": Guest("cgroupfs", f"{CGROUPS}/kubepods", f"{CGROUPS}/test"),
}


def guest_of(pins: Pins) -> Guest:
    """The guest that these pins select."""
    return _GUESTS[pins.guest]
