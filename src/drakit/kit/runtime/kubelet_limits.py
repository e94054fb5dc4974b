"""The limits that the kubelet asked for, kept apart from what a driver made of them.

The runtime reports a container with the limits it has; a later process of this driver could not tell the
kubelet's share of them from ours. So the difference is noted in an annotation of the container when it
is created. The note is believed only if the pod itself has no annotation of that name: CRI-O copies a
pod's annotations to its containers, so there a pod could forge it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from drakit.wire.nri.values import NriContainer, PodSandbox, Resources

WANTED_ANNOTATION: Final = "drakit.dev/wanted"


class _Note(msgspec.Struct, frozen=True):
    """What was made of the kubelet's limits when the container was created."""

    memory_added: int = 0
    """A difference: the kubelet may change the limit of a running container."""
    hugepages: dict[str, int] = {}
    """What the kubelet asked for, of the sizes that were changed; it cannot change them later."""


def note_for(ours: Resources, theirs: Resources) -> dict[str, str]:
    """The annotation for a container that gets *ours* where the kubelet asked for *theirs*."""
    note = _Note(
        memory_added=(ours.memory_limit or 0) - (theirs.memory_limit or 0)
        if ours.memory_limit is not None
        else 0,
        hugepages={size: theirs.hugepage_limits.get(size, 0) for size in ours.hugepage_limits},
    )
    return {WANTED_ANNOTATION: msgspec.json.encode(note).decode()} if note != _Note() else {}


def kubelet_limits(reported: NriContainer, pod: PodSandbox | None = None) -> Resources:
    """The kubelet's limits of a container that exists, as far as they can be known.

    Without *pod*, or if the pod carries the annotation itself, the note may be forged. Then memory limit
    and hugepages count as not asked for: what a claim adds never grows by a forged note.
    """
    text = reported.annotations.get(WANTED_ANNOTATION)
    if text is None:
        return reported.resources
    if pod is None or WANTED_ANNOTATION in pod.annotations:
        return msgspec.structs.replace(reported.resources, memory_limit=None, hugepage_limits={})
    try:
        note = msgspec.json.decode(text, type=_Note)
    except msgspec.MsgspecError:
        return reported.resources
    limit = reported.resources.memory_limit
    if limit is not None and 0 < note.memory_added < limit:
        limit -= note.memory_added
    return Resources(memory_limit=limit, hugepage_limits=note.hugepages).over(reported.resources)
