"""Desired resources of a container, computed from the checkpoint without I/O or side effects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from drakit.core.cpuset import CpuSet
from drakit.kit.claims.cdi_names import ClaimRequest
from drakit.kit.driver import ClaimUse, ContainerView, DesiredResources, Driver, PreparedClaims, RejectedError
from drakit.kit.runtime.container_claims import ClaimOwners, ClaimResolver
from drakit.kit.runtime.tracking import TrackedContainer
from drakit.wire.nri.values import PodSandbox, Resources


class Decision(NamedTuple):
    """What an existing container must get, and why it cannot be served, if it cannot."""

    desired: DesiredResources | None
    """None: leave the container as it is."""
    conflict: str | None = None


@dataclass(eq=False, slots=True)
class ResourceCalculator:
    """Computes desired resources by calling the driver's ``enforce``. Pure: nothing is recorded."""

    _driver: Callable[[], Driver]
    _prepared_claims: Callable[[], PreparedClaims]
    _resolver: ClaimResolver
    _owners: ClaimOwners

    def desired(self, container: TrackedContainer) -> DesiredResources:
        """The resources a container must have now; raises :class:`RejectedError`."""
        return self._enforce(self.view(container))

    def decide(self, container: TrackedContainer) -> Decision:
        """The resources an existing container must have now, even if it cannot be served.

        A container in conflict (its creation was missed) gets the resources of one without claims: it must
        not run on CPUs of others. Only a container that is pinned to a claim whose record was lost stays as
        it is: its CPUs are held for it.
        """
        try:
            return Decision(self.desired(container))
        except RejectedError as error:
            conflict = str(error)
            if error.reason == "unknown-claim" and self._is_held(container):
                return Decision(None, conflict)
        try:
            return Decision(self._enforce(self._view(container, ())), conflict)
        except RejectedError:
            return Decision(None, conflict)

    def exclusive_cpus(self, container: TrackedContainer) -> CpuSet:
        """The CPUs a container has by its claims; none without claims or in conflict."""
        if not container.references_claims:
            return CpuSet()
        try:
            view = self.view(container)
            return (self._enforce(view).cpus if view.uses else None) or CpuSet()
        except RejectedError:
            return CpuSet()

    def view(self, container: TrackedContainer, *, rejected_ok: bool = False) -> ContainerView:
        """A container as drivers see it; *rejected_ok*: without claims if it must not use them."""
        requests: tuple[ClaimRequest, ...] = ()
        if container.references_claims:
            try:
                requests = self._resolver.requests(
                    container.pod, container.reported.name, container.references
                )
            except RejectedError:
                if not rejected_ok:
                    raise
        return self._view(container, requests)

    def _view(self, container: TrackedContainer, requests: Sequence[ClaimRequest]) -> ContainerView:
        pod, reported = container.pod, container.reported
        return ContainerView(
            id=reported.id,
            name=reported.name,
            pod_uid=pod.uid,
            pod_name=pod.name,
            namespace=pod.namespace,
            uses=self._uses(requests, pod) if requests else (),
            labels=reported.labels,
            annotations=reported.annotations,
            cgroup_path=reported.cgroups_path,
            cgroup_parent=pod.cgroup_parent,
            memory_limit=container.kubelet_limits.memory_limit,
            hugepage_limits=container.kubelet_limits.hugepage_limits,
        )

    def _uses(self, requests: Sequence[ClaimRequest], pod: PodSandbox) -> tuple[ClaimUse, ...]:
        by_claim: dict[str, list[str]] = {}
        for each in requests:
            by_claim.setdefault(each.uid, []).append(each.request)
        uses = []
        for uid, wanted in by_claim.items():
            claim = self._prepared_claims().get(uid)
            if claim is None:  # cannot be: the index was made from the same prepared claims
                raise RejectedError(f"claim {uid} is not prepared", reason="unknown-claim")
            devices = tuple(device for device in claim.devices if device.request in wanted)
            owner = self._owners.owner(claim, pod)
            uses.append(ClaimUse(claim, devices, owner.uid, f"{owner.namespace}/{owner.name}"))
        return tuple(uses)

    def _enforce(self, view: ContainerView) -> DesiredResources:
        desired = self._driver().enforce(view, self._prepared_claims())
        if (desired.cpus is not None and not desired.cpus) or (desired.mems is not None and not desired.mems):
            # To NRI an empty list means "no change": the container would run on all CPUs.
            raise RejectedError(f"{view} would get no CPU or no memory node at all", reason="empty")
        return desired

    def _is_held(self, container: TrackedContainer) -> bool:
        """Whether the container runs on CPUs held for a claim without a readable record."""
        held = self._owners.held_cpus(container.references.claims)
        return container.is_pinned_to(held) or bool(container.cpus and container.references.devices)


def resources_of(desired: DesiredResources) -> Resources:
    """Desired resources as NRI resources."""
    return Resources(
        cpus=_text(desired.cpus),
        mems=_text(desired.mems),
        quota=-1 if desired.lift_quota else None,
        memory_limit=desired.memory_limit,
        hugepage_limits=dict(desired.hugepage_limits),
        unified=dict(desired.unified),
    )


@functools.lru_cache(maxsize=64)  # most containers have no claim and the same few values
def _text(numbers: CpuSet | None) -> str:
    return "" if numbers is None else str(numbers)


def is_in_effect(wanted: Resources, last_sent: Resources) -> bool:
    """Whether everything set in *wanted* is so in *last_sent*; CPU lists are compared as sets."""
    return (
        _same_list(wanted.cpus, last_sent.cpus)
        and _same_list(wanted.mems, last_sent.mems)
        and wanted.quota in (None, last_sent.quota)
        and wanted.memory_limit in (None, last_sent.memory_limit)
        and wanted.hugepage_limits.items() <= last_sent.hugepage_limits.items()
        and wanted.unified.items() <= last_sent.unified.items()
    )


@functools.lru_cache(maxsize=64)  # containers without claims all change from one list to another
def _same_list(wanted: str, last_sent: str) -> bool:
    if not wanted or wanted == last_sent:
        return True
    try:
        return CpuSet.parse(wanted) == CpuSet.parse(last_sent)
    except ValueError:
        return False
