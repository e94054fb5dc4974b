"""What process 1 of a guest is, and where pods therefore have their cgroups.

With systemd, as on nearly every production node, the kubelet and the runtime ask it for slices and scopes
(cgroup driver ``systemd``). Without it they make directories (cgroup driver ``cgroupfs``).
"""

from __future__ import annotations

from dataclasses import dataclass

from .pins import Pins

CGROUPS = "/sys/fs/cgroup"
CONTAINER_CGROUP = r"(?:cri-containerd-|crio-)?([0-9a-f]{64})(?:\.scope)?"
"""A regular expression for the name of a container's cgroup, of any runtime and driver, with its id."""


@dataclass(frozen=True, slots=True)
class Guest:
    """One of the two kinds; ``cgroup_driver`` is the kubelet's word for it."""

    cgroup_driver: str
    kubepods: str
    """Where the kubelet puts its pods."""
    node_tier_pods: str
    """Where the pods of the node tier are, which has no kubelet."""

    @property
    def systemd(self) -> bool:
        """True when process 1 is systemd."""
        return self.cgroup_driver == "systemd"

    def cgroup_parent(self, uid: str) -> str:
        """The cgroup of a pod of the node tier, spelled as the kubelet spells it for the runtime."""
        parent = self.node_tier_pods.removeprefix(CGROUPS)
        return f"{parent}/test-{uid}.slice" if self.systemd else f"{parent}/{uid}"


_GUESTS = {
    "systemd": Guest("systemd", f"{CGROUPS}/kubepods.slice", f"{CGROUPS}/test.slice"),
    "cgroupfs": Guest("cgroupfs", f"{CGROUPS}/kubepods", f"{CGROUPS}/test"),
}


def guest_of(pins: Pins) -> Guest:
    """The guest that these pins select."""
    return _GUESTS[pins.guest]
