"""Desired resources of every container of the runtime, and the updates that establish them, without I/O.

Level-triggered: the desired resources of every container follow from the checkpoint as it is now, so a lost
event, a restart or a change by another instance is corrected at the next event. A container
that cannot be served is not created; one that exists already is recorded as a *conflict* with its reason and
gets the resources of a container without claims. The others are not affected.

Cost: an event computes only the containers it concerns. All containers are computed only after the
checkpoint or the driver changed, and then with lookups only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from drakit.cgroups.values import parse_list
from drakit.core.cpuset import CpuSet
from drakit.core.log import get_logger
from drakit.kit.claims.cdi_names import ClaimReferences, claim_references
from drakit.kit.driver import ClaimUse, ContainerView, Driver, PreparedClaims, RejectedError
from drakit.kit.reconciler import PodView
from drakit.kit.runtime.container_claims import ClaimOwners, ClaimResolver, ForeignClaimError
from drakit.kit.runtime.desired import Decision, ResourceCalculator, is_in_effect, resources_of
from drakit.kit.runtime.tracking import ContainerTracker, TrackedContainer, annotation_for, kubelet_limits
from drakit.wire.nri.values import (
    NOTHING,
    Adjustment,
    ContainerUpdate,
    NriContainer,
    PodSandbox,
    Resources,
    State,
)

log = get_logger(__name__)


class Enforcer:
    """Computes the resources of all containers, for one connection to a runtime.

    *driver* and *prepared_claims* are functions because both change over time. *trust_cdi*: this runtime is
    known to report CDI device names.
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
        self._tracker = ContainerTracker()
        self._resolver = ClaimResolver(driver, prepared_claims, trust_cdi)
        self._owners = ClaimOwners(driver, prepared_claims, self._tracker, self._resolver)
        self._calculator = ResourceCalculator(driver, prepared_claims, self._resolver, self._owners)
        self._outdated: set[str] = set()
        """Containers whose desired resources may differ from those last sent."""
        self._computed_for: tuple[Driver, PreparedClaims] | None = None
        self.containers: Mapping[str, TrackedContainer] = self._tracker.containers
        self.pod_started = self._tracker.start_pod
        self.has_stopped = self._tracker.has_stopped
        self.referenced_claims = self._tracker.referenced_claims
        self.users_of = self._owners.users_of
        self.orphaned = self._owners.orphaned
        self.desired = self._calculator.desired
        self.decide = self._calculator.decide
        self.exclusive_cpus = self._calculator.exclusive_cpus

    @property
    def trust_cdi(self) -> bool:
        """Whether this runtime is known to report CDI device names."""
        return self._resolver.trust_cdi

    @trust_cdi.setter
    def trust_cdi(self, trust: bool) -> None:
        self._resolver.trust_cdi = trust
        self._computed_for = None

    def confirm(self, claim_uid: str, pod_uid: str) -> None:
        """Record that the claim is reserved for the pod, as the API server reports."""
        self._resolver.confirm(claim_uid, pod_uid)
        self._mark_users_outdated([claim_uid])

    def replace_all(self, pods: Iterable[PodSandbox], containers: Iterable[NriContainer]) -> None:
        """Replace everything with the runtime's pods and containers; computes nothing yet."""
        self._tracker.clear()
        self._owners.clear()
        for pod in pods:
            self._tracker.add_pod(pod)
        self._resolver.keep_confirmed(lambda pod_uid: self._tracker.sandbox_of(pod_uid) is not None)
        for reported in containers:
            if reported.state is not State.STOPPED:
                pod = self._tracker.pods.get(reported.pod_id) or PodSandbox(id=reported.pod_id)
                self._tracker.add(self._existing(pod, reported))
        self._owners.choose(self._tracker.referenced_claims())
        self._computed_for = None

    def create(self, pod: PodSandbox, reported: NriContainer) -> Adjustment:
        """The resources of a new container, and the updates of others needed before it starts.

        Raises :class:`RejectedError` when it must not be created; nothing is recorded then.
        """
        self._tracker.add_pod(pod)
        kept, references = self._references(reported)
        self._resolver.check_reported(pod, reported, references)
        limits = reported.resources
        container = TrackedContainer(pod, kept, references, limits, limits)
        desired = self._calculator.desired(container)
        resources = resources_of(desired)
        container.note_sent(resources)
        updates = tuple(self.collect_updates(excluding=reported.id))
        container.updated_with_creation = tuple(update.container_id for update in updates)
        self._tracker.add(container)
        self._owners.choose(references.claims)
        return Adjustment(
            resources=resources,
            env=dict(desired.env),
            annotations=annotation_for(resources, limits),
            updates=updates,
        )

    def update(self, pod: PodSandbox, reported: NriContainer, requested: Resources) -> list[ContainerUpdate]:
        """The kubelet or another client sets *requested*: returns the updates that keep ours.

        Raises :class:`RejectedError` when the container must not run as it is.
        """
        container = self._track(pod, reported)
        container.kubelet_limits = requested.over(container.kubelet_limits)
        resources = resources_of(self._calculator.desired(container))
        container.note_sent(resources.over(requested))
        updates = self.collect_updates(excluding=reported.id)
        if resources != NOTHING:
            updates.insert(0, ContainerUpdate(container_id=reported.id, resources=resources))
        return updates

    def started(self, pod: PodSandbox, reported: NriContainer, *, runs: bool = False) -> bool:
        """Record a start (*runs*) or its announcement; returns whether the creation was missed."""
        missed = reported.id not in self.containers
        container = self._track(pod, reported)
        container.updated_with_creation = ()
        container.ran = container.ran or runs
        return missed

    def stopped(self, container_id: str) -> list[ContainerUpdate]:
        """Record that a container ended; returns all updates that are needed now."""
        container = self.removed(container_id)
        if container is not None:
            self.mark_unsent(container.updated_with_creation)
        return self.collect_updates()

    def removed(self, container_id: str) -> TrackedContainer | None:
        """Forget a container; returns it."""
        container = self._tracker.remove(container_id)
        if container is not None and container.references_claims:
            self._release(container.pod.uid)
        return container

    def pod_stopped(self, pod: PodSandbox) -> None:
        """Record that a sandbox was stopped: it keeps only the claims its containers still use."""
        if pod.id in self._tracker.pods:
            self._tracker.stop_pod(pod)
            self._release(pod.uid)

    def pod_removed(self, pod_id: str) -> None:
        """Forget a sandbox and its containers. Another sandbox of the pod may still exist."""
        for container_id in [c for c, each in self.containers.items() if each.pod.id == pod_id]:
            self.removed(container_id)
        pod = self._tracker.remove_pod(pod_id)
        if pod is not None:
            if self._tracker.sandbox_of(pod.uid) is None:
                self._resolver.keep_confirmed(lambda pod_uid: pod_uid != pod.uid)
            self._release(pod.uid)

    def collect_updates(self, *, excluding: str | None = None) -> list[ContainerUpdate]:
        """The updates that give every container its desired resources, at most one for each.

        They count as sent: send them, or call :meth:`mark_unsent` if they could not be sent.
        """
        return [update for each in self.outdated(excluding) if (update := self.next_update(each))]

    def outdated(self, excluding: str | None = None) -> list[str]:
        """Containers that may need an update, in the order in which to send them.

        Runtimes apply updates one after the other: containers that leave CPUs come before those that get
        them exclusively.
        """
        driver, prepared_claims = self._driver(), self._prepared_claims()
        last_driver, last_claims = self._computed_for or (None, None)
        if last_claims is not prepared_claims or last_driver != driver:
            self._outdated = set(self.containers)
        self._computed_for = (driver, prepared_claims)
        self._outdated &= self.containers.keys()
        waiting = [each for each in self.containers if each in self._outdated and each != excluding]
        return sorted(waiting, key=lambda each: self.containers[each].references_claims)

    def next_update(self, container_id: str) -> ContainerUpdate | None:
        """The update that a container needs now, if any. It counts as sent then."""
        container = self.containers.get(container_id)
        if container is None:
            return None
        self._outdated.discard(container_id)
        decision = self._calculator.decide(container)
        self._note_conflict(container, decision)
        if decision.desired is None:
            return None
        resources = resources_of(decision.desired)
        if container.last_sent is not None and is_in_effect(resources, container.last_sent):
            return None
        container.note_sent(resources)
        if resources == NOTHING:
            return None
        return ContainerUpdate(container_id=container_id, resources=resources)

    def mark_unsent(self, container_ids: Iterable[str]) -> None:
        """Send updates of these containers again: the runtime did not apply them, or they drifted."""
        for container_id in container_ids:
            if container_id in self.containers:
                self.containers[container_id].last_sent = None
                self._outdated.add(container_id)

    def last_sent(self, container_id: str) -> Resources | None:
        """The resources that were last sent for a container; None if unknown."""
        container = self.containers.get(container_id)
        return None if container is None else container.last_sent

    def last_sent_cpus(self, container_id: str) -> CpuSet | None:
        """The CPUs that were last sent for a container; None if unknown."""
        sent = self.last_sent(container_id)
        return None if sent is None else parse_list(sent.cpus) or CpuSet()

    def note_conflicts(self) -> None:
        """Record and log conflicts of the containers whose desired resources may have changed."""
        for container_id in self.outdated():
            container = self.containers[container_id]
            self._note_conflict(container, self._calculator.decide(container))

    def conflicts(self) -> dict[str, str]:
        """Containers that cannot be served, with the reason."""
        return {c: each.conflict for c, each in self.containers.items() if each.conflict}

    def unconfirmed_claims(self) -> list[ForeignClaimError]:
        """The reservations that would have to be confirmed to resolve conflicts."""
        found = []
        for container_id in self.conflicts():
            try:
                self._calculator.desired(self.containers[container_id])
            except ForeignClaimError as error:
                found.append(error)
            except RejectedError:
                continue
        return found

    def unenforced_claims(self, container_id: str) -> tuple[ClaimUse, ...]:
        """The claims of a container that lacks its desired resources; none if it has them.

        Raises :class:`RejectedError` when the container must not run at all.
        """
        container = self.containers[container_id]
        resources = resources_of(self._calculator.desired(container))
        if is_in_effect(resources, container.last_sent or NOTHING):
            return ()
        return self._calculator.view(container).uses

    def pod_views(self) -> list[PodView]:
        """All pods with their containers, for the reconciler; containers in conflict use no claims."""
        views: dict[str, list[ContainerView]] = {}
        for each in self.containers.values():
            view = self._calculator.view(each, rejected_ok=True)
            views.setdefault(each.pod.id, []).append(view)
        return [
            PodView(
                uid=pod.uid,
                name=pod.name,
                namespace=pod.namespace,
                cgroup_parent=pod.cgroup_parent,
                containers=tuple(views.get(pod.id, ())),
                annotations=pod.annotations,
            )
            for pod in self._tracker.pods.values()
        ]

    def _release(self, pod_uid: str) -> None:
        self._mark_users_outdated(self._owners.release(pod_uid))

    def _mark_users_outdated(self, claim_uids: Iterable[str]) -> None:
        for uid in claim_uids:
            self._outdated.update(each.id for each in self._tracker.referring_to(uid))

    def _track(self, pod: PodSandbox, reported: NriContainer) -> TrackedContainer:
        """The tracked container; added as it is if its creation was missed."""
        self._tracker.add_pod(pod)
        container = self.containers.get(reported.id)
        if container is None:
            container = self._existing(pod, reported)
            self._tracker.add(container)
            self._outdated.add(reported.id)
            self._owners.choose(container.references.claims)
        return container

    def _existing(self, pod: PodSandbox, reported: NriContainer) -> TrackedContainer:
        """A container whose creation this process did not see."""
        kept, references = self._references(reported)
        return TrackedContainer(
            pod,
            kept,
            references,
            reported.resources,
            kubelet_limits(reported, pod),
            ran=reported.state in (State.RUNNING, State.PAUSED),
            cpu_list=reported.resources.cpus,
        )

    def _references(self, reported: NriContainer) -> tuple[NriContainer, ClaimReferences]:
        """The report without its environment, to save memory, and the claims it refers to."""
        kind = self._driver().cdi_kind
        references = claim_references(kind, reported.cdi_devices, reported.env)
        return msgspec.structs.replace(reported, env=()), references

    def _note_conflict(self, container: TrackedContainer, decision: Decision) -> None:
        if decision.conflict is not None and container.conflict != decision.conflict:
            log.error(
                "container cannot be served",
                container=container.reported,
                pod=container.pod,
                error=decision.conflict,
            )
        container.conflict = decision.conflict
