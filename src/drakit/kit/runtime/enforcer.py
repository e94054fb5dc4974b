"""Desired resources of every container, computed from the checkpoint, without I/O.

:class:`Enforcer` knows the runtime's pods and containers and what the runtime was last asked for. Every
runtime event goes through it and comes back as what to answer: limits for the new container, updates for
others whose desired resources changed. It is level-triggered: the desired resources of every container
follow from the checkpoint as it is now, so a lost event, a restart or a change by another instance heals
at the next look. Which claims a container may use is decided in :mod:`drakit.kit.runtime.container_claims`.

A container that cannot be served is not created; one that exists already is kept as a *conflict* with its
reason and confined like one without claims. The others go on. Invariant: a running container keeps its
CPUs; a newcomer is rejected. The pod whose containers use a claim owns it until they have ended and its
sandbox has stopped; reservations decide only between pods that have not used it yet.

Cost: an event looks at the containers it concerns. All containers are looked at only after the checkpoint
or the driver changed, and then with lookups only.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from drakit.core.cpuset import CpuSet
from drakit.kit.claims import cdi_names as names
from drakit.kit.driver import (
    Container,
    DesiredResources,
    Driver,
    PreparedClaim,
    PreparedClaims,
    RejectedError,
    Use,
)
from drakit.kit.reconciler import PodView
from drakit.kit.runtime.container_claims import ClaimResolver, ForeignClaimError
from drakit.kit.runtime.kubelet_limits import WANTED_ANNOTATION, note_for
from drakit.kit.runtime.kubelet_limits import kubelet_limits as _wanted_before
from drakit.wire.nri.values import (
    NOTHING,
    Adjustment,
    ContainerUpdate,
    NriContainer,
    PodSandbox,
    Resources,
    State,
)

__all__ = ["WANTED_ANNOTATION", "Enforcer", "ForeignClaimError", "TrackedContainer", "resources_of"]

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class TrackedContainer:
    """A container of the runtime, what it was last told, and why it is in conflict if it is."""

    pod: PodSandbox
    reported: NriContainer
    """As the runtime describes it, without its environment."""
    shown: names.Shown
    last_sent: Resources | None
    """Limits the runtime was last asked for; None when that is not known to hold."""
    wanted: Resources = NOTHING
    """Limits the kubelet asked for; where the runtime reports ours, those from before."""
    conflict: str | None = None
    asked: tuple[str, ...] = ()
    """Containers that had to change for this one, until it starts: if its creation fails, the runtime
    drops those changes, and reports only that this one stopped."""
    ran: bool = False
    """Whether it has been seen running: from then on an empty cgroup means that it ended."""
    cpu_list: str = ""
    """The last CPUs it is known to have been limited to; empty when never limited."""

    @property
    def cpus(self) -> CpuSet:
        """:attr:`cpu_list` as a set; empty also if it makes no sense."""
        return _parsed(self.cpu_list)

    @property
    def shows_claims(self) -> bool:
        """Whether it was created with anything of a claim; whether rightly is another question."""
        return self.shown is not names.NOTHING_SHOWN


class Enforcer:
    """Computes what every container must look like, for one connection to a runtime.

    *driver* and *prepared_claims* are functions because both change over time. ``trust_cdi`` says whether
    this runtime is known to report CDI device names.
    """

    def __init__(
        self,
        driver: Callable[[], Driver],
        prepared_claims: Callable[[], PreparedClaims],
        *,
        trust_cdi: bool = True,
    ) -> None:
        self._driver = driver
        self._prepared_claims = prepared_claims
        self._resolver = ClaimResolver(driver, prepared_claims, trust_cdi=trust_cdi)
        self.pods: dict[str, PodSandbox] = {}
        self.containers: dict[str, TrackedContainer] = {}
        self._sandboxes: dict[str, dict[str, PodSandbox]] = {}
        """Pod UID to its sandboxes: a pod whose sandbox was recreated has several for a while."""
        self._ended_pods: set[str] = set()
        """Sandboxes that were stopped: they own no claim that none of their containers uses."""
        self._showing: dict[str, dict[str, None]] = {}
        """Claim UID to the containers that show it, in the order they came."""
        self._owners: dict[str, str] = {}
        """Claim UID to the UID of the pod that used it first."""
        self._outdated: set[str] = set()
        """Containers whose desired resources may differ from what was told."""
        self._settled: tuple[Driver, PreparedClaims] | None = None
        self._last_resources: tuple[object, Resources] | None = None

    @property
    def trust_cdi(self) -> bool:
        """Whether this runtime is known to report CDI device names."""
        return self._resolver.trust_cdi

    @trust_cdi.setter
    def trust_cdi(self, known: bool) -> None:
        self._resolver.trust_cdi = known
        self._settled = None

    @property
    def confirmed(self) -> set[tuple[str, str]]:
        """(claim UID, pod UID) pairs that the API server confirmed in addition to the checkpoint's."""
        return self._resolver.confirmed

    def confirm(self, claim_uid: str, pod_uid: str) -> None:
        """The API server says that the claim is reserved for the pod."""
        self._resolver.confirmed.add((claim_uid, pod_uid))
        self._outdated.update(self._showing.get(claim_uid, ()))

    # -- events ----------------------------------------------------------------------------------

    def synchronize(
        self, pods: Iterable[PodSandbox], containers: Iterable[NriContainer]
    ) -> list[ContainerUpdate]:
        """Forget everything and take over what the runtime has; returns what must change.

        Containers that cannot be served are noted as conflicts; they stop nothing.
        """
        self.take_over(pods, containers)
        return self.settle()

    def take_over(self, pods: Iterable[PodSandbox], containers: Iterable[NriContainer]) -> None:
        """The first half of :meth:`synchronize`: note what exists, decide nothing yet."""
        self.pods, self._sandboxes = {}, {}
        self.containers, self._showing, self._owners = {}, {}, {}
        self._ended_pods.clear()
        for pod in pods:
            self._add_pod(pod)
        self._resolver.confirmed = {p for p in self.confirmed if p[1] in self._sandboxes}
        for reported in containers:
            if reported.state is State.STOPPED:
                continue
            pod = self.pods.get(reported.pod_id) or PodSandbox(id=reported.pod_id)
            self._add(self._found(pod, reported))
        for uid in self._showing:
            self._choose_owner(uid)
        self._settled = None

    def create(self, pod: PodSandbox, reported: NriContainer) -> Adjustment:
        """What a new container must look like, and what others must change before it starts.

        Raises :class:`RejectedError` when it must not be created; nothing is remembered of it then.
        """
        self._add_pod(pod)
        kept, shown = self._kept(reported)
        self._resolver.check_reported(pod, reported, shown)
        known = TrackedContainer(pod, kept, shown, None, reported.resources)
        desired = self.desired_of(known)
        resources = resources_of(desired)
        _tell(known, resources.over(reported.resources))
        updates = self.settle(excluding=reported.id)
        known.asked = tuple(update.container_id for update in updates)
        self._add(known)
        for uid in shown.claims:
            self._choose_owner(uid)
        return Adjustment(
            resources=resources,
            env=dict(desired.env),
            annotations=note_for(resources, reported.resources),
            updates=tuple(updates),
        )

    def update(
        self, pod: PodSandbox, reported: NriContainer, wanted: Resources
    ) -> list[ContainerUpdate]:
        """Somebody (the kubelet) changes a container: put our limits over theirs.

        Raises :class:`RejectedError` when the container must not run as it is.
        """
        known = self._noted(pod, reported)
        known.wanted = wanted.over(known.wanted)
        resources = resources_of(self.desired_of(known))
        _tell(known, resources.over(wanted).over(known.last_sent or NOTHING))
        updates = self.settle(excluding=reported.id)
        if resources != NOTHING:
            updates.insert(0, ContainerUpdate(container_id=reported.id, resources=resources))
        return updates

    def started(self, pod: PodSandbox, reported: NriContainer, *, runs: bool = False) -> bool:
        """Note a start; says whether the container was unknown: its creation was missed.

        *runs* says that it has started, not that it is about to.
        """
        missed = reported.id not in self.containers
        known = self._noted(pod, reported)
        known.asked = ()
        known.ran = known.ran or runs
        return missed

    def stopped(self, container_id: str) -> list[ContainerUpdate]:
        """A container ended; returns what others must change (and carries what was waiting)."""
        known = self._drop(container_id)
        if known is not None:
            self.mark_unsent(known.asked)
        return self.settle()

    def removed(self, container_id: str) -> None:
        """A container is gone for good."""
        self._drop(container_id)

    def pod_started(self, pod: PodSandbox) -> None:
        """A pod's sandbox runs."""
        self._add_pod(pod)
        self._ended_pods.discard(pod.id)

    def pod_stopped(self, pod: PodSandbox) -> None:
        """A pod's sandbox was stopped: it keeps only the claims that its containers still use."""
        if pod.id in self.pods:
            self._ended_pods.add(pod.id)
            self._pass_on(pod.uid)

    def pod_removed(self, pod_id: str) -> None:
        """A pod sandbox is gone, and its containers with it. Another sandbox of the pod may live on."""
        for container_id in [c for c, known in self.containers.items() if known.pod.id == pod_id]:
            self._drop(container_id)
        pod = self.pods.pop(pod_id, None)
        self._ended_pods.discard(pod_id)
        if pod is None:
            return
        others = self._sandboxes[pod.uid]
        others.pop(pod_id, None)
        if not others:
            del self._sandboxes[pod.uid]
            self._resolver.confirmed = {pair for pair in self.confirmed if pair[1] != pod.uid}
        self._pass_on(pod.uid)

    def _add_pod(self, pod: PodSandbox) -> None:
        self.pods[pod.id] = pod
        self._sandboxes.setdefault(pod.uid, {})[pod.id] = pod

    # -- users and owners of claims ------------------------------------------------------------------

    def users_of(self, claim_uid: str) -> list[TrackedContainer]:
        """The containers that were rightly created with a claim and are not known to have stopped.

        Also for a claim without a readable record: then a CDI device names it, or a marker whose
        container's CPUs are held for the claim.
        """
        entry = self._prepared_claims().get(claim_uid)
        showing = (self.containers[each] for each in self._showing.get(claim_uid, ()))
        return [known for known in showing if self._uses_rightly(known, claim_uid, entry)]

    def _uses_rightly(
        self, known: TrackedContainer, claim_uid: str, entry: PreparedClaim | None
    ) -> bool:
        if claim_uid in known.shown.device_claims:
            return True
        if entry is not None:
            return self._resolver.is_reserved(entry, known.pod.uid)
        held = CpuSet.union(self._prepared_claims().orphaned.get(claim_uid, {}).values())
        return bool(known.cpus) and known.cpus <= held

    def shown_claims(self) -> Collection[str]:
        """UIDs of all claims that some container shows, rightly or not."""
        return self._showing.keys()

    def orphaned(
        self,
        prepared: Collection[str],
        ended: Callable[[TrackedContainer], bool] = lambda known: False,
    ) -> dict[str, CpuSet]:
        """CPUs of running containers whose claim has no readable record, by claim UID.

        A CDI device name is proof. A variable counts only for claims in *prepared* (UIDs of which this
        node has other evidence), without CPUs that containers without claims use as well, and only as
        long as some CPU is left for those.
        """
        prepared_claims = self._prepared_claims()
        lost = [uid for uid in self._showing if prepared_claims.get(uid) is None]
        recorded = CpuSet.union(map(_exclusive, prepared_claims)) if lost else CpuSet()
        proven: dict[str, CpuSet] = {}
        shown: dict[str, CpuSet] = {}
        for uid in lost:
            for known in (self.containers[each] for each in self._showing[uid]):
                if ended(known):
                    continue
                cpus = known.cpus - recorded
                if uid in known.shown.device_claims:
                    proven[uid] = proven.get(uid, CpuSet()) | cpus
                elif uid in prepared and not self.trust_cdi:
                    shown[uid] = shown.get(uid, CpuSet()) | cpus
        if shown:
            shared = self._used_without_claims()
            shown = {uid: cpus - shared for uid, cpus in shown.items()}
            if not self._leaves_some(shown):
                shown = {}
        return {uid: cpus for uid, cpus in (shown | proven).items() if cpus}

    def _used_without_claims(self) -> CpuSet:
        plain = {k.cpu_list for k in self.containers.values() if not k.shows_claims}
        return CpuSet.union(map(_parsed, plain))

    def _leaves_some(self, held: dict[str, CpuSet]) -> bool:
        """Whether containers without claims could still run if these CPUs were held as well."""
        prepared_claims = self._prepared_claims()
        orphaned = {
            **prepared_claims.orphaned,
            **{uid: {"cpu": cpus} for uid, cpus in held.items()},
        }
        probe = Container(id="", name="", pod_uid="", pod_name="", namespace="")
        try:
            desired = self._driver().enforce(probe, PreparedClaims(prepared_claims, orphaned))
        except RejectedError:
            return False
        return desired.cpus is None or bool(desired.cpus)

    def _choose_owner(self, claim_uid: str) -> None:
        """Note which pod owns a claim, unless that is settled: of its users the one that runs on it."""
        entry = self._prepared_claims().get(claim_uid)
        if claim_uid in self._owners or entry is None:
            return
        order = {uid: place for place, uid in enumerate(entry.consumers)}
        own = _exclusive(entry)

        def rank(known: TrackedContainer) -> tuple[bool, int]:
            pinned = bool(known.cpus) and known.cpus <= own
            return not pinned, order.get(known.pod.uid, len(order))

        users = self.users_of(claim_uid)
        if users:
            self._owners[claim_uid] = min(users, key=rank).pod.uid

    def _pass_on(self, pod_uid: str) -> None:
        """The pod may have ended: claims that none of its containers uses go to whoever waits."""
        if self._is_here(pod_uid):
            return
        for claim_uid in [uid for uid, owner in self._owners.items() if owner == pod_uid]:
            if all(user.pod.uid != pod_uid for user in self.users_of(claim_uid)):
                del self._owners[claim_uid]
                self._choose_owner(claim_uid)
                self._outdated.update(self._showing.get(claim_uid, ()))

    def pod_has_stopped(self, pod: PodSandbox) -> bool:
        """Whether the pod's sandbox was stopped or is gone."""
        return pod.id in self._ended_pods or pod.id not in self.pods

    def _is_here(self, pod_uid: str) -> bool:
        """Whether the pod has a sandbox that was not stopped."""
        return any(each not in self._ended_pods for each in self._sandboxes.get(pod_uid, ()))

    def _owner(self, entry: PreparedClaim, asking: PodSandbox) -> PodSandbox:
        """The pod a claim belongs to: its user, else the first it was reserved for that is here."""
        owner = self._owners.get(entry.uid)
        if owner is None:
            owner = next(
                (uid for uid in entry.consumers if uid == asking.uid or self._is_here(uid)), None
            )
        if owner is None or owner == asking.uid:
            return asking
        return next(iter(self._sandboxes.get(owner, {}).values()), asking)

    # -- the level ---------------------------------------------------------------------------------

    def settle(self, *, excluding: str | None = None) -> list[ContainerUpdate]:
        """All changes needed so that every known container looks as it must, each at most once.

        What is returned counts as told: send it, or call :meth:`mark_unsent` if it could not be sent.
        """
        updates = [
            update for each in self.outdated(excluding) if (update := self.next_update(each))
        ]
        # Runtimes apply them one after the other: who leaves CPUs goes before who comes to own them.
        updates.sort(key=lambda update: self.containers[update.container_id].shows_claims)
        return updates

    def outdated(self, excluding: str | None = None) -> list[str]:
        """Containers that may have to change, in the order in which they should be told."""
        driver, prepared_claims = self._driver(), self._prepared_claims()
        if (
            self._settled is None
            or self._settled[1] is not prepared_claims
            or (self._settled[0] is not driver and self._settled[0] != driver)
        ):
            self._outdated = set(self.containers)
        self._settled = (driver, prepared_claims)
        self._outdated &= self.containers.keys()
        waiting = [each for each in self.containers if each in self._outdated and each != excluding]
        return sorted(waiting, key=lambda each: self.containers[each].shows_claims)

    def next_update(self, container_id: str) -> ContainerUpdate | None:
        """What the container must be told now; None when nothing. It counts as told then."""
        known = self.containers.get(container_id)
        if known is None:
            return None
        self._outdated.discard(container_id)
        desired = self.settled_desired(known)
        if desired is None:
            return None
        resources = self._resources(desired)
        if known.last_sent is not None and _holds(resources, known.last_sent):
            return None
        _tell(known, resources.over(known.last_sent or NOTHING))
        if resources == NOTHING:
            return None
        return ContainerUpdate(container_id=container_id, resources=resources)

    def mark_unsent(self, container_ids: Iterable[str]) -> None:
        """The runtime did not take these updates, or the container looks otherwise: send them again."""
        for container_id in container_ids:
            if container_id in self.containers:
                self.containers[container_id].last_sent = None
                self._outdated.add(container_id)

    def observed(self, container_id: str, cpus: str, mems: str) -> None:
        """The kernel has these CPUs and memory nodes for a container, whatever the runtime reports."""
        known = self.containers[container_id]
        _tell(known, Resources(cpus=cpus, mems=mems).over(known.last_sent or NOTHING))

    def allowed(self, container_id: str) -> CpuSet | None:
        """The CPUs that the container was last told to use; None when that is not known."""
        known = self.containers.get(container_id)
        return None if known is None or known.last_sent is None else _parsed(known.last_sent.cpus)

    def settled_desired(self, known: TrackedContainer) -> DesiredResources | None:
        """The shape a container that exists must have now; None: leave it as it is.

        A container that cannot be served – it came while nobody looked – is noted as a conflict and
        confined like one without claims: it must not run on CPUs that belong to others. Only one that
        runs pinned on a claim whose record was lost stays as it is: its CPUs are held for it.
        """
        try:
            desired = self.desired_of(known)
        except RejectedError as error:
            self._note_conflict(known, str(error))
            if error.reason == "unknown-claim" and self._is_held(known):
                return None
            try:
                return self._checked(self._view(known, ()))
            except RejectedError:
                return None
        known.conflict = None
        return desired

    def _is_held(self, known: TrackedContainer) -> bool:
        """Whether the container runs on CPUs that are held for a claim without a readable record."""
        orphaned = self._prepared_claims().orphaned
        held = CpuSet.union(
            numbers for uid in known.shown.claims for numbers in orphaned.get(uid, {}).values()
        )
        return bool(known.cpus) and (known.cpus <= held or bool(known.shown.devices))

    def desired_of(self, known: TrackedContainer) -> DesiredResources:
        """The shape a container must have now; raises :class:`RejectedError`."""
        return self._checked(self._view(known, self._parts(known)))

    def _checked(self, container: Container) -> DesiredResources:
        desired = self._driver().enforce(container, self._prepared_claims())
        if (desired.cpus is not None and not desired.cpus) or (
            desired.mems is not None and not desired.mems
        ):
            # To NRI an empty list means "no change": the container would run anywhere.
            raise RejectedError(
                f"{container} would get no CPU or no memory node at all", reason="empty"
            )
        return desired

    def _resources(self, desired: DesiredResources) -> Resources:
        """A shape as limits; containers without claims have few different ones."""
        if desired.env or desired.memory_limit or desired.hugepage_limits or desired.unified:
            return resources_of(desired)
        key = (desired.cpus, desired.mems, desired.lift_quota)
        if self._last_resources is None or self._last_resources[0] != key:
            self._last_resources = (key, resources_of(desired))
        return self._last_resources[1]

    def conflicts(self) -> dict[str, str]:
        """Containers that cannot be served as they are, with the reason."""
        return {c: known.conflict for c, known in self.containers.items() if known.conflict}

    def unconfirmed_claims(self) -> list[ForeignClaimError]:
        """What would have to be confirmed for containers in conflict to be served."""
        found = []
        for known in self.containers.values():
            if known.conflict:
                try:
                    self.desired_of(known)
                except ForeignClaimError as error:
                    found.append(error)
                except RejectedError:
                    continue
        return found

    def unenforced_claims(self, container_id: str) -> tuple[Use, ...]:
        """The claims of a container that does not look as they demand; none when it does.

        Raises :class:`RejectedError` when the container must not run at all.
        """
        known = self.containers[container_id]
        resources = resources_of(self.desired_of(known))
        if _holds(resources, known.last_sent or NOTHING):
            return ()
        return self._uses(self._parts(known), known.pod)

    def exclusive_cpus(self, container_id: str) -> CpuSet:
        """The CPUs that are a container's by its claims; none if it has none or is in conflict."""
        known = self.containers.get(container_id)
        if known is None or not known.shows_claims:
            return CpuSet()
        try:
            container = self._view(known, self._parts(known))
            return (self._checked(container).cpus if container.uses else None) or CpuSet()
        except RejectedError:
            return CpuSet()

    def pod_views(self) -> list[PodView]:
        """All pods with their containers, for what is done to pods; conflicts use no claims."""
        inside: dict[str, list[Container]] = {}
        for known in self.containers.values():
            try:
                parts = self._parts(known)
            except RejectedError:
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

    # -- inside ------------------------------------------------------------------------------------

    def _parts(self, known: TrackedContainer) -> tuple[names.Part, ...]:
        if known.shown is names.NOTHING_SHOWN:
            return ()
        return self._resolver.parts(known.pod, known.reported.name, known.shown)

    def _view(self, known: TrackedContainer, parts: Sequence[names.Part]) -> Container:
        pod, reported = known.pod, known.reported
        return Container(
            id=reported.id,
            name=reported.name,
            pod_uid=pod.uid,
            pod_name=pod.name,
            namespace=pod.namespace,
            uses=self._uses(parts, pod) if parts else (),
            labels=reported.labels,
            annotations=reported.annotations,
            cgroup_path=reported.cgroups_path,
            cgroup_parent=pod.cgroup_parent,
            memory_limit=known.wanted.memory_limit,
            hugepage_limits=known.wanted.hugepage_limits,
        )

    def _uses(self, parts: Sequence[names.Part], pod: PodSandbox) -> tuple[Use, ...]:
        prepared_claims = self._prepared_claims()
        by_claim: dict[str, list[str]] = {}
        for part in parts:
            by_claim.setdefault(part.uid, []).append(part.request)
        uses = []
        for uid, requests in by_claim.items():
            entry = prepared_claims.get(uid)
            if entry is None:  # the index is of this very view
                raise RejectedError(f"claim {uid} is not prepared", reason="unknown-claim")
            prepared_devices = tuple(
                prepared for prepared in entry.prepared_devices if prepared.request in requests
            )
            owner = self._owner(entry, pod)
            uses.append(Use(entry, prepared_devices, owner.uid, f"{owner.namespace}/{owner.name}"))
        return tuple(uses)

    def _add(self, known: TrackedContainer) -> None:
        container_id = known.reported.id
        self._drop(container_id)
        self.containers[container_id] = known
        for uid in known.shown.claims if known.shows_claims else ():
            self._showing.setdefault(uid, {})[container_id] = None

    def _drop(self, container_id: str) -> TrackedContainer | None:
        known = self.containers.pop(container_id, None)
        if known is not None and known.shows_claims:
            for uid in known.shown.claims:
                showing = self._showing.get(uid, {})
                showing.pop(container_id, None)
                if not showing:
                    self._showing.pop(uid, None)
            self._pass_on(known.pod.uid)
        return known

    def _noted(self, pod: PodSandbox, reported: NriContainer) -> TrackedContainer:
        """The container, taken in as it is if its creation was missed."""
        self._add_pod(pod)
        known = self.containers.get(reported.id)
        if known is None:
            known = self._found(pod, reported)
            self._add(known)
            self._outdated.add(reported.id)
            for uid in known.shown.claims:
                self._choose_owner(uid)
        return known

    def _found(self, pod: PodSandbox, reported: NriContainer) -> TrackedContainer:
        """A container whose creation was not seen by this process."""
        runs = reported.state in (State.RUNNING, State.PAUSED)
        wanted = _wanted_before(reported, pod)
        kept, shown = self._kept(reported)
        cpus = reported.resources.cpus
        return TrackedContainer(
            pod, kept, shown, reported.resources, wanted, ran=runs, cpu_list=cpus
        )

    def _kept(self, reported: NriContainer) -> tuple[NriContainer, names.Shown]:
        """The report without its environment, and what it shows: a node has hundreds of containers."""
        shown = names.shown(self._driver().cdi_kind, reported.cdi_devices, reported.env)
        return msgspec.structs.replace(reported, env=()), shown

    def _note_conflict(self, known: TrackedContainer, reason: str) -> None:
        if known.conflict != reason:
            _LOG.error("%s of %s cannot be served: %s", known.reported, known.pod, reason)
        known.conflict = reason


