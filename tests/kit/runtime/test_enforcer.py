"""Under any sequence of events every container looks as the checkpoint says, and nobody is believed."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.kit.claims import cdi_names as names
from drakit.kit.driver import (
    Assignment,
    Claim,
    ContainerView,
    DesiredResources,
    Driver,
    Offer,
    PreparedClaim,
    PreparedClaims,
    PreparedDevice,
    RejectedError,
)
from drakit.kit.runtime.enforcer import Enforcer
from drakit.kit.runtime.tracking import WANTED_ANNOTATION
from drakit.wire.nri.values import NOTHING, ContainerUpdate, NriContainer, PodSandbox, Resources, State

KIND = "dra.k8s.io/cpu"
ALL = CpuSet.range(0, 16)


@dataclass(frozen=True)
class Pinner:
    """A driver as small as one can be: claims are pinned, everybody else shares the rest."""

    name: str = "dra.toy"
    cdi_kind: str = KIND
    cpuset_kinds: frozenset[str] = frozenset({"cpu"})

    def offer(self) -> Offer:
        return Offer(())

    def assign(self, claim: Claim, prepared_claims: PreparedClaims) -> Assignment:
        raise NotImplementedError

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        if container.uses:
            cpus = CpuSet.union(g.exclusive["cpu"] for use in container.uses for g in use.devices)
            return DesiredResources(cpus=cpus, lift_quota=True, env={"CPUS": str(cpus)})
        return DesiredResources(cpus=ALL - prepared_claims.exclusive("cpu"))


def claim(uid: str, cpus: str, *more: str, consumers: tuple[str, ...] = ("pod-1",)) -> PreparedClaim:
    prepared_devices = tuple(
        PreparedDevice(request=f"r{i}", pool="p", device=f"d{i}", exclusive={"cpu": CpuSet.parse(text)})
        for i, text in enumerate((cpus, *more))
    )
    return PreparedClaim(uid=uid, namespace="ns", name=uid, devices=prepared_devices, consumers=consumers)


def synchronize(
    enforcer: Enforcer, pods: list[PodSandbox], containers: list[NriContainer]
) -> list[ContainerUpdate]:
    """The updates that the runtime's pods and containers need."""
    enforcer.replace_all(pods, containers)
    return enforcer.collect_updates()


class Bench:
    """An enforcer over a checkpoint that tests change by assignment."""

    def __init__(self, *entries: PreparedClaim, trust_cdi: bool = True) -> None:
        self.prepared_claims = PreparedClaims(entries)
        self.driver: Driver = Pinner()
        self.enforcer = Enforcer(lambda: self.driver, lambda: self.prepared_claims, trust_cdi=trust_cdi)


def pod(number: int = 1) -> PodSandbox:
    return PodSandbox(id=f"sandbox-{number}", name=f"p{number}", namespace="ns", uid=f"pod-{number}")


def container(name: str, *parts: tuple[str, str], pod_number: int = 1, **more: object) -> NriContainer:
    devices = tuple(names.qualified_name(KIND, names.ClaimRequest(*part)) for part in parts)
    return NriContainer(
        id=f"id-{name}",
        name=name,
        pod_id=f"sandbox-{pod_number}",
        cdi_devices=devices,
        **more,  # type: ignore[arg-type]
    )


def test_a_claimed_container_is_pinned_and_the_others_make_room_first() -> None:
    bench = Bench()
    assert bench.enforcer.create(pod(2), container("shared", pod_number=2)).resources.cpus == "0-15"
    bench.prepared_claims = PreparedClaims([claim("a", "2-3")])
    answer = bench.enforcer.create(pod(), container("x", ("a", "r0")))
    assert (answer.resources.cpus, answer.resources.quota) == ("2-3", -1)
    assert answer.env == {"CPUS": "2-3"}
    assert [(u.container_id, u.resources.cpus) for u in answer.updates] == [("id-shared", "0-1,4-15")]
    assert bench.enforcer.collect_updates() == [], "said once"


def test_the_pool_grows_back_when_the_claim_ends() -> None:
    bench = Bench(claim("a", "2-3"))
    bench.enforcer.create(pod(2), container("shared", pod_number=2))
    bench.prepared_claims = PreparedClaims()
    assert [u.resources.cpus for u in bench.enforcer.collect_updates()] == ["0-15"]


def test_a_container_gets_the_requests_it_names_only() -> None:
    bench = Bench(claim("a", "2-3", "8-9"))
    assert bench.enforcer.create(pod(), container("x", ("a", "r1"))).resources.cpus == "8-9"
    both = container("y", ("a", "r0"), ("a", "r1"))
    assert bench.enforcer.create(pod(), both).resources.cpus == "2-3,8-9"


