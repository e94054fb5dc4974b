"""Memory QoS as the kit calls it: pods and claims in, cgroup files kept, metrics out.

Containers are not touched here: the driver's ``enforce`` says what they must look like, with the same
planner, and the runtime sets it. This is about what no runtime event covers, pods and above.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from drakit.cgroups.tree import relative_path
from drakit.drivers.cpumem.qos.keeping import Keeper, number
from drakit.drivers.cpumem.qos.layout import PodPlace, place_of
from drakit.drivers.cpumem.qos.planner import LOW, MIN, ContainerFacts, Plan, PodFacts, plan
from drakit.drivers.cpumem.qos.podspec import PodRequests, ReadSpecs
from drakit.drivers.cpumem.qos.record import Record
from drakit.drivers.cpumem.qos.shares import Share, distinct, pages_of, shares_of
from drakit.drivers.cpumem.qos.usage import read_usage
from drakit.drivers.models.memory_policy import Knob, MemoryQosPolicy
from drakit.kit.claims.checkpoint import boot_id
from drakit.kit.driver import Container, Driver, PreparedClaim, PreparedClaims
from drakit.kit.reconciler import PodView
from drakit.kit.telemetry.metrics import Gauge

_LOG = logging.getLogger(__name__)
_CHURN_SECONDS: Final = 120.0
"""How long after a change of pods the kubelet and systemd may still reset a slice: the kubelet removes
a pod's cgroup and updates the QoS classes on its own time, at the latest in its loop of a minute."""