def _exclusive(entry: PreparedClaim) -> CpuSet:
    """All numbers that the claim holds exclusively, of any kind."""
    return CpuSet.union(
        numbers for prepared in entry.prepared_devices for numbers in prepared.exclusive.values()
    )


def _tell(known: TrackedContainer, limits: Resources) -> None:
    known.last_sent = limits
    known.cpu_list = limits.cpus or known.cpu_list


def _parsed(text: str) -> CpuSet:
    """A list of CPUs as the runtime reports it; none if it reports nothing that makes sense."""
    try:
        return CpuSet.parse(text)
    except ValueError:
        return CpuSet()


def resources_of(desired: DesiredResources) -> Resources:
    """A shape as the runtime's limits."""
    return Resources(
        cpus=str(desired.cpus) if desired.cpus is not None else "",
        mems=str(desired.mems) if desired.mems is not None else "",
        quota=-1 if desired.lift_quota else None,
        memory_limit=desired.memory_limit,
        hugepage_limits=dict(desired.hugepage_limits),
        unified=dict(desired.unified),
    )


def _holds(wanted: Resources, last_sent: Resources) -> bool:
    """Whether everything set in *wanted* is so in *told*; CPU lists may be spelled differently."""
    return (
        _same_list(wanted.cpus, last_sent.cpus)
        and _same_list(wanted.mems, last_sent.mems)
        and wanted.quota in (None, last_sent.quota)
        and wanted.memory_limit in (None, last_sent.memory_limit)
        and _within(wanted.hugepage_limits, last_sent.hugepage_limits)
        and _within(wanted.unified, last_sent.unified)
    )


def _within(wanted: Mapping[str, object], last_sent: Mapping[str, object]) -> bool:
    return not wanted or all(last_sent.get(key) == value for key, value in wanted.items())


@functools.lru_cache(maxsize=64)  # containers without claims all change from one list to another
def _same_list(wanted: str, last_sent: str) -> bool:
    if not wanted or wanted == last_sent:
        return True
    try:
        return CpuSet.parse(wanted) == CpuSet.parse(last_sent)
    except ValueError:
        return False
