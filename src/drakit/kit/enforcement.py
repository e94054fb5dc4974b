"""Which container must look how: the bookkeeping between the ledger and the runtime, without I/O.

:class:`Enforcer` knows the runtime's pods and containers and what each was last told. Every runtime
event goes through it and comes back as what to answer: limits for the new container, updates for
others whose shape changed. It is level-triggered: the shape of every container follows from the
ledger as it is now, so a lost event, a restart or a change by another instance heals at the next
look. What a container may use is settled here (rule: never believe the workload):

1. by the CDI device names the runtime reports – they come from the kubelet;
2. where the runtime reports none (NRI before 0.12), by marker variables, each checked against the
   ledger and the pod's UID;
3. a container that shows a claim which is not in the ledger is refused, not guessed at.

A container that cannot be served is not created; one that exists already is kept as a *conflict* with
its reason and confined like one without claims. The others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from drakit.core.cpuset import CpuSet
from drakit.kit import names
from drakit.kit.driver import Container, Driver, Entry, Holdings, Refused, Shape, Use
from drakit.kit.steward import PodView
from drakit.wire.nri.values import NOTHING, Adjustment, Pod, Resources, State, Update
from drakit.wire.nri.values import Container as Reported

_LOG = logging.getLogger(__name__)


WANTED_ANNOTATION: Final = "drakit.dev/wanted"


class _Wanted(msgspec.Struct, frozen=True):
    """What was made of the kubelet's limits when the container was created."""

    memory_added: int = 0
    """A difference: the kubelet may change the limit of a running container."""
    hugepages: dict[str, int] = {}
    """What the kubelet asked for, of the sizes that were changed; it cannot ask anew."""


class ForeignClaimError(Refused):
    """A container carries the marker of a claim that, as far as we know, is not its pod's.

    It may be all the same: the kubelet does not tell a driver of further pods that share a claim it
    has prepared already. Whoever can ask the API server should, and put the answer in
    :attr:`Enforcer.vouched`.
    """

    def __init__(self, text: str, entry: Entry, pod_uid: str) -> None:
        super().__init__(text, reason="foreign-claim")
        self.entry = entry
        self.pod_uid = pod_uid


@dataclass(slots=True)
class Known:
    """A container of the runtime, what it was last told, and why it is in conflict if it is."""

    pod: Pod
    reported: Reported
    told: Resources | None
    """Limits the runtime was last asked for; None when that is not known to hold."""
    wanted: Resources = NOTHING
    """Limits the kubelet asked for; where the runtime reports ours, those from before."""
    conflict: str | None = None
    asked: tuple[str, ...] = ()
    """Containers that had to change for this one, until it starts: if its creation fails, the runtime
    drops those changes, and tells us only that this one stopped."""
    ran: bool = False
    """Whether it has been seen running: from then on an empty cgroup means that it ended."""

    @property
    def shows_claims(self) -> bool:
        """Whether it was created with anything of a claim; whether rightly is another question."""
        return bool(self.reported.cdi_devices or self.reported.env)