def test_several_claims_unite() -> None:
    bench = Bench(claim("a", "2-3"), claim("b", "5"))
    both = container("x", ("a", "r0"), ("b", "r0"))
    assert bench.enforcer.create(pod(), both).resources.cpus == "2-3,5"


def test_a_device_that_is_not_prepared_is_rejected() -> None:
    bench = Bench(claim("a", "2-3"))
    with pytest.raises(RejectedError, match=r"claim-gone_r0, which this driver has not prepared"):
        bench.enforcer.create(pod(), container("x", ("gone", "r0")))
    assert bench.enforcer.containers == {}


def test_foreign_cdi_devices_are_nothing_to_us() -> None:
    bench = Bench()
    other = NriContainer(id="x", name="x", pod_id="sandbox-1", cdi_devices=("nvidia.com/gpu=0",))
    assert bench.enforcer.create(pod(), other).resources.cpus == "0-15"


def test_variables_gain_nothing_where_the_runtime_reports_devices() -> None:
    bench = Bench(claim("a", "2-3"))
    forged = container("x", env=(f"DRA_CLAIM_a_r0={KIND}", "DRA_CPUSET_a=2-3"), pod_number=2)
    assert bench.enforcer.create(pod(2), forged).resources.cpus == "0-1,4-15"


def test_on_an_old_runtime_the_variable_counts_for_the_right_pod_only() -> None:
    bench = Bench(claim("a", "2-3"), trust_cdi=False)
    marked = container("x", env=(f"DRA_CLAIM_a_r0={KIND}",))
    assert bench.enforcer.create(pod(), marked).resources.cpus == "2-3"
    with pytest.raises(RejectedError, match="not reserved for its pod ns/p2"):
        bench.enforcer.create(pod(2), marked)
    unknown = container("y", env=(f"DRA_CLAIM_gone_r0={KIND}",))
    with pytest.raises(RejectedError, match="has not prepared"):
        bench.enforcer.create(pod(), unknown)
    other_driver = container("z", env=("DRA_CLAIM_gone_r0=other/kind",))
    assert bench.enforcer.create(pod(), other_driver).resources.cpus == "0-1,4-15"


def test_an_empty_pool_is_rejected_never_open() -> None:
    bench = Bench(claim("a", "0-15"))
    with pytest.raises(RejectedError, match="would get no CPU"):
        bench.enforcer.create(pod(2), container("shared", pod_number=2))


def test_containers_that_leave_cpus_are_updated_before_those_that_get_them() -> None:
    bench = Bench(claim("a", "2-3"))
    owner, shared = container("owner", ("a", "r0")), container("shared", pod_number=2)
    updates = synchronize(bench.enforcer, [pod(1), pod(2)], [owner, shared])
    assert [(each.container_id, each.resources.cpus) for each in updates] == [
        ("id-shared", "0-1,4-15"),
        ("id-owner", "2-3"),
    ]


def test_one_conflict_at_synchronize_does_not_affect_others() -> None:
    bench = Bench(claim("a", "2-3"))
    reported = [
        container("lost", ("gone", "r0"), state=State.RUNNING),
        container("fine", ("a", "r0"), state=State.RUNNING),
        container("shared", state=State.RUNNING, resources=Resources(cpus="0-15")),
        container("over", state=State.STOPPED),
    ]
    updates = {u.container_id: u.resources.cpus for u in synchronize(bench.enforcer, [pod()], reported)}
    pool = "0-1,4-15"
    assert updates == {"id-fine": "2-3", "id-shared": pool, "id-lost": pool}
    assert list(bench.enforcer.conflicts()) == ["id-lost"]
    bench.prepared_claims = PreparedClaims([claim("a", "2-3"), claim("gone", "7")])
    assert {u.container_id: u.resources.cpus for u in bench.enforcer.collect_updates()}["id-lost"] == "7"
    assert bench.enforcer.conflicts() == {}


def test_a_container_pinned_on_a_lost_claim_is_left_where_it_is() -> None:
    bench = Bench()
    pinned = container("x", ("gone", "r0"), state=State.RUNNING, resources=Resources(cpus="7"))
    assert synchronize(bench.enforcer, [pod()], [pinned]) == []
    assert list(bench.enforcer.conflicts()) == ["id-x"]


