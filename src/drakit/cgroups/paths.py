"""Cgroup paths of pods and containers, as the kubelet and the container runtimes lay them out.

=============== ============================== =========================================================
cgroup          cgroupfs driver                systemd driver
=============== ============================== =========================================================
root            ``kubepods``                   ``kubepods.slice``
QoS class       ``kubepods/burstable``         ``kubepods.slice/kubepods-burstable.slice``
Guaranteed pod  ``kubepods/pod<uid>``          ``kubepods.slice/kubepods-pod<uid_>.slice``
other pod       ``kubepods/burstable/pod…``    ``…/kubepods-burstable-pod<uid_>.slice``
container       ``<pod>/<id>``                 ``<pod>/<prefix>-<id>.scope``
=============== ============================== =========================================================

The kubelet's ``cgroupRoot`` precedes all of them (kind: ``kubelet.slice/kubelet-kubepods.slice``), so no
name above the pod is assumed: the root is the pod's parent, or its grandparent if the parent is a QoS
class. All paths here are relative to the cgroup mount. Reported paths are not trusted: ``..`` is rejected.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

_POD: Final = re.compile(r"(?:.*-)?pod(?P<uid>[0-9A-Za-z._-]+?)(?:\.slice)?")
_CONTAINER: Final = re.compile(r"(?:(?:cri-containerd|crio|docker)-)?(?P<id>[0-9a-f]{64})(?:\.scope)?")
_QOS: Final = re.compile(r"(?:.*-)?(?P<name>burstable|besteffort)(?:\.slice)?")


def is_plain(path: str) -> bool:
    """Whether a path consists of names only, without ``.``, ``..`` or empty parts."""
    whole = f"/{path}/"
    return not ("\0" in path or "//" in whole or "/./" in whole or "/../" in whole)


def expand_slice(name: str) -> str:
    """``a-b-c.slice`` → ``a.slice/a-b.slice/a-b-c.slice``, the path that systemd gives a slice."""
    stem = name.removesuffix(".slice")
    if stem in ("", "-"):
        return ""
    parts = stem.split("-")
    return "/".join("-".join(parts[: depth + 1]) + ".slice" for depth in range(len(parts)))


def parent_path(cgroup_parent: str) -> str | None:
    """The path of a pod's cgroup, from the cgroup parent that the runtime reports; None if not valid.

    containerd reports the whole path with either driver; CRI-O with systemd reports only the last
    slice, which is expanded.
    """
    path = cgroup_parent.strip("/")
    if path.endswith(".slice") and "/" not in path:
        path = expand_slice(path)
    return path if path and is_plain(path) else None


def relative_path(cgroups_path: str) -> str | None:
    """The path of a container's cgroup, from the ``cgroups_path`` that NRI reports; None if not valid.

    With the cgroupfs driver that is a path, with systemd ``<slice>:<prefix>:<container id>``.
    """
    if cgroups_path.count(":") == 2:
        parent, prefix, name = cgroups_path.split(":")
        unit = name if name.endswith(".scope") else f"{prefix}-{name}.scope" if prefix else name
        where = parent_path(parent)
        path = None if where is None else f"{where}/{unit}"
    else:
        path = cgroups_path.strip("/")
    return path if path and is_plain(path) else None


def pod_uid(name: str) -> str | None:
    """The pod UID in the name of a cgroup, with ``-`` where systemd requires ``_``; None if not a pod's."""
    found = _POD.fullmatch(name)
    return None if found is None else normalized_uid(found["uid"])


def normalized_uid(uid: str) -> str:
    """A pod UID as :func:`pod_uid` returns it, for comparison."""
    return uid.replace("_", "-")


def container_id(name: str) -> str | None:
    """The container ID in the name of a cgroup; None if it is not a container's."""
    found = _CONTAINER.fullmatch(name)
    return None if found is None else found["id"]


class QosClass(enum.Enum):
    """The kubelet's QoS classes; resource claims do not affect them."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


_CLASSES: Final = {"burstable": QosClass.BURSTABLE, "besteffort": QosClass.BEST_EFFORT}


@dataclass(frozen=True, slots=True)
class PodCgroup:
    """The cgroup of a pod and its ancestors."""

    pod: str
    qos_class: QosClass
    qos_cgroup: str | None
    """The cgroup of its QoS class; Guaranteed pods have none."""
    root: str
    """The kubelet's ``kubepods``."""
    above: tuple[str, ...] = ()
    """Ancestors of the root, outermost first: those of the kubelet's ``cgroupRoot``."""

    @property
    def chain(self) -> tuple[str, ...]:
        """The cgroups that the kubelet creates, from the root down to the pod."""
        middle = () if self.qos_cgroup is None else (self.qos_cgroup,)
        return (self.root, *middle, self.pod)


def pod_cgroup(cgroup_parent: str, uid: str) -> PodCgroup | None:
    """The cgroups of the pod *uid*, from the cgroup parent that the runtime reports.

    None if that is not the cgroup of this pod: with ``cgroupsPerQOS: false`` pods have none.
    """
    path = parent_path(cgroup_parent)
    if path is None:
        return None
    parts = path.split("/")
    if not uid or pod_uid(parts[-1]) != normalized_uid(uid):
        return None
    found = _QOS.fullmatch(parts[-2]) if len(parts) > 1 else None
    qos_class = QosClass.GUARANTEED if found is None else _CLASSES[found["name"]]
    depth = len(parts) - (1 if found is None else 2)
    if depth < 1:
        return None
    paths = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    return PodCgroup(
        pod=path,
        qos_class=qos_class,
        qos_cgroup=None if found is None else paths[-2],
        root=paths[depth - 1],
        above=tuple(paths[: depth - 1]),
    )