class Enforcer:
    """Says what every container must look like, for one connection to a runtime.

    *driver* and *holdings* are functions because both change over time. ``trust_cdi`` says whether
    this runtime reports CDI device names.
    """

    def __init__(
        self,
        driver: Callable[[], Driver],
        holdings: Callable[[], Holdings],
        *,
        trust_cdi: bool = True,
    ) -> None:
        self._driver = driver
        self._holdings = holdings
        self.trust_cdi = trust_cdi
        self.pods: dict[str, Pod] = {}
        self.containers: dict[str, Known] = {}
        self.vouched: set[tuple[str, str]] = set()
        """(claim UID, pod UID) pairs that the API server confirmed besides those in the ledger."""
        self._index: tuple[Holdings, str, dict[str, names.Part]] | None = None

    # -- events ----------------------------------------------------------------------------------

    def synchronize(self, pods: Iterable[Pod], containers: Iterable[Reported]) -> list[Update]:
        """Forget everything and take over what the runtime has; returns what must change.

        Containers that cannot be served are noted as conflicts; they stop nothing.
        """
        self.pods = {pod.id: pod for pod in pods}
        self.containers = {}
        there = {pod.uid for pod in self.pods.values()}
        self.vouched = {pair for pair in self.vouched if pair[1] in there}
        for reported in containers:
            if reported.state is State.STOPPED:
                continue
            pod = self.pods.get(reported.pod_id) or Pod(id=reported.pod_id)
            self.containers[reported.id] = _found(pod, reported)
        return self.settle()

    def create(self, pod: Pod, reported: Reported) -> Adjustment:
        """What a new container must look like, and what others must change before it starts.

        Raises :class:`Refused` when it must not be created; nothing is remembered of it then.
        """
        self.pods[pod.id] = pod
        known = Known(pod, _kept(reported), None, reported.resources)
        shape = self.shape_of(known)
        resources = resources_of(shape)
        known.told = resources.over(reported.resources)
        updates = self.settle(besides=reported.id)
        known.asked = tuple(update.container_id for update in updates)
        self.containers[reported.id] = known
        return Adjustment(
            resources=resources,
            env=dict(shape.env),
            annotations=_note_of_wanted(resources, reported.resources),
            updates=tuple(updates),
        )

    def update(self, pod: Pod, reported: Reported, wanted: Resources) -> list[Update]:
        """Somebody (the kubelet) changes a container: put our limits over theirs.

        Raises :class:`Refused` when the container must not run as it is.
        """
        known = self._noted(pod, reported)
        known.wanted = wanted.over(known.wanted)
        resources = resources_of(self.shape_of(known))
        known.told = resources.over(wanted).over(known.told or NOTHING)
        updates = self.settle(besides=reported.id)
        if resources != NOTHING:
            updates.insert(0, Update(container_id=reported.id, resources=resources))
        return updates

    def started(self, pod: Pod, reported: Reported, *, runs: bool = False) -> bool:
        """Note a start; says whether the container was unknown: its creation was missed.

        *runs* says that it has started, not that it is about to.
        """
        missed = reported.id not in self.containers
        known = self._noted(pod, reported)
        known.asked = ()
        known.ran = known.ran or runs
        return missed

    def users_of(self, claim_uid: str) -> list[Known]:
        """The containers that were rightly created with a claim and have not stopped, as was told."""
        entry = self._holdings().get(claim_uid)
        return (
            []
            if entry is None
            else [k for k in self.containers.values() if self._uses_of(k, entry)]
        )

    def _uses_of(self, known: Known, entry: Entry) -> bool:
        kind, reported = self._driver().cdi_kind, known.reported
        if self.trust_cdi:
            return entry.uid in names.claims_shown(kind, reported.cdi_devices, ())
        pair = (entry.uid, known.pod.uid)
        shown = entry.uid in names.claims_shown(kind, (), reported.env)
        return shown and (known.pod.uid in entry.consumers or pair in self.vouched)

    def unheeded_claims(self, container_id: str) -> tuple[Use, ...]:
        """The claims of a container that does not look as they demand; none when it does.

        Raises :class:`Refused` when the container must not run at all.
        """
        known = self.containers[container_id]
        resources = resources_of(self.shape_of(known))
        before = known.told or NOTHING
        if _same(resources.over(before), before):
            return ()
        return self._uses(self._parts(known.pod, known.reported), known.pod)

    def exclusive_cpus(self, container_id: str) -> CpuSet:
        """The CPUs that are a container's by its claims; none if it has none or is in conflict."""
        known = self.containers.get(container_id)
        if known is None:
            return CpuSet()
        try:
            container = self._view(known, self._parts(known.pod, known.reported))
            return (self._checked(container).cpus if container.uses else None) or CpuSet()
        except Refused:
            return CpuSet()

    def stopped(self, container_id: str) -> list[Update]:
        """A container ended; returns what others must change (and carries what was waiting)."""
        known = self.containers.pop(container_id, None)
        if known is not None:
            self.untold(known.asked)
        return self.settle()

    def pod_removed(self, pod_id: str) -> None:
        """A pod sandbox is gone, and its containers with it."""
        pod = self.pods.pop(pod_id, None)
        if pod is not None:
            self.vouched = {pair for pair in self.vouched if pair[1] != pod.uid}
        for container_id in [c for c, known in self.containers.items() if known.pod.id == pod_id]:
            del self.containers[container_id]

    # -- the level ---------------------------------------------------------------------------------

    def settle(self, *, besides: str | None = None) -> list[Update]:
        """All changes needed so that every known container looks as it must, each at most once.

        What is returned counts as told: send it, or call :meth:`untold` if it could not be sent.
        """
        updates = []
        for container_id, known in self.containers.items():
            if container_id == besides:
                continue
            shape = self.settled_shape(known)
            if shape is None:
                continue
            resources = resources_of(shape)
            before = known.told or NOTHING
            after = resources.over(before)
            if known.told is None or not _same(after, before):
                known.told = after
                updates.append(Update(container_id=container_id, resources=resources))
        # Runtimes apply them one after the other: who leaves CPUs goes before who comes to own them.
        updates.sort(key=lambda update: self.containers[update.container_id].shows_claims)
        return [update for update in updates if update.resources != NOTHING]

    def untold(self, container_ids: Iterable[str]) -> None:
        """The runtime did not take these updates, or the container looks otherwise: say it again."""
        for container_id in container_ids:
            if container_id in self.containers:
                self.containers[container_id].told = None

    def settled_shape(self, known: Known) -> Shape | None:
        """The shape a container that exists must have now; None: leave it as it is.

        A container that cannot be served – it came while nobody looked – is noted as a conflict and
        confined like one without claims: it must not run on what is others' own. Only one that
        runs pinned on a claim whose record was lost stays as it is: its CPUs are held for it.
        """
        try:
            shape = self.shape_of(known)
        except Refused as problem:
            self._note_conflict(known, str(problem))
            if problem.reason == "unknown-claim" and known.reported.resources.cpus:
                return None
            try:
                return self._checked(self._view(known, ()))
            except Refused:
                return None
        known.conflict = None
        return shape

    def shape_of(self, known: Known) -> Shape:
        """The shape a container must have now; raises :class:`Refused`."""
        return self._checked(self._view(known, self._parts(known.pod, known.reported)))

    def _checked(self, container: Container) -> Shape:
        shape = self._driver().enforce(container, self._holdings())
        if (shape.cpus is not None and not shape.cpus) or (
            shape.mems is not None and not shape.mems
        ):
            # To NRI an empty list means "no change": the container would run anywhere.
            raise Refused(f"{container} would get no CPU or no memory node at all", reason="empty")
        return shape

    def conflicts(self) -> dict[str, str]:
        """Containers that cannot be served as they are, with the reason."""
        return {c: known.conflict for c, known in self.containers.items() if known.conflict}

    def strangers(self) -> list[ForeignClaimError]:
        """What would have to be confirmed for containers in conflict to be served."""
        found = []
        for known in self.containers.values():
            if known.conflict:
                try:
                    self.shape_of(known)
                except ForeignClaimError as problem:
                    found.append(problem)
                except Refused:
                    continue
        return found

    def pod_views(self) -> list[PodView]:
        """All pods with their containers, for what is done to pods; conflicts use no claims."""
        inside: dict[str, list[Container]] = {}
        for known in self.containers.values():
            try:
                parts = self._parts(known.pod, known.reported)
            except Refused:
                parts = ()
            inside.setdefault(known.pod.id, []).append(self._view(known, parts))
        return [
            PodView(
                uid=pod.uid,
                name=pod.name,
                namespace=pod.namespace,
                cgroup_parent=pod.cgroup_parent,
                containers=tuple(inside.get(pod.id, ())),
                annotations=pod.annotations,
            )
            for pod in self.pods.values()
        ]

    # -- whose claims ------------------------------------------------------------------------------

    def _view(self, known: Known, parts: Sequence[names.Part]) -> Container:
        pod, reported = known.pod, known.reported
        return Container(
            id=reported.id,
            name=reported.name,
            pod_uid=pod.uid,
            pod_name=pod.name,
            namespace=pod.namespace,
            uses=self._uses(parts, pod),
            labels=reported.labels,
            annotations=reported.annotations,
            cgroup_path=reported.cgroups_path,
            cgroup_parent=pod.cgroup_parent,
            memory_limit=known.wanted.memory_limit,
            hugepage_limits=known.wanted.hugepage_limits,
        )

    def _parts(self, pod: Pod, reported: Reported) -> Sequence[names.Part]:
        return self._by_device(reported) if self.trust_cdi else self._by_marker(pod, reported)

    def _by_device(self, reported: Reported) -> Sequence[names.Part]:
        kind = self._driver().cdi_kind
        mine = [name for name in reported.cdi_devices if name.startswith(kind + "=")]
        if not mine:
            return ()
        index = self._device_index(kind)
        for name in mine:
            if name not in index:
                raise Refused(
                    f"container {reported.name} uses {name}, which this driver has not prepared; "
                    f"delete the pod and create it again",
                    reason="unknown-claim",
                )
        return list(dict.fromkeys(index[name] for name in mine))

    def _by_marker(self, pod: Pod, reported: Reported) -> Sequence[names.Part]:
        if not any(variable.startswith(names.MARKER_PREFIX) for variable in reported.env):
            return ()
        holdings, kind = self._holdings(), self._driver().cdi_kind
        found = []
        for entry in holdings:
            for part in names.parts_of(entry):
                if reported.variable(names.marker_variable(part)) != kind:
                    continue
                if pod.uid not in entry.consumers and (entry.uid, pod.uid) not in self.vouched:
                    raise ForeignClaimError(
                        f"container {reported.name} carries a variable of {entry}, "
                        f"which is not reserved for its pod {pod.namespace}/{pod.name}; remove "
                        f"{names.marker_variable(part)} from the pod",
                        entry,
                        pod.uid,
                    )
                found.append(part)
        known = {names.marker_variable(part) for part in found}
        for variable in reported.env:
            name, _, value = variable.partition("=")
            if name.startswith(names.MARKER_PREFIX) and value == kind and name not in known:
                raise Refused(
                    f"container {reported.name} carries {name}, a claim this driver has not "
                    f"prepared; delete the pod and create it again",
                    reason="unknown-claim",
                )
        return found

    def _uses(self, parts: Sequence[names.Part], pod: Pod) -> tuple[Use, ...]:
        holdings = self._holdings()
        by_claim: dict[str, list[str]] = {}
        for part in parts:
            by_claim.setdefault(part.uid, []).append(part.request)
        uses = []
        for uid, requests in by_claim.items():
            entry = holdings.get(uid)
            if entry is None:  # the index is of this very view
                raise Refused(f"claim {uid} is not prepared", reason="unknown-claim")
            grants = tuple(grant for grant in entry.grants if grant.request in requests)
            owner = self._owner(entry, pod)
            uses.append(Use(entry, grants, owner.uid, f"{owner.namespace}/{owner.name}"))
        return tuple(uses)

    def _owner(self, entry: Entry, asking: Pod) -> Pod:
        """The pod a claim belongs to: the first it was reserved for that is here, else its user."""
        here = {pod.uid: pod for pod in self.pods.values() if pod.uid in entry.consumers}
        for uid in entry.consumers:
            if uid == asking.uid:
                return asking
            if uid in here:
                return here[uid]
        kind = self._driver().cdi_kind
        marks = {names.qualified_name(kind, part) for part in names.parts_of(entry)}
        marks |= {f"{names.marker_variable(part)}={kind}" for part in names.parts_of(entry)}
        for known in self.containers.values():
            if known.pod.uid != asking.uid and not marks.isdisjoint(
                (*known.reported.cdi_devices, *known.reported.env)
            ):
                return known.pod
        return asking

    def _device_index(self, kind: str) -> dict[str, names.Part]:
        holdings = self._holdings()
        if self._index is None or self._index[0] is not holdings or self._index[1] != kind:
            self._index = (holdings, kind, names.index_by_device(kind, holdings))
        return self._index[2]

    def _noted(self, pod: Pod, reported: Reported) -> Known:
        """The container, taken in as it is if its creation was missed."""
        self.pods[pod.id] = pod
        known = self.containers.get(reported.id)
        if known is None:
            known = _found(pod, reported)
            self.containers[reported.id] = known
        elif reported.env or reported.cdi_devices:
            known.reported = _newer_report(known.reported, _kept(reported))
        return known

    def _note_conflict(self, known: Known, reason: str) -> None:
        if known.conflict != reason:
            _LOG.error("%s of %s cannot be served: %s", known.reported, known.pod, reason)
        known.conflict = reason