def test_synchronize_changes_nothing_that_is_right_already() -> None:
    bench = Bench(claim("a", "2-3"))
    right = container("x", ("a", "r0"), state=State.RUNNING, resources=Resources(cpus="3,2", quota=-1))
    assert synchronize(bench.enforcer, [pod()], [right]) == []


def test_a_kubelet_update_keeps_our_limits_and_lets_the_others_through() -> None:
    bench = Bench(claim("a", "2-3"))
    bench.enforcer.create(pod(), container("x", ("a", "r0")))
    updates = bench.enforcer.update(pod(), container("x"), Resources(cpus="0-15", quota=50000, shares=2))
    assert [(u.container_id, u.resources) for u in updates] == [("id-x", Resources(cpus="2-3", quota=-1))]
    last_sent = bench.enforcer.containers["id-x"].last_sent
    assert last_sent is not None
    assert last_sent.shares == 2


def test_a_missed_create_is_noticed_and_corrected() -> None:
    bench = Bench(claim("a", "2-3"))
    assert bench.enforcer.started(pod(), container("x", ("a", "r0")))
    assert not bench.enforcer.started(pod(), container("x", ("a", "r0")))
    assert [u.resources.cpus for u in bench.enforcer.collect_updates()] == ["2-3"]


def test_updates_that_could_not_be_sent_are_sent_again() -> None:
    bench = Bench()
    bench.enforcer.create(pod(), container("x"))
    bench.enforcer.mark_unsent(["id-x", "never-heard-of"])
    assert [u.resources.cpus for u in bench.enforcer.collect_updates()] == ["0-15"]


def test_ended_containers_are_forgotten() -> None:
    bench = Bench()
    bench.enforcer.create(pod(), container("x"))
    bench.enforcer.stopped("id-x")
    bench.enforcer.stopped("id-x")
    bench.enforcer.create(pod(), container("y"))
    bench.enforcer.pod_removed("sandbox-1")
    bench.enforcer.pod_removed("sandbox-1")
    assert bench.enforcer.containers == {}


@given(st.randoms(use_true_random=False))
def test_containers_always_have_the_resources_of_the_checkpoint(rng: random.Random) -> None:
    bench, runtime, claims = Bench(), dict[str, Resources](), dict[str, PreparedClaim]()
    numbers = iter(range(10**6))

    def apply(updates: object) -> None:
        for update in updates:  # type: ignore[attr-defined]
            if update.container_id in runtime:
                runtime[update.container_id] = update.resources.over(runtime[update.container_id])

    for _ in range(40):
        step = rng.randrange(6)
        if step == 0 and len(claims) < 5:
            free = ALL - PreparedClaims(claims.values()).exclusive("cpu")
            if len(free) > 3:
                uid = f"c{next(numbers)}"
                claims[uid] = claim(uid, str(CpuSet(rng.sample(list(free), 2))))
                bench.prepared_claims = PreparedClaims(claims.values())
        elif step == 1 and claims:
            uid = rng.choice(sorted(claims))
            for known in list(bench.enforcer.containers.values()):
                if any(f"-{uid}_" in d for d in known.reported.cdi_devices):
                    del runtime[known.reported.id]
                    apply(bench.enforcer.stopped(known.reported.id))
            del claims[uid]
            bench.prepared_claims = PreparedClaims(claims.values())
        elif step in (2, 3):
            uses = [(uid, "r0") for uid in sorted(claims) if rng.random() < 0.4]
            new = container(f"k{next(numbers)}", *uses)
            answer = bench.enforcer.create(pod(), new)
            runtime[new.id] = answer.resources
            apply(answer.updates)
        elif step == 4 and runtime:
            gone = rng.choice(sorted(runtime))
            del runtime[gone]
            apply(bench.enforcer.stopped(gone))
        else:
            again = [
                NriContainer(
                    id=i,
                    name=i,
                    pod_id="sandbox-1",
                    resources=r,
                    state=State.RUNNING,
                    cdi_devices=bench.enforcer.containers[i].reported.cdi_devices,
                )
                for i, r in runtime.items()
            ]
            apply(synchronize(bench.enforcer, [pod()], again))
        apply(bench.enforcer.collect_updates())
        held = bench.prepared_claims.exclusive("cpu")
        for container_id, resources in runtime.items():
            devices = bench.enforcer.containers[container_id].reported.cdi_devices
            mine = CpuSet.union(
                e.exclusive("cpu") for e in claims.values() if any(f"claim-{e.uid}_" in d for d in devices)
            )
            assert CpuSet.parse(resources.cpus) == (mine or ALL - held)
        assert NOTHING not in runtime.values()