class QosReconciler:
    """Keeps the memory and hugetlb files of pods and above.

    *root* is where cgroup v2 is mounted (empty: do nothing); *policy_of* says what a driver wants, or
    None for a driver that is not concerned; *specs* reads what pods request, for mode ``all``.
    """

    def __init__(
        self,
        root: str,
        keeper: Keeper,
        policy_of: Callable[[Driver], MemoryQosPolicy | None],
        *,
        specs: ReadSpecs | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._keeper = keeper
        self._policy_of = policy_of
        self._specs = specs
        self._clock = clock
        self._pods: frozenset[str] | None = None
        self._churned_at = -_CHURN_SECONDS
        self._policy = MemoryQosPolicy(mode="off")
        self._facts: tuple[PodFacts, ...] = ()
        self._plan = Plan()
        self._lost: frozenset[str] = frozenset()

    async def provide(
        self, driver: Driver, entry: PreparedClaim, prepared_claims: PreparedClaims
    ) -> None:
        """Nothing: what a claim protects is there when its pod is."""

    async def promise(
        self, driver: Driver, entry: PreparedClaim, prepared_claims: PreparedClaims
    ) -> None:
        """Nothing: no pod is there yet."""

    async def settle(
        self, driver: Driver, pods: Sequence[PodView], prepared_claims: PreparedClaims
    ) -> None:
        """Bring the files in line. Raises ``OSError`` when what is set could not be remembered."""
        policy = self._policy_of(driver)
        if policy is None or not self._root:
            return
        specs: Mapping[str, PodRequests] = {}
        if policy.mode == "all" and self._specs is not None:
            specs = await self._specs({pod.uid for pod in pods})
        self._note_pods(pods)
        self._policy = policy
        self._facts = tuple(self._facts_of(_merged(pods), prepared_claims, specs))
        self._plan = plan(policy, self._facts)
        self._keeper.apply(self._plan, churned=self._churned())

    async def restore(self) -> None:
        """Put back what was there before this driver came."""
        for left in self._keeper.restore():
            _LOG.warning("could not be put back: %s", left)

    # -- pods as the planner wants them ----------------------------------------------------------

    def _note_pods(self, pods: Sequence[PodView]) -> None:
        uids = frozenset(pod.uid for pod in pods)
        if uids != self._pods:
            self._pods = uids
            self._churned_at = self._clock()

    def _churned(self) -> bool:
        return self._clock() - self._churned_at < _CHURN_SECONDS

    def _facts_of(
        self,
        pods: Mapping[str, PodView],
        prepared_claims: PreparedClaims,
        specs: Mapping[str, PodRequests],
    ) -> Iterable[PodFacts]:
        claims = _claims_by_pod(pods, prepared_claims)
        lost = set()
        for uid, pod in sorted(pods.items()):
            place = place_of(pod.cgroup_parent, uid)
            shares = claims.get(uid, ())
            if place is None:
                if shares:
                    lost.add(f"{pod.namespace}/{pod.name} ({pod.cgroup_parent!r})")
                continue
            yield self._pod_facts(place, pod, shares, specs.get(uid))
        self._say_lost(frozenset(lost))

    def _pod_facts(
        self, place: PodPlace, pod: PodView, shares: tuple[Share, ...], spec: PodRequests | None
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
        self, place: PodPlace, shares: tuple[Share, ...], containers: tuple[ContainerFacts, ...]
    ) -> dict[str, int]:
        """The hugepage limits of the pod without its claims.

        The kubelet wrote them into the pod's cgroup when it made it: what the file said before we
        came. Where that says nothing (a resize zeroes it, see kubernetes PR 141991), what the
        containers ask for that are there.
        """
        classic: dict[str, int] = {}
        for container in containers:
            for size, limit in container.classic_pages.items():
                classic[size] = classic.get(size, 0) + limit
        for size, claimed in pages_of(shares).items():
            file = f"hugetlb.{size}.max"
            found = number(self._keeper.original(place.pod, file) or "0")
            asked = classic.get(size, 0)
            ours = not self._keeper.keeps(place.pod, file) and found == claimed + asked
            if 0 < found < 1 << 62 and not ours:  # ours: set by us, and the record of it was lost
                classic[size] = int(found)
        return classic

    def _say_lost(self, lost: frozenset[str]) -> None:
        for pod in sorted(lost - self._lost):
            _LOG.warning(
                "the cgroup of pod %s is not one the kubelet makes for pods: its claims are not "
                "protected, and its hugepages not limited, at pod level; is cgroupsPerQOS off?",
                pod,
            )
        self._lost = lost

    # -- metrics ---------------------------------------------------------------------------------

    def gauges(self) -> Iterable[Gauge]:
        """What is protected, used and throttled, and who else writes our files."""
        yield from self._protection_gauges()
        yield from self._file_gauges()
        claiming = [pod for pod in self._facts if pod.claims]
        sizes = {size for pod in claiming for size in pages_of(pod.claims)}
        usage = read_usage(self._root, (pod.place.pod for pod in claiming), sorted(sizes))
        for (node, kind), amount in sorted(usage.used.items()):
            labels = (("numa_node", str(node)), ("kind", kind))
            yield Gauge("used", "Bytes of a kind that pods with claims use.", amount, labels)
        yield Gauge(
            "memory_throttlings",
            "How often pods with claims were slowed down at memory.high.",
            usage.throttled,
        )

    def _protection_gauges(self) -> Iterable[Gauge]:
        roots = {pod.place.root for pod in self._facts}
        for file, level in ((MIN, "hard"), (LOW, "soft")):
            amount = sum(int(self._plan.tree.get(root, {}).get(file, 0)) for root in roots)
            text = "Memory protected by memory.min (hard) and memory.low (soft)."
            yield Gauge("memory_protected_bytes", text, amount, (("level", level),))
        for knob in Knob:
            owner = "driver" if self._policy.owns(knob) else "nobody"
            if knob in self._policy.kubelets:
                owner = "kubelet"
            text = "Who writes a group of memory files: 1 for the owner."
            for name in ("driver", "kubelet", "nobody"):
                labels = (("files", knob.value), ("owner", name))
                yield Gauge("memory_file_owner", text, float(owner == name), labels)

    def _file_gauges(self) -> Iterable[Gauge]:
        tally = self._keeper.tally
        for name, text, value in (
            ("cgroup_writes", "Files of pods' cgroups and above that were set.", tally.written),
            ("cgroup_resets", "Values the kubelet or systemd had reset.", tally.undone),
            ("cgroup_foreign_writes", "Values that somebody else had changed.", tally.foreign),
            ("cgroup_repairs", "Foreign values that were set right again.", tally.repaired),
            (
                "cgroup_contested_files",
                "Files left to whoever keeps changing them.",
                len(self._keeper.given_up),
            ),
            ("cgroup_problems", "Files that cannot be set now.", len(tally.problems)),
        ):
            yield Gauge(name, text, value)


def qos_reconciler(
    cgroup_root: str,
    record_path: str,
    policy_of: Callable[[Driver], MemoryQosPolicy | None],
    specs: ReadSpecs | None = None,
) -> QosReconciler:
    """The reconciler of a node, with what it set remembered in the file *record_path*."""
    keeper = Keeper(cgroup_root, Record(record_path, boot_id()))
    return QosReconciler(cgroup_root, keeper, policy_of, specs=specs)


def _merged(pods: Sequence[PodView]) -> dict[str, PodView]:
    """Each pod once: after a sandbox died the runtime lists the old beside the new."""
    found: dict[str, PodView] = {}
    for pod in pods:
        there = found.get(pod.uid)
        if there is not None:
            pod = replace(
                pod,
                cgroup_parent=pod.cgroup_parent or there.cgroup_parent,
                containers=(*there.containers, *pod.containers),
            )
        if pod.uid:
            found[pod.uid] = pod
    return found


def _claims_by_pod(
    pods: Mapping[str, PodView], prepared_claims: PreparedClaims
) -> dict[str, tuple[Share, ...]]:
    """What each pod holds of claims: those reserved for it, and those its containers use.

    A claim is one pod's: the first it was reserved for that is here. It counts before the first
    container is there, so that the pod's limits are in place by then.
    """
    found: dict[str, list[Share]] = {}
    for entry in prepared_claims:
        owner = next((uid for uid in entry.consumers if uid in pods), None)
        if owner is not None:
            found.setdefault(owner, []).extend(shares_of(entry))
    for uid, pod in pods.items():
        for container in pod.containers:
            found.setdefault(uid, []).extend(_used(container))
    return {uid: distinct(shares) for uid, shares in found.items()}


def _used(container: Container) -> tuple[Share, ...]:
    """What a container may use of claims that are its pod's."""
    own = (use for use in container.uses if use.owner_uid in ("", container.pod_uid))
    return distinct(share for use in own for share in shares_of(use.entry, use.prepared_devices))


def _container_facts(container: Container, spec: PodRequests | None) -> ContainerFacts:
    return ContainerFacts(
        shares=_used(container),
        request=None if spec is None else spec.containers.get(container.name),
        limit=container.memory_limit,
        classic_pages={s: n for s, n in container.hugepage_limits.items() if n > 0},
        path=relative_path(container.cgroup_path),
    )
