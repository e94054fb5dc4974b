"""The reconciler over a tree of files, and containers through the kit's own enforcement."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from drakit.cgroups.paths import QosClass, pod_cgroup
from drakit.drivers.cpumem.qos.planner import ContainerFacts, container_values
from drakit.drivers.cpumem.qos.podspec import PodRequests
from drakit.drivers.cpumem.qos.reconciler import QosReconciler, qos_reconciler
from drakit.drivers.cpumem.qos.record import CgroupRecord
from drakit.drivers.cpumem.qos.shares import shares_of
from drakit.drivers.cpumem.qos.writer import CgroupWriter
from drakit.drivers.models.memory_policy import Knob, MemoryQosPolicy
from drakit.kit.claims import cdi_names as names
from drakit.kit.driver import (
    Assignment,
    Claim,
    ClaimUse,
    ContainerView,
    DesiredResources,
    Driver,
    Offer,
    PreparedClaim,
    PreparedClaims,
    PreparedDevice,
)
from drakit.kit.reconciler import PodView
from drakit.kit.runtime.enforcer import Enforcer
from drakit.wire.nri.values import NriContainer, PodSandbox, Resources
from tests.drivers.cpumem.qos.cgrouptree import Tree
from tests.drivers.cpumem.qos.pods import GI, MI, B, E, G

MIN, LOW = "memory.min", "memory.low"
PAGES = ("hugetlb.2MB.rsvd.max", "hugetlb.2MB.max")
KIND = "dra.k8s.io/cpumem"


@dataclass(frozen=True)
class MemoryDriver:
    """As small as a driver with a policy can be."""

    policy: MemoryQosPolicy = MemoryQosPolicy()
    name: str = "dra.cpumem"
    cdi_kind: str = KIND
    cpuset_kinds: frozenset[str] = frozenset()

    def offer(self) -> Offer:
        return Offer(())

    def assign(self, claim: Claim, prepared_claims: PreparedClaims) -> Assignment:
        raise NotImplementedError

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        place = pod_cgroup(container.cgroup_parent, container.pod_uid)
        assert place is not None
        shares = tuple(s for use in container.uses for s in shares_of(use.claim, use.devices))
        facts = ContainerFacts(shares, limit=container.memory_limit, classic_pages=container.hugepage_limits)
        return DesiredResources(unified=container_values(self.policy, place.qos_class, facts))


def policy_of(driver: Driver) -> MemoryQosPolicy | None:
    return driver.policy if isinstance(driver, MemoryDriver) else None


def claim(uid: str, pod: str, memory: int = 0, pages: int = 0) -> PreparedClaim:
    amounts = {"numa0/memory": memory, "numa0/hugepages2Mi": pages}
    prepared = PreparedDevice(
        request="r", pool="n", device="numa0", amounts={k: v for k, v in amounts.items() if v}
    )
    return PreparedClaim(uid=uid, namespace="ns", name=uid, devices=(prepared,), consumers=(pod,))


def parent(uid: str, qos_class: QosClass) -> str:
    return "/kubepods" + ("" if qos_class is G else f"/{qos_class.value.lower()}") + f"/pod{uid}"


def view(uid: str, qos_class: QosClass, *containers: ContainerView) -> PodView:
    return PodView(uid, f"p{uid}", "ns", parent(uid, qos_class), containers)


def container(
    name: str, pod: str, entries: Iterable[PreparedClaim] = (), pages: int = 0, limit: int | None = None
) -> ContainerView:
    uses = tuple(ClaimUse(entry, entry.devices, pod, f"ns/p{pod}") for entry in entries)
    return ContainerView(
        id=name,
        name=name,
        pod_uid=pod,
        pod_name=f"p{pod}",
        namespace="ns",
        uses=uses,
        memory_limit=limit,
        hugepage_limits={"2MB": pages},
    )


class Node:
    """A tree, and a reconciler on it that can be started anew."""

    def __init__(self, directory: Path) -> None:
        self.tree = Tree(str(directory / "cgroup"))
        self.record = str(directory / "state" / "memory.json")
        self.now = 0.0
        self.driver = MemoryDriver()
        self.specs: dict[str, PodRequests] = {}
        self.restart()

    def restart(self) -> None:
        self.writer = CgroupWriter(
            self.tree.root, CgroupRecord(self.record, "boot"), page_size=4096, clock=lambda: self.now
        )

        async def specs(uids: Iterable[str]) -> Mapping[str, PodRequests]:
            return {uid: self.specs[uid] for uid in uids if uid in self.specs}

        self.reconciler = QosReconciler(
            self.tree.root, self.writer, policy_of, specs=specs, clock=lambda: self.now
        )

    async def settle(self, pods: Iterable[PodView], *entries: PreparedClaim) -> None:
        await self.reconciler.reconcile(self.driver, list(pods), PreparedClaims(entries))

    def gauges(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        return {(each.name, each.labels): each.value for each in self.reconciler.gauges()}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# -- vector 6 ---------------------------------------------------------------------------------------


async def test_vector_6_restarts_leave_the_pods_limit_unchanged(node: Node) -> None:
    """Two containers with pages of claims, a classic one beside them, five restarts of each."""
    path = node.tree.make(parent("1", B)[1:], s2MB=256 * MI)
    entries = [claim("a", "1", pages=32 * MI), claim("b", "1", pages=8 * MI)]
    expected = str((256 + 32 + 8) * MI)
    await node.settle([view("1", B)], *entries)
    assert [node.tree.get(path, file) for file in PAGES] == [expected] * 2
    for round_ in range(5):
        for count in range(4):
            there = [
                container(f"a{round_}", "1", entries[:1]),
                container(f"b{round_}", "1", entries[1:]),
                container(f"classic{round_}", "1", pages=256 * MI),
            ][:count]
            await node.settle([view("1", B, *there)], *entries)
            assert [node.tree.get(path, file) for file in PAGES] == [expected] * 2
        node.restart()
    assert node.writer.counts.foreign == 0


async def test_a_lost_record_does_not_double_the_limit(node: Node) -> None:
    path = node.tree.make(parent("1", B)[1:], s2MB=256 * MI)
    entries = [claim("a", "1", pages=32 * MI)]
    there = view("1", B, container("c", "1", entries, pages=256 * MI))
    await node.settle([there], *entries)
    os.unlink(node.record)
    node.restart()
    for _ in range(3):
        await node.settle([there], *entries)
        assert node.tree.get(path, PAGES[0]) == str(288 * MI)


async def test_a_classic_pod_beside_is_never_touched(node: Node) -> None:
    node.tree.make(parent("1", E)[1:])
    other = node.tree.make(parent("2", B)[1:], s2MB=64 * MI)
    before = {file: node.tree.get(other, file) for file in (*PAGES, MIN, LOW, "memory.high")}
    entry = claim("a", "1", memory=MI, pages=4 * MI)
    pods = [view("1", E), view("2", B, container("c", "2", pages=64 * MI, limit=GI))]
    await node.settle(pods, entry)
    assert {file: node.tree.get(other, file) for file in before} == before


async def test_a_resize_that_zeroes_the_limits_is_made_up_for(node: Node) -> None:
    path = node.tree.make(parent("1", B)[1:], s2MB=64 * MI)
    entry = claim("a", "1", pages=4 * MI)
    there = view("1", B, container("c", "1", [entry], pages=64 * MI))
    await node.settle([there], entry)
    for file in PAGES:
        node.tree.set(path, file, "0")
    node.now += 1000
    await node.settle([there], entry)
    assert [node.tree.get(path, file) for file in PAGES] == [str(68 * MI)] * 2


# -- protection ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("qos_class", "file"), [(G, MIN), (B, LOW), (E, MIN)])
async def test_claims_are_protected_up_to_kubepods_and_given_back(
    node: Node, qos_class: QosClass, file: str
) -> None:
    path = node.tree.make(parent("1", qos_class)[1:])
    before = node.tree.snapshot()
    entry = claim("a", "1", memory=64 * MI)
    await node.settle([view("1", qos_class)], entry)
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        assert node.tree.get("/".join(parts[:depth]), file) == str(64 * MI)
    await node.settle([view("1", qos_class)])
    assert node.tree.snapshot() == before


async def test_restore_leaves_the_node_as_it_was(node: Node) -> None:
    node.tree.make(parent("1", B)[1:], s2MB=4 * MI)
    node.tree.set("kubepods", MIN, str(MI))
    before = node.tree.snapshot()
    await node.settle([view("1", B)], claim("a", "1", memory=MI, pages=2 * MI))
    assert node.tree.snapshot() != before
    node.restart()
    await node.reconciler.restore()
    assert node.tree.snapshot() == before


async def test_mode_all_protects_requests_too(node: Node) -> None:
    node.driver = MemoryDriver(MemoryQosPolicy(mode="all"))
    for uid, qos_class in (("1", B), ("2", G), ("3", E)):
        node.tree.make(parent(uid, qos_class)[1:])
    node.specs = {"1": PodRequests(3 * MI, None, {"c": 2 * MI}), "2": PodRequests(GI)}
    pods = [view("1", B), view("2", G), view("3", E)]
    await node.settle(pods, claim("a", "1", memory=MI))
    assert node.tree.get("kubepods", MIN) == str(GI)
    assert node.tree.get("kubepods", LOW) == str(4 * MI)
    assert node.gauges()["memory_protected_bytes", (("level", "soft"),)] == 4 * MI


async def test_the_pods_of_a_dead_sandbox_count_once(node: Node) -> None:
    path = node.tree.make(parent("1", E)[1:])
    entry = claim("a", "1", memory=MI)
    old, new = view("1", E), view("1", E, container("c", "1", [entry]))
    await node.settle([old, new, replace(old, cgroup_parent="")], entry)
    assert node.tree.get(path, MIN) == node.tree.get("kubepods", MIN) == str(MI)


async def test_a_claim_is_one_pods(node: Node) -> None:
    first, second = node.tree.make(parent("1", E)[1:]), node.tree.make(parent("2", E)[1:])
    entry = replace_consumers(claim("a", "1", memory=MI), ("1", "2"))
    foreign = container("c", "2", [entry])
    foreign = replace(foreign, uses=(foreign.uses[0]._replace(owner_uid="1"),))
    await node.settle([view("1", E), view("2", E, foreign)], entry)
    assert (node.tree.get(first, MIN), node.tree.get(second, MIN)) == (str(MI), "0")
    assert node.tree.get("kubepods", MIN) == str(MI)


def replace_consumers(entry: PreparedClaim, consumers: tuple[str, ...]) -> PreparedClaim:
    return PreparedClaim(
        uid=entry.uid, namespace=entry.namespace, name=entry.name, devices=entry.devices, consumers=consumers
    )


async def test_a_kubelet_that_owns_the_files_is_left_alone(node: Node) -> None:
    node.tree.make(parent("1", E)[1:])
    before = node.tree.snapshot()
    node.driver = MemoryDriver(MemoryQosPolicy(kubelets=frozenset(Knob)))
    await node.settle([view("1", E)], claim("a", "1", memory=MI, pages=2 * MI))
    assert node.tree.snapshot() == before
    owner = {
        dict(labels)["files"]: dict(labels)["owner"]
        for (name, labels), value in node.gauges().items()
        if name == "memory_file_owner" and value
    }
    assert owner == dict.fromkeys(("protection", "throttling", "hugepages"), "kubelet")


async def test_pods_without_a_cgroup_of_their_own_are_told_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    lost = replace(view("1", E), cgroup_parent="/system.slice")
    for _ in range(3):
        await node.settle([lost], claim("a", "1", memory=MI))
    assert caplog.text.count("ns/p1") == 1


async def test_resets_are_expected_while_pods_come_and_go_only(node: Node) -> None:
    node.tree.make(parent("1", E)[1:])
    entry = claim("a", "1", memory=MI)
    await node.settle([view("1", E)], entry)
    node.now += 60
    node.tree.set("kubepods", MIN, "0")
    await node.settle([view("1", E)], entry)
    assert node.gauges()["cgroup_resets_total", ()] == 1
    node.now += 1000
    node.tree.set("kubepods", MIN, "0")
    await node.settle([view("1", E)], entry)
    assert node.gauges()["cgroup_foreign_writes_total", ()] == 1
    assert node.gauges()["cgroup_repairs_total", ()] == 1
    assert node.tree.get("kubepods", MIN) == str(MI)


async def test_usage_of_pods_with_claims_only(node: Node) -> None:
    for uid in ("1", "2"):
        path = node.tree.make(parent(uid, E)[1:])
        node.tree.set(path, "memory.numa_stat", "anon N0=4096 N1=0")
        node.tree.set(path, "hugetlb.2MB.numa_stat", "total=2097152 N0=0 N1=2097152")
        node.tree.set(path, "memory.events", "high 5")
    await node.settle([view("1", E), view("2", E)], claim("a", "1", memory=MI, pages=2 * MI))
    gauges = node.gauges()
    assert gauges["used_bytes", (("numa_node", "0"), ("kind", "memory"))] == 4096
    assert gauges["used_bytes", (("numa_node", "1"), ("kind", "hugepages2Mi"))] == 2 * MI
    assert gauges["memory_throttle_events_total", ()] == 5


async def test_another_driver_and_no_cgroups_are_no_concern(tmp_path: Path) -> None:
    record = str(tmp_path / "state" / "memory.json")
    reconciler = qos_reconciler("", record, policy_of)
    entry = claim("a", "1", memory=MI)
    await reconciler.provision(MemoryDriver(), entry, PreparedClaims())
    await reconciler.reconcile(MemoryDriver(), [view("1", E)], PreparedClaims([entry]))
    elsewhere = qos_reconciler(str(tmp_path), record, lambda driver: None)
    await elsewhere.reconcile(MemoryDriver(), [view("1", E)], PreparedClaims([entry]))
    assert not os.path.exists(record)


async def test_any_life_of_pods_ends_as_it_began(
    node: Node, scale: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods with claims come, restart their containers and go; every look finds exact sums."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    rng = random.Random(8)
    for qos_class in QosClass:
        node.tree.make(parent("0", qos_class)[1:])
    before = node.tree.snapshot()
    alive: dict[str, tuple[QosClass, PreparedClaim]] = {}
    for step in range(60 * scale):
        if alive and rng.random() < 0.4:
            uid = rng.choice(sorted(alive))
            qos_class, _ = alive.pop(uid)
            node.tree.remove(parent(uid, qos_class)[1:])
        else:
            uid, qos_class = f"n{step}", rng.choice(list(QosClass))
            node.tree.make(parent(uid, qos_class)[1:])
            entry = claim(f"c{step}", uid, memory=rng.randrange(8) * MI, pages=rng.randrange(3) * 2 * MI)
            alive[uid] = (qos_class, entry)
        if rng.random() < 0.2:
            node.restart()
        if rng.random() < 0.3:  # systemd
            node.tree.set("kubepods", rng.choice([MIN, LOW]), "0")
        pods = [view(uid, qos_class) for uid, (qos_class, _) in alive.items()]
        rng.shuffle(pods)
        await node.settle(pods, *(entry for _, entry in alive.values()))
        for file in (MIN, LOW):
            total = sum(
                entry.devices[0].amounts.get("numa0/memory", 0)
                for qos_class, entry in alive.values()
                if (LOW if qos_class is B else MIN) == file
            )
            assert node.tree.get("kubepods", file) == str(total)
        node.now += 1
    for uid, (qos_class, _) in alive.items():
        node.tree.remove(parent(uid, qos_class)[1:])
    await node.settle([])
    assert node.tree.snapshot() == before
    assert node.writer.counts.foreign == 0


# -- vector 9 ---------------------------------------------------------------------------------------------


def test_vector_9_a_kubelets_memory_min_of_0_ends_as_ours() -> None:
    """A kubelet of 1.37 sends ``memory.min=0`` with every creation and update of a container."""
    entry = claim("a", "1", memory=64 * MI)
    prepared_claims = PreparedClaims([entry])
    enforcer = Enforcer(MemoryDriver, lambda: prepared_claims)
    pod = PodSandbox(id="sandbox", name="p1", namespace="ns", uid="1", cgroup_parent=parent("1", G))
    theirs = Resources(unified={MIN: "0", LOW: "0"}, memory_limit=GI)
    (part,) = names.requests_of(entry)
    reported = NriContainer(
        id="c", pod_id="sandbox", name="c", resources=theirs, cdi_devices=(names.qualified_name(KIND, part),)
    )
    created = enforcer.create(pod, reported)
    assert created.resources.over(theirs).unified == {MIN: str(64 * MI), LOW: "0"}

    resized = Resources(unified={MIN: "0", LOW: "0"}, memory_limit=2 * GI)
    (update,) = enforcer.update(pod, reported, resized)
    assert update.container_id == "c"
    merged = update.resources.over(resized)  # what the runtime applies
    assert merged.unified == {MIN: str(64 * MI), LOW: "0"}
    assert merged.memory_limit == 2 * GI


def test_vector_9_containers_without_claims_stay_the_kubelets() -> None:
    enforcer = Enforcer(MemoryDriver, PreparedClaims)
    pod = PodSandbox(id="sandbox", name="p1", namespace="ns", uid="1", cgroup_parent=parent("1", G))
    theirs = Resources(unified={MIN: "0", LOW: "0"})
    reported = NriContainer(id="c", pod_id="sandbox", name="c", resources=theirs)
    assert enforcer.create(pod, reported).resources == Resources()
    assert enforcer.update(pod, reported, theirs) == []