def owner_seen_by(bench: Bench, asking: PodSandbox, reported: NriContainer) -> str:
    seen: list[str] = []

    @dataclass(frozen=True)
    class Noting(Pinner):
        def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
            seen.extend(use.owner_uid for use in container.uses)
            return super().enforce(container, prepared_claims)

    bench.driver = Noting()
    bench.enforcer.create(asking, reported)
    return seen[0]


def test_a_claim_belongs_to_the_first_pod_it_is_reserved_for_while_that_is_here() -> None:
    bench = Bench(claim("a", "2-3", consumers=("pod-1", "pod-2")))
    bench.enforcer.create(pod(1), container("x", ("a", "r0")))
    assert owner_seen_by(bench, pod(2), container("y", ("a", "r0"), pod_number=2)) == "pod-1"
    bench.enforcer.stopped("id-x")
    assert owner_seen_by(bench, pod(2), container("z", ("a", "r0"), pod_number=2)) == "pod-1"
    bench.enforcer.pod_removed("sandbox-1")
    assert owner_seen_by(bench, pod(2), container("w", ("a", "r0"), pod_number=2)) == "pod-2"


def test_without_a_reservation_a_claim_belongs_to_the_pod_that_uses_it() -> None:
    bench = Bench(claim("a", "2-3", consumers=("long-gone",)))
    assert owner_seen_by(bench, pod(1), container("x", ("a", "r0"))) == "pod-1"
    assert owner_seen_by(bench, pod(2), container("y", ("a", "r0"), pod_number=2)) == "pod-1"


@dataclass(frozen=True)
class Pages(Pinner):
    """Adds a claim's pages to those the kubelet asked for."""

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        if not container.uses:
            return DesiredResources()
        classic = container.hugepage_limits.get("2MB", 0)
        limit = container.memory_limit
        return DesiredResources(
            hugepage_limits={"2MB": classic + 1000}, memory_limit=None if limit is None else limit + 1000
        )


def test_the_limits_of_the_kubelet_survive_any_number_of_restarts() -> None:
    prepared_claims = PreparedClaims([claim("a", "2-3")])
    asked = Resources(memory_limit=70, hugepage_limits={"2MB": 5, "1GB": 0})
    born = container("x", ("a", "r0"), resources=asked)
    answer = Enforcer(Pages, lambda: prepared_claims).create(pod(), born)
    assert answer.resources.hugepage_limits == {"2MB": 1005}
    assert answer.resources.memory_limit == 1070
    # What the runtime then reports: its limits with ours over them, and our annotation.
    now = container("x", ("a", "r0"), resources=answer.resources.over(asked), annotations=answer.annotations)
    for _ in range(3):
        later = Enforcer(Pages, lambda: prepared_claims)
        assert synchronize(later, [pod()], [now]) == [], "already as it must be"
        (view,) = later.pod_views()
        assert view.containers[0].hugepage_limits == {"2MB": 5, "1GB": 0}
        assert view.containers[0].memory_limit == 70


def test_a_resize_by_the_kubelet_is_the_new_base() -> None:
    prepared_claims = PreparedClaims([claim("a", "2-3")])
    enforcer = Enforcer(Pages, lambda: prepared_claims)
    born = container("x", ("a", "r0"), resources=Resources(memory_limit=70))
    enforcer.create(pod(), born)
    (update,) = enforcer.update(pod(), born, Resources(memory_limit=200))
    assert update.resources.memory_limit == 1200
    note = Enforcer(Pages, lambda: prepared_claims).create(pod(), born).annotations
    now = container("x", ("a", "r0"), resources=update.resources, annotations=note)
    assert synchronize(Enforcer(Pages, lambda: prepared_claims), [pod()], [now]) == [], "also for the next"


@pytest.mark.parametrize("text", ["", "{", '{"memory_added": "x"}', "[]"])
def test_a_damaged_note_is_as_good_as_none(text: str) -> None:
    enforcer = Enforcer(Pages, lambda: PreparedClaims([claim("a", "2-3")]))
    odd = container(
        "x",
        ("a", "r0"),
        resources=Resources(hugepage_limits={"2MB": 7}),
        annotations={WANTED_ANNOTATION: text},
    )
    (update,) = synchronize(enforcer, [pod()], [odd])
    assert update.resources.hugepage_limits == {"2MB": 1007}


def test_containers_with_unchanged_limits_have_no_annotation() -> None:
    bench = Bench(claim("a", "2-3"))
    assert bench.enforcer.create(pod(), container("x", ("a", "r0"))).annotations == {}
