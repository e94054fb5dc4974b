"""Limits that the kubelet requested for a container, as opposed to those a driver made of them.

The runtime reports a container with its current limits; after a restart the driver could not separate the
kubelet's part from its own. So the difference is stored in an annotation of the container at creation. The
annotation is trusted only if the pod does not have it: CRI-O copies a pod's annotations to its containers,
so there a pod could forge it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from drakit.wire.nri.values import NriContainer, PodSandbox, Resources

WANTED_ANNOTATION: Final = "drakit.dev/wanted"


class _LimitChange(msgspec.Struct, frozen=True):
    """How the driver changed the kubelet's limits at creation."""

    memory_added: int = 0
    """A difference: the kubelet may change the limit of a running container."""
    hugepages: dict[str, int] = {}
    """The kubelet's limits of the changed sizes; it cannot change them later."""


def annotation_for(ours: Resources, kubelets: Resources) -> dict[str, str]:
    """The annotation for a container that gets *ours* where the kubelet requested *kubelets*."""
    change = _LimitChange(
        memory_added=(ours.memory_limit or 0) - (kubelets.memory_limit or 0)
        if ours.memory_limit is not None
        else 0,
        hugepages={size: kubelets.hugepage_limits.get(size, 0) for size in ours.hugepage_limits},
    )
    if change == _LimitChange():
        return {}
    return {WANTED_ANNOTATION: msgspec.json.encode(change).decode()}


def kubelet_limits(reported: NriContainer, pod: PodSandbox | None) -> Resources:
    """The kubelet's limits of an existing container, as far as they can be known.

    If the pod is unknown or has the annotation itself, it may be forged. Then memory and hugepage limits
    count as not requested: a forged annotation never increases what a claim adds.
    """
    text = reported.annotations.get(WANTED_ANNOTATION)
    if text is None:
        return reported.resources
    if pod is None or WANTED_ANNOTATION in pod.annotations:
        return msgspec.structs.replace(reported.resources, memory_limit=None, hugepage_limits={})
    try:
        change = msgspec.json.decode(text, type=_LimitChange)
    except msgspec.MsgspecError:
        return reported.resources
    limit = reported.resources.memory_limit
    if limit is not None and 0 < change.memory_added < limit:
        limit -= change.memory_added
    return Resources(memory_limit=limit, hugepage_limits=change.hugepages).over(reported.resources)
