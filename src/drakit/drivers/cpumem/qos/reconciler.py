"""Memory QoS reconciler: pods and claims in, cgroup files of pods and their ancestors out.

Containers are not touched here: the driver's ``enforce`` computes their files with the same planner,
and the runtime sets them. No runtime event covers the cgroups of pods and above.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from drakit.cgroups.paths import PodCgroup, pod_cgroup, relative_path
from drakit.cgroups.values import amount
from drakit.core.bootrecord import boot_id
from drakit.core.log import get_logger
from drakit.drivers.cpumem.qos.planner import LOW, MIN, ContainerFacts, PodFacts, QosPlan, plan
from drakit.drivers.cpumem.qos.podspec import PodRequests, ReadSpecs
from drakit.drivers.cpumem.qos.record import CgroupRecord
from drakit.drivers.cpumem.qos.shares import MemoryShare, distinct, pages_of, shares_of
from drakit.drivers.cpumem.qos.usage import read_usage
from drakit.drivers.cpumem.qos.writer import CgroupWriter
from drakit.drivers.models.memory_policy import Knob, MemoryQosPolicy
from drakit.kit.driver import ContainerView, Driver, PreparedClaims
from drakit.kit.reconciler import PodView, Reconciler
from drakit.kit.telemetry.metrics import Gauge

log = get_logger(__name__)
_CHURN_SECONDS: Final = 120.0
"""How long after a change of pods the kubelet and systemd may still reset a slice: the kubelet removes
a pod's cgroup and updates the QoS classes asynchronously, at the latest in its loop of one minute."""


