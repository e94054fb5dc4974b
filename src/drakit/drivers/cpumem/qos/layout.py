"""Where a pod's cgroups are, and its QoS class, from what the runtime reports.

The kubelet lays pods out below one cgroup, ``kubepods``, with either of two spellings:

=============== ============================== =========================================================
cgroup          cgroupfs driver                systemd driver
=============== ============================== =========================================================
root            ``kubepods``                   ``kubepods.slice``
QoS class       ``kubepods/burstable``         ``kubepods.slice/kubepods-burstable.slice``
Guaranteed pod  ``kubepods/pod<uid>``          ``kubepods.slice/kubepods-pod<uid_>.slice``
other pod       ``kubepods/burstable/pod…``    ``…/kubepods-burstable-pod<uid_>.slice``
=============== ============================== =========================================================

The kubelet's ``cgroupRoot`` goes before all of it (kind: ``kubelet.slice/kubelet-kubepods.slice``). No
name above the pod is taken for granted: the root is the pod's parent, or its grandparent where the
parent is a QoS class's.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

from drakit.cgroups.tree import parent_path

_POD: Final = re.compile(r"(?:.*-)?pod(?P<uid>[0-9A-Za-z._-]+?)(?:\.slice)?")
_CLASS: Final = re.compile(r"(?:.*-)?(?P<name>burstable|besteffort)(?:\.slice)?")


class QosClass(enum.Enum):
    """The kubelet's classes; claims do not count for them."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


_CLASSES: Final = {"burstable": QosClass.BURSTABLE, "besteffort": QosClass.BEST_EFFORT}


@dataclass(frozen=True, slots=True)
class PodPlace:
    """A pod's cgroup and those above it, as paths below the cgroup mount."""

    pod: str
    qos_class: QosClass
    class_slice: str | None
    """The cgroup of its QoS class; Guaranteed pods have none."""
    root: str
    """The kubelet's ``kubepods``."""
    above: tuple[str, ...] = ()
    """Ancestors of the root, outermost first: those of the kubelet's ``cgroupRoot``."""

    @property
    def chain(self) -> tuple[str, ...]:
        """From the root down to the pod: what the kubelet made."""
        middle = () if self.class_slice is None else (self.class_slice,)
        return (self.root, *middle, self.pod)


def place_of(cgroup_parent: str, pod_uid: str) -> PodPlace | None:
    """The place of the pod *pod_uid* from the cgroup parent that the runtime reports.

    None when that is not the cgroup of this pod: with ``cgroupsPerQOS: false`` pods have none, and
    then there is nothing to set. CRI-O with systemd reports the last slice only; it is expanded.
    """
    path = parent_path(cgroup_parent)
    if path is None:
        return None
    parts = path.split("/")
    name = _POD.fullmatch(parts[-1])
    if name is None or len(parts) < 2 or not _names(name["uid"], pod_uid):
        return None
    found = _CLASS.fullmatch(parts[-2])
    if found is None:
        return _placed(parts, len(parts) - 1, QosClass.GUARANTEED)
    if len(parts) < 3:
        return None
    return _placed(parts, len(parts) - 2, _CLASSES[found["name"]])


def _names(found: str, pod_uid: str) -> bool:
    """Whether the UID in a cgroup's name is the pod's; systemd's names have ``_`` for ``-``."""
    return bool(pod_uid) and found.replace("_", "-") == pod_uid.replace("_", "-")


def _placed(parts: list[str], root_depth: int, qos_class: QosClass) -> PodPlace:
    paths = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
    return PodPlace(
        pod=paths[-1],
        qos_class=qos_class,
        class_slice=None if qos_class is QosClass.GUARANTEED else paths[-2],
        root=paths[root_depth - 1],
        above=tuple(paths[: root_depth - 1]),
    )
