"""The planner: KEP-2570's numbers to the byte, and what holds for any pods and policy."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.cgroups.paths import QosClass
from drakit.core.quantity import Quantity
from drakit.drivers.cpumem.qos.planner import (
    HIGH,
    LOW,
    MIN,
    ContainerFacts,
    PodFacts,
    QosPlan,
    container_memory_limit,
    container_values,
    plan,
    pod_protection,
    protecting_file,
    throttle_at,
)
from drakit.drivers.cpumem.qos.shares import distinct, pages_of, shares_of
from drakit.drivers.models.memory_policy import Knob, MemoryQosPolicy
from drakit.kit.driver import PreparedClaim, PreparedDevice
from tests.drivers.cpumem.qos.pods import GI, MI, B, E, G, nodes, place, policies, share

ALL = MemoryQosPolicy(mode="all", throttling_factor=0.9, allocatable=32 * GI)

TABLE = [
    ("0", "1000Mi", "0", 0.9, 943718400),
    ("128Mi", "256Mi", "0", 0.9, 255012864),
    ("500Mi", "1000Mi", "0", 0.6, 838860800),
    ("800Mi", "1000Mi", "0", 0.6, 964689920),
    ("1Gi", "2Gi", "0", 0.9, 2040107008),
    ("1Gi", "2Gi", "5Gi", 0.9, 6871945216),
    ("64Mi", "65Mi", "0", 0.9, 68050944),
    ("256Mi", "256Mi", "0", 0.9, None),
]
"""Request, limit, claim, factor: ``memory.high`` (the table of the kubelet's own values)."""


def size(text: str) -> int:
    return Quantity(text).ceil()


# -- vector 8 -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("request_", "limit", "claim", "factor", "high"), TABLE)
def test_vector_8_memory_high_is_the_kubelets_to_the_byte(
    request_: str, limit: str, claim: str, factor: float, high: int | None
) -> None:
    shares = (share("c", size(claim)),) if claim != "0" else ()
    container = ContainerFacts(shares=shares, request=size(request_), limit=size(limit))
    values = container_values(replace(ALL, throttling_factor=factor), B, container)
    assert values.get(HIGH) == (None if high is None else str(high))


def test_vector_8_request_equal_to_limit_writes_no_memory_high() -> None:
    container = ContainerFacts(request=GI, limit=GI)
    assert HIGH not in container_values(ALL, B, container)
    assert container_values(ALL, G, container) == {MIN: str(GI)}


def test_vector_8_without_a_factor_nothing_is_throttled() -> None:
    policy = replace(ALL, throttling_factor=None)
    container = ContainerFacts(request=0, limit=GI)
    assert container_values(policy, B, container) == {}
    assert container_values(policy, E, ContainerFacts()) == {}


def test_factor_one_throttles_at_the_limit() -> None:
    policy = replace(ALL, throttling_factor=1.0)
    values = container_values(policy, B, ContainerFacts(request=MI, limit=GI))
    assert values == {LOW: str(MI), HIGH: str(GI)}


def test_a_container_without_limit_is_throttled_near_the_nodes_allocatable() -> None:
    values = container_values(ALL, E, ContainerFacts())
    assert values == {HIGH: str(throttle_at(0, 32 * GI, 0.9, 4096))}
    assert container_values(replace(ALL, allocatable=None), E, ContainerFacts()) == {}


def test_a_pods_own_limit_governs_containers_without_one() -> None:
    assert HIGH not in container_values(ALL, B, ContainerFacts(request=MI), pod_limit=GI)
    assert HIGH in container_values(ALL, B, ContainerFacts(request=MI, limit=GI), pod_limit=GI)


def test_memory_that_is_protected_is_not_throttled() -> None:
    container = ContainerFacts(shares=(share("c", 5 * GI),), request=GI, limit=GI + MI)
    assert throttle_at(GI, 6 * GI + MI, 0.9, 4096) < 6 * GI
    assert container_values(ALL, B, container) == {LOW: str(6 * GI)}


def test_an_unknown_request_is_not_taken_for_none() -> None:
    container = ContainerFacts(shares=(share("c", MI),), request=None, limit=GI)
    assert container_values(ALL, B, container) == {LOW: str(MI)}
    assert container_values(ALL, G, container) == {MIN: str(GI + MI)}


@given(
    st.integers(0, 1 << 45),
    st.integers(0, 1 << 45),
    st.floats(0.01, 1.0),
    st.sampled_from([4096, 16384, 65536]),
)
def test_the_formula_is_near_the_exact_one(a: int, b: int, factor: float, page: int) -> None:
    low, high = min(a, b), max(a, b)
    exact = low + (high - low) * Fraction(factor)
    assert abs(throttle_at(low, high, factor, page) - exact) <= page + 1
    assert throttle_at(low, high, factor, page) % page == 0


@pytest.mark.parametrize("factor", [0, -0.5, 1.01])
def test_an_impossible_factor_is_rejected(factor: float) -> None:
    with pytest.raises(ValueError, match="throttling factor"):
        MemoryQosPolicy(throttling_factor=factor)


# -- the chain --------------------------------------------------------------------------------------


def pod_with_claim(qos_class: QosClass, root: str = "/kubepods") -> PodFacts:
    claim = share("claim/r", 256 * MI)
    where = place("0-1", qos_class, root)
    return PodFacts(where, (claim,), (ContainerFacts((claim,), path=f"{where.pod}/c"),))


@pytest.mark.parametrize(("qos_class", "file"), [(G, MIN), (B, LOW), (E, MIN)])
def test_a_claim_is_protected_along_its_whole_chain(qos_class: QosClass, file: str) -> None:
    pod = pod_with_claim(qos_class)
    made = plan(MemoryQosPolicy(), [pod])
    value = {file: str(256 * MI)}
    assert made.tree == dict.fromkeys(sorted(pod.place.chain), value)
    assert made.containers == {f"{pod.place.pod}/c": value}
    assert made.floors == {}


def test_also_above_kubepods_but_only_as_a_floor() -> None:
    made = plan(MemoryQosPolicy(), [pod_with_claim(E, "/kubelet.slice/kubelet-kubepods.slice")])
    assert made.floors == {"kubelet.slice": {MIN: str(256 * MI)}}
    assert "kubelet.slice" not in made.tree


def test_soft_protection_uses_memory_low_only() -> None:
    made = plan(MemoryQosPolicy(protection="soft"), [pod_with_claim(G)])
    assert {file for values in made.everything().values() for file in values} == {LOW}


def test_root_has_guaranteed_in_min_and_burstable_in_low() -> None:
    pods = [
        PodFacts(place("1", G), containers=(ContainerFacts(request=GI, limit=GI),), request=GI),
        PodFacts(place("2", B), containers=(ContainerFacts(request=3 * MI),), request=5 * MI),
        PodFacts(place("3", B), request=7 * MI),
        PodFacts(place("4", E), request=0),
    ]
    made = plan(replace(ALL, throttling_factor=None), pods)
    assert made.tree == {
        "kubepods": {MIN: str(GI), LOW: str(12 * MI)},
        "kubepods/burstable": {LOW: str(12 * MI)},
        "kubepods/burstable/pod2": {LOW: str(5 * MI)},
        "kubepods/burstable/pod3": {LOW: str(7 * MI)},
        "kubepods/pod1": {MIN: str(GI)},
    }


def test_claims_mode_protects_claims_and_not_requests() -> None:
    claim = share("c", MI)
    pod = PodFacts(place("1", B), (claim,), (ContainerFacts((claim,), request=GI, limit=2 * GI),), request=GI)
    other = PodFacts(place("2", G), request=GI)
    assert plan(MemoryQosPolicy(mode="claims"), [pod, other]).tree["kubepods"] == {LOW: str(MI)}
    assert plan(MemoryQosPolicy(mode="all"), [pod, other]).tree["kubepods"] == {
        LOW: str(GI + MI),
        MIN: str(GI),
    }
    assert plan(MemoryQosPolicy(mode="off"), [pod, other]) == QosPlan()


def test_a_pod_limit_throttles_the_pod() -> None:
    pod = PodFacts(place("1", B), request=GI, pod_limit=2 * GI)
    assert plan(ALL, [pod]).tree[pod.place.pod] == {LOW: str(GI), HIGH: "2040107008"}
    assert HIGH not in plan(ALL, [replace(pod, pod_limit=GI)]).tree[pod.place.pod]


# -- pages --------------------------------------------------------------------------------------------


def test_page_limits_are_claims_and_classic_limits_of_claimed_sizes_only() -> None:
    first, second = share("a", 0, {"2MB": 32 * MI}), share("b", 0, {"2MB": 4 * MI, "1GB": GI})
    container = ContainerFacts((first, second), classic_pages={"2MB": 256 * MI, "64KB": 0})
    values = container_values(MemoryQosPolicy(mode="off"), E, container)
    assert list(values.items()) == [
        ("hugetlb.1GB.rsvd.max", str(GI)),
        ("hugetlb.1GB.max", str(GI)),
        ("hugetlb.2MB.rsvd.max", str(292 * MI)),
        ("hugetlb.2MB.max", str(292 * MI)),
    ]


def test_vector_4_pages_on_two_nodes_are_one_limit() -> None:
    prepared_devices = tuple(
        PreparedDevice(
            request=f"r{node}",
            pool="n",
            device=f"numa{node}",
            amounts={f"numa{node}/hugepages2Mi": 16 * MI, f"numa{node}/memory": MI},
        )
        for node in (0, 1)
    )
    shares = shares_of(PreparedClaim(uid="u", namespace="n", name="c", devices=prepared_devices))
    assert pages_of(shares) == {"2MB": 32 * MI}
    pod = PodFacts(place("1", E), shares, (ContainerFacts(shares, path="kubepods/c"),))
    made = plan(MemoryQosPolicy(), [pod])
    assert made.containers["kubepods/c"]["hugetlb.2MB.max"] == str(32 * MI)
    assert made.tree[pod.place.pod]["hugetlb.2MB.max"] == str(32 * MI)


def test_vector_5_classic_pages_beside_a_memory_claim_are_left_alone() -> None:
    claim = share("c", 64 * MI)
    container = ContainerFacts((claim,), classic_pages={"2MB": 256 * MI}, path="kubepods/c")
    pod = PodFacts(place("1", B), (claim,), (container,), classic_pages={"2MB": 256 * MI})
    files = {file for values in plan(MemoryQosPolicy(), [pod]).everything().values() for file in values}
    assert files == {LOW}


def test_a_claim_shared_in_a_pod_is_counted_once_for_the_pod() -> None:
    claim = share("c", MI, {"2MB": 4 * MI})
    both = tuple(ContainerFacts((claim,), path=f"kubepods/{name}") for name in "ab")
    pod = PodFacts(place("1", E), (claim,), both)
    made = plan(MemoryQosPolicy(), [pod])
    assert made.tree[pod.place.pod] == {
        MIN: str(MI),
        "hugetlb.2MB.rsvd.max": str(4 * MI),
        "hugetlb.2MB.max": str(4 * MI),
    }
    assert made.containers["kubepods/a"] == made.containers["kubepods/b"]
    assert made.containers["kubepods/a"]["hugetlb.2MB.max"] == str(4 * MI)


def test_the_root_has_room_for_the_pages_of_all_pods() -> None:
    claim = share("c", 0, {"2MB": 4 * MI})
    pods = [
        PodFacts(place("1", E), (claim,)),
        PodFacts(place("2", B), classic_pages={"2MB": 6 * MI, "1GB": GI}),
    ]
    made = plan(MemoryQosPolicy(), pods)
    assert made.floors == {
        "kubepods": {"hugetlb.2MB.rsvd.max": str(10 * MI), "hugetlb.2MB.max": str(10 * MI)}
    }
    assert pods[1].place.pod not in made.tree


def test_pages_are_left_to_a_kubelet_that_counts_them() -> None:
    claim = share("c", MI, {"2MB": 4 * MI})
    pod = PodFacts(place("1", E), (claim,), (ContainerFacts((claim,), path="kubepods/c"),))
    for policy in (MemoryQosPolicy(kubelets=frozenset({Knob.HUGEPAGES})), MemoryQosPolicy(page_limits=False)):
        made = plan(policy, [pod])
        files = {file for values in made.everything().values() for file in values}
        assert files == {MIN}
        assert made.floors == {}


def test_charged_pages_are_in_protection_throttle_and_limit() -> None:
    claim = share("c", GI, {"2MB": 64 * MI})
    container = ContainerFacts((claim,), request=GI, limit=2 * GI)
    charged = replace(ALL, hugetlb_charged=True, page_limits=False)
    plain = container_values(replace(charged, hugetlb_charged=False), B, container)
    values = container_values(charged, B, container)
    for file in (LOW, HIGH):
        assert int(values[file]) == int(plain[file]) + 64 * MI
    assert container_memory_limit(charged, container) == 2 * GI + 64 * MI
    assert container_memory_limit(replace(charged, hugetlb_charged=False), container) is None
    assert container_memory_limit(charged, replace(container, limit=None)) is None
    assert container_memory_limit(charged, replace(container, shares=())) is None


def test_admin_access_and_nothing_at_all_hold_nothing() -> None:
    held = {"numa0/memory": MI, "numa0/hugepages2Mi": 2 * MI}
    prepared_devices = (
        PreparedDevice(request="a", pool="n", device="numa0", admin_access=True, amounts=held),
        PreparedDevice(request="b", pool="n", device="numa0", amounts={"numa0/cpu": 4, "numa0/memory": 0}),
    )
    assert shares_of(PreparedClaim(uid="u", namespace="n", name="c", devices=prepared_devices)) == ()


# -- properties -----------------------------------------------------------------------------------------


@given(policies(), nodes())
def test_children_never_exceed_their_parents_protection(
    policy: MemoryQosPolicy, pods: list[PodFacts]
) -> None:
    made = plan(policy, pods)
    every = made.everything()
    known = {path: {**made.floors.get(path, {}), **every.get(path, {})} for path in {*made.floors, *every}}
    for path, values in every.items():
        parent = path.rpartition("/")[0]
        for file in (MIN, LOW):
            if file in values and parent:
                assert int(values[file]) <= int(known[parent][file])


@given(policies(), nodes())
def test_sums_are_exact(policy: MemoryQosPolicy, pods: list[PodFacts]) -> None:
    made = plan(policy, pods)
    for file in (MIN, LOW):
        total = sum(
            pod_protection(policy, pod)
            for pod in pods
            if protecting_file(policy, pod.place.qos_class) == file and policy.owns(Knob.PROTECTION)
        )
        roots = {pod.place.root for pod in pods}
        assert total == sum(int(made.tree.get(root, {}).get(file, 0)) for root in roots)
        for root in roots:
            below = [
                int(values[file])
                for path, values in made.tree.items()
                if path.rpartition("/")[0] == root and file in values
            ]
            assert sum(below) == int(made.tree.get(root, {}).get(file, 0))


@given(policies(), nodes(), st.randoms(use_true_random=False))
def test_order_and_repetition_of_shares_do_not_matter(
    policy: MemoryQosPolicy, pods: list[PodFacts], rng: random.Random
) -> None:
    mixed = [
        replace(
            pod,
            shares=tuple(rng.sample(pod.shares, len(pod.shares))) + pod.shares[:1],
            containers=tuple(rng.sample(pod.containers, len(pod.containers))),
        )
        for pod in rng.sample(pods, len(pods))
    ]
    assert plan(policy, mixed) == plan(policy, pods)
    assert plan(policy, pods) == plan(policy, pods)


@given(policies(), nodes())
def test_only_claimed_sizes_are_ever_touched(policy: MemoryQosPolicy, pods: list[PodFacts]) -> None:
    made = plan(policy, pods)
    claimed = {pod.place.pod: pages_of(distinct(pod.shares)) for pod in pods}
    for path, values in made.tree.items():
        for file in values:
            if file.startswith("hugetlb."):
                assert file.split(".")[1] in claimed[path]
    for pod in pods:
        for container in pod.containers:
            files = made.containers.get(container.path or "", {})
            sizes = {file.split(".")[1] for file in files if file.startswith("hugetlb.")}
            assert sizes <= set(pages_of(container.shares))


@given(policies(), nodes(), st.sets(st.sampled_from(Knob)))
def test_what_is_the_kubelets_is_never_planned(
    policy: MemoryQosPolicy, pods: list[PodFacts], knobs: set[Knob]
) -> None:
    yielding = replace(policy, kubelets=frozenset(knobs))
    made = plan(yielding, pods)
    files = {f for values in (*made.everything().values(), *made.floors.values()) for f in values}
    if Knob.PROTECTION in knobs:
        assert files.isdisjoint({MIN, LOW})
    if Knob.THROTTLING in knobs:
        assert HIGH not in files
    if Knob.HUGEPAGES in knobs:
        assert not any(file.startswith("hugetlb.") for file in files)


@given(policies(), nodes())
def test_a_throttle_is_never_below_what_is_protected(policy: MemoryQosPolicy, pods: list[PodFacts]) -> None:
    for values in plan(policy, pods).everything().values():
        if HIGH in values:
            assert int(values[HIGH]) >= max(int(values.get(MIN, 0)), int(values.get(LOW, 0)))