class QosReconciler(Reconciler):
    """Reconciles the memory and hugetlb files of pods and their ancestors.

    *root* is the cgroup v2 mount (empty: do nothing); *policy_of* returns the policy of a driver, or
    None for a driver without memory; *specs* reads the requests of pods, for mode ``all``.
    """

    def __init__(
        self,
        root: str,
        writer: CgroupWriter,
        policy_of: Callable[[Driver], MemoryQosPolicy | None],
        *,
        specs: ReadSpecs | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._writer = writer
        self._policy_of = policy_of
        self._specs = specs
        self._clock = clock
        self._pods: frozenset[str] | None = None
        self._pods_changed_at = -_CHURN_SECONDS
        self._policy = MemoryQosPolicy(mode="off")
        self._facts: tuple[PodFacts, ...] = ()
        self._plan = QosPlan()
        self._unprotected: frozenset[str] = frozenset()
        self._throttled: Mapping[str, int] = {}
        self._throttle_events = 0

    async def reconcile(
        self, driver: Driver, pods: Sequence[PodView], prepared_claims: PreparedClaims
    ) -> None:
        """Write the files that differ. Raises ``OSError`` if original values cannot be recorded."""
        policy = self._policy_of(driver)
        if policy is None or not self._root:
            return
        specs: Mapping[str, PodRequests] = {}
        if policy.mode == "all" and self._specs is not None:
            specs = await self._specs({pod.uid for pod in pods})
        uids = frozenset(pod.uid for pod in pods)
        if uids != self._pods:
            self._pods = uids
            self._pods_changed_at = self._clock()
        self._policy = policy
        self._facts = tuple(self._facts_of(_merged(pods), prepared_claims, specs))
        self._plan = plan(policy, self._facts)
        changed = self._clock() - self._pods_changed_at < _CHURN_SECONDS
        self._writer.apply(self._plan, pods_changed=changed)

    async def restore(self) -> None:
        """Restore the values from before this driver was installed."""
        for left in self._writer.restore():
            log.warning("cannot restore cgroup file", file=left)

    def _facts_of(
        self, pods: Mapping[str, PodView], prepared_claims: PreparedClaims, specs: Mapping[str, PodRequests]
    ) -> Iterable[PodFacts]:
        claims = _claims_by_pod(pods, prepared_claims)
        unprotected = set()
        for uid, pod in sorted(pods.items()):
            place = pod_cgroup(pod.cgroup_parent, uid)
            shares = claims.get(uid, ())
            if place is not None:
                yield self._pod_facts(place, pod, shares, specs.get(uid))
            elif shares:
                unprotected.add(name := f"{pod.namespace}/{pod.name}")
                if name not in self._unprotected:
                    log.warning(
                        "no pod cgroup: claims are not protected and hugepages not limited at pod "
                        "level; is cgroupsPerQOS off?",
                        pod=name,
                        cgroup_parent=pod.cgroup_parent,
                    )
        self._unprotected = frozenset(unprotected)

    def _pod_facts(
        self, place: PodCgroup, pod: PodView, shares: tuple[MemoryShare, ...], spec: PodRequests | None
    ) -> PodFacts:
        containers = tuple(_container_facts(each, spec) for each in pod.containers)
        return PodFacts(
            place=place,
            shares=shares,
            containers=containers,
            request=None if spec is None else spec.request,
            pod_limit=None if spec is None else spec.pod_limit,
            classic_pages=self._classic_pages(place, shares, containers),
        )

    def _classic_pages(
        self, place: PodCgroup, shares: tuple[MemoryShare, ...], containers: tuple[ContainerFacts, ...]
    ) -> dict[str, int]:
        """The hugepage limits of the pod without its claims.

        The kubelet wrote them to the pod's cgroup when it created it, so they are the original value.
        If that is 0 (a resize zeroes it, see kubernetes PR 141991), the requests of the pod's
        containers are used.
        """
        classic: dict[str, int] = {}
        for container in containers:
            for size, limit in container.classic_pages.items():
                classic[size] = classic.get(size, 0) + limit
        for size, claimed in pages_of(shares).items():
            file = f"hugetlb.{size}.max"
            found = amount(self._writer.original(place.pod, file) or "0")
            ours = not self._writer.manages(place.pod, file) and found == claimed + classic.get(size, 0)
            if 0 < found < 1 << 62 and not ours:  # ours: set by the driver, and its record was lost
                classic[size] = int(found)
        return classic

    def gauges(self) -> Iterable[Gauge]:
        """Protected and used memory, throttling, and writes of our files."""
        yield from self._protection_gauges()
        yield from self._file_gauges()
        claiming = [pod for pod in self._facts if pod.claims]
        sizes = {size for pod in claiming for size in pages_of(pod.claims)}
        usage = read_usage(self._root, (pod.place.pod for pod in claiming), sorted(sizes))
        for (node, kind), used in sorted(usage.used.items()):
            labels = (("numa_node", str(node)), ("kind", kind))
            yield Gauge("used_bytes", "Memory and hugepages used by pods with claims.", used, labels)
        self._throttle_events += sum(
            count - before if count >= (before := self._throttled.get(path, 0)) else count
            for path, count in usage.throttled.items()
        )
        self._throttled = usage.throttled
        text = "Times that pods with claims were throttled at memory.high."
        yield Gauge("memory_throttle_events_total", text, self._throttle_events)

    def _protection_gauges(self) -> Iterable[Gauge]:
        roots = {pod.place.root for pod in self._facts}
        for file, level in ((MIN, "hard"), (LOW, "soft")):
            protected = sum(int(self._plan.tree.get(root, {}).get(file, 0)) for root in roots)
            text = "Memory protected by memory.min (hard) and memory.low (soft)."
            yield Gauge("memory_protected_bytes", text, protected, (("level", level),))
        for knob in Knob:
            owner = "driver" if self._policy.owns(knob) else "nobody"
            owner = "kubelet" if knob in self._policy.kubelets else owner
            text = "The process that writes a group of memory files: 1 for the owner."
            for name in ("driver", "kubelet", "nobody"):
                labels = (("files", knob.value), ("owner", name))
                yield Gauge("memory_file_owner", text, float(owner == name), labels)

    def _file_gauges(self) -> Iterable[Gauge]:
        counts, contested = self._writer.counts, len(self._writer.contested)
        for name, text, value in (
            ("cgroup_writes_total", "Writes to cgroup files of pods and above.", counts.written),
            ("cgroup_resets_total", "Values reset by the kubelet or systemd.", counts.reset),
            ("cgroup_foreign_writes_total", "Values changed by another process.", counts.foreign),
            ("cgroup_repairs_total", "Foreign writes that were repaired.", counts.repaired),
            ("cgroup_contested_files", "Files that are no longer repaired.", contested),
            ("cgroup_problems", "Files that cannot be set now.", len(counts.problems)),
        ):
            yield Gauge(name, text, value)


def qos_reconciler(
    cgroup_root: str,
    record_path: str,
    policy_of: Callable[[Driver], MemoryQosPolicy | None],
    specs: ReadSpecs | None = None,
) -> QosReconciler:
    """The reconciler of a node, with the files it set recorded in *record_path*."""
    writer = CgroupWriter(cgroup_root, CgroupRecord(record_path, boot_id()))
    return QosReconciler(cgroup_root, writer, policy_of, specs=specs)


def _merged(pods: Sequence[PodView]) -> dict[str, PodView]:
    """Each pod once: after a sandbox died the runtime lists the old one and the new one."""
    found: dict[str, PodView] = {}
    for pod in pods:
        if (there := found.get(pod.uid)) is not None:
            parent = pod.cgroup_parent or there.cgroup_parent
            pod = replace(pod, cgroup_parent=parent, containers=(*there.containers, *pod.containers))
        if pod.uid:
            found[pod.uid] = pod
    return found


def _claims_by_pod(
    pods: Mapping[str, PodView], prepared_claims: PreparedClaims
) -> dict[str, tuple[MemoryShare, ...]]:
    """The shares of each pod: claims reserved for it, and claims that its containers use.

    A claim belongs to the first pod in its reservedFor that is on this node. It counts before the
    pod's first container exists, so that the pod's limits are set by then.
    """
    found: dict[str, list[MemoryShare]] = {}
    for entry in prepared_claims:
        owner = next((uid for uid in entry.consumers if uid in pods), None)
        if owner is not None:
            found.setdefault(owner, []).extend(shares_of(entry))
    for uid, pod in pods.items():
        for container in pod.containers:
            found.setdefault(uid, []).extend(_used(container))
    return {uid: distinct(shares) for uid, shares in found.items()}


def _used(container: ContainerView) -> tuple[MemoryShare, ...]:
    """The shares that a container may use, of claims that belong to its pod."""
    own = (use for use in container.uses if use.owner_uid in ("", container.pod_uid))
    return distinct(share for use in own for share in shares_of(use.claim, use.devices))


def _container_facts(container: ContainerView, spec: PodRequests | None) -> ContainerFacts:
    return ContainerFacts(
        shares=_used(container),
        request=None if spec is None else spec.containers.get(container.name),
        limit=container.memory_limit,
        classic_pages={s: n for s, n in container.hugepage_limits.items() if n > 0},
        path=relative_path(container.cgroup_path),
    )