def _kept(reported: Reported) -> Reported:
    """The report without variables nobody asks for: a node has hundreds of containers."""
    env = tuple(each for each in reported.env if each.startswith(names.MARKER_PREFIX))
    return msgspec.structs.replace(reported, env=env)


def _found(pod: Pod, reported: Reported) -> Known:
    """A container whose creation was not seen by this process."""
    wanted = _wanted_before(reported)
    runs = reported.state in (State.RUNNING, State.PAUSED)
    return Known(pod, _kept(reported), reported.resources, wanted, ran=runs)


def _note_of_wanted(ours: Resources, theirs: Resources) -> dict[str, str]:
    """What the kubelet asked for where we ask for something else, kept with the container.

    The runtime reports a container with the limits it has; a later process of this driver could not
    tell the kubelet's share of them from ours. Container annotations are the kubelet's and the
    plugins': a pod cannot set them.
    """
    note = _Wanted(
        memory_added=(ours.memory_limit or 0) - (theirs.memory_limit or 0)
        if ours.memory_limit is not None
        else 0,
        hugepages={size: theirs.hugepage_limits.get(size, 0) for size in ours.hugepage_limits},
    )
    return {WANTED_ANNOTATION: msgspec.json.encode(note).decode()} if note != _Wanted() else {}


def _wanted_before(reported: Reported) -> Resources:
    """The kubelet's limits of a container as it is reported, undoing what was made of them."""
    text = reported.annotations.get(WANTED_ANNOTATION)
    if text is None:
        return reported.resources
    try:
        note = msgspec.json.decode(text, type=_Wanted)
    except msgspec.MsgspecError:
        return reported.resources
    limit = reported.resources.memory_limit
    if limit is not None and 0 < note.memory_added < limit:
        limit -= note.memory_added
    return Resources(memory_limit=limit, hugepage_limits=note.hugepages).over(reported.resources)


def _newer_report(old: Reported, new: Reported) -> Reported:
    """The newer report, with CDI names kept if the newer one (an update event) lacks them."""
    if new.cdi_devices or not old.cdi_devices:
        return new
    return msgspec.structs.replace(new, cdi_devices=old.cdi_devices)


def resources_of(shape: Shape) -> Resources:
    """A shape as the runtime's limits."""
    return Resources(
        cpus=str(shape.cpus) if shape.cpus is not None else "",
        mems=str(shape.mems) if shape.mems is not None else "",
        quota=-1 if shape.lift_quota else None,
        memory_limit=shape.memory_limit,
        hugepage_limits=dict(shape.hugepage_limits),
        unified=dict(shape.unified),
    )


def _same(one: Resources, other: Resources) -> bool:
    """Equal in effect: CPU lists may be spelt differently."""
    return one == other or _comparable(one) == _comparable(other)


def _comparable(resources: Resources) -> tuple[object, ...]:
    """A resource's value with its lists as sets, for comparison."""
    return (
        _set(resources.cpus),
        _set(resources.mems),
        resources.quota,
        resources.memory_limit,
        tuple(sorted(resources.hugepage_limits.items())),
        tuple(sorted(resources.unified.items())),
    )


def _set(text: str) -> object:
    try:
        return CpuSet.parse(text)
    except ValueError:
        return text
