"""Nothing a workload controls reserves, owns or blocks anything for other workloads.

Two enforcers see the same node, except that in one the attacker's containers carry what a pod can write:
environment, labels, annotations, names. Everything about all other containers must be equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.kit.claims.cdi_names import MARKER_PREFIX, MOST_MARKERS, ClaimRequest, qualified_name
from drakit.kit.driver import PreparedClaims, RejectedError
from drakit.kit.runtime.enforcer import Enforcer
from drakit.kit.runtime.tracking import WANTED_ANNOTATION, annotation_for, kubelet_limits
from drakit.wire.nri.values import NriContainer, PodSandbox, Resources, State
from tests.kit.runtime.test_enforcer import ALL, KIND, Pinner, claim, pod, synchronize

CLAIMS = (
    claim("a", "2-3", consumers=("pod-1",)),
    claim("b", "5", consumers=("pod-2", "pod-3")),
    claim("c", "7", consumers=()),  # as after a force-deleted pod
)
LOST = "lost"
"""A claim without a record that this node has other evidence of."""

markers = st.sampled_from(
    [
        *(f"{MARKER_PREFIX}{uid}_r0={KIND}" for uid in ("a", "b", "c", LOST, "whatever")),
        f"{MARKER_PREFIX}a_r0=",
        f"{MARKER_PREFIX}a_r0=other/kind",
        f"{MARKER_PREFIX}=",
        f"{MARKER_PREFIX}_={KIND}",
        "DRA_CPUSET_a=2-3",
        f"DRA_CPUSET_{LOST}=0-15",
        "DRA_CPUSET=2-3",
    ]
)
environments = st.lists(markers | st.text(max_size=20), max_size=6).map(tuple)
notes = st.dictionaries(
    st.sampled_from([WANTED_ANNOTATION, "cdi.k8s.io/x"]),
    st.sampled_from(['{"hugepages":{"2MB":99}}', f"{KIND}=claim-a_r0", "{"]),
    max_size=2,
)


@dataclass(frozen=True)
class Attack:
    """What an attacker's container carries, and which CPUs its cgroup has."""

    env: tuple[str, ...]
    labels: dict[str, str]
    annotations: dict[str, str]
    name: str
    cpus: str
    creates: bool


attacks = st.builds(
    Attack,
    env=environments,
    labels=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=2),
    annotations=notes,
    name=st.text(max_size=12),
    cpus=st.sampled_from(["", "0-15", "0-1,4,6,8-15", "2", "0-1", "garbage"]),
    creates=st.booleans(),
)


def devices(uid: str) -> tuple[str, ...]:
    return (qualified_name(KIND, ClaimRequest(uid, "r0")),)


def node(attack: Attack | None, *, cdi: bool) -> tuple[Enforcer, dict[str, object]]:
    """A node with rightful users, plain containers and an attacker, after one of each event."""
    held = PreparedClaims(CLAIMS)
    enforcer = Enforcer(Pinner, lambda: held, trust_cdi=cdi)

    def rightful(uid: str, number: int, cpus: str) -> NriContainer:
        return NriContainer(
            id=f"id-{uid}{number}",
            name=uid,
            pod_id=f"sandbox-{number}",
            state=State.RUNNING,
            cdi_devices=devices(uid) if cdi else (),
            env=(f"{MARKER_PREFIX}{uid}_r0={KIND}",),
            resources=Resources(cpus=cpus),
        )

    plain = NriContainer(id="id-plain", name="plain", pod_id="sandbox-8", state=State.RUNNING,
                     resources=Resources(cpus="0-1,4,6,8-15"))  # fmt: skip
    evil_pod = PodSandbox(id="sandbox-9", name="evil", namespace="attacker", uid="pod-9",
                   annotations=attack.annotations if attack else {})  # fmt: skip
    evil = NriContainer(id="id-evil", name="evil", pod_id="sandbox-9", state=State.RUNNING)
    if attack is not None:
        evil = msgspec.structs.replace(
            evil, env=attack.env, labels=attack.labels, annotations=attack.annotations,
            name=attack.name, resources=Resources(cpus=attack.cpus),
        )  # fmt: skip
    found = [rightful("a", 1, "2-3"), plain]
    pods = [pod(1), pod(2), pod(3), pod(8), evil_pod]
    if attack is None or not attack.creates:
        found.append(evil)
    answers: dict[str, object] = {"sync": _others(synchronize(enforcer, pods, found))}
    answers["held"] = enforcer.orphaned({LOST})
    if attack is not None and attack.creates:
        try:
            enforcer.create(evil_pod, evil)
        except RejectedError:
            pass
        else:
            enforcer.started(evil_pod, evil, runs=True)
    for uid, number in (("b", 3), ("c", 4)):
        made = msgspec.structs.replace(rightful(uid, number, ""), state=State.CREATED)
        if not cdi and uid == "c":
            enforcer.confirm("c", "pod-4")
        adjustment = enforcer.create(pod(number), made)
        answers[uid] = (adjustment.resources, _others(adjustment.updates))
    answers["users"] = {c.uid: [k.reported.id for k in enforcer.users_of(c.uid)] for c in CLAIMS}
    answers["shapes"] = {
        each: enforcer.decide(known).desired
        for each, known in enforcer.containers.items()
        if each != "id-evil"
    }
    answers["conflicts"] = {k: v for k, v in enforcer.conflicts().items() if k != "id-evil"}
    return enforcer, answers


def _others(updates: object) -> list[object]:
    return [each for each in updates if each.container_id != "id-evil"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("cdi", [True, False], ids=["cdi", "markers"])
@given(attack=attacks)
def test_nothing_a_pod_can_write_changes_anything_for_others(cdi: bool, attack: Attack) -> None:
    _, quiet = node(None, cdi=cdi)
    _, attacked = node(attack, cdi=cdi)
    held = attacked.pop("held")
    assert quiet.pop("held") == {}
    assert attacked == quiet
    # A variable may speak of a claim that is really lost; even then nothing that others use is held.
    assert CpuSet.union(held.values()).isdisjoint(CpuSet.parse("0-1,4,6,8-15"))  # type: ignore[union-attr]
    assert set(held) <= {LOST}  # type: ignore[call-overload]
    if cdi:
        assert held == {}


@pytest.mark.parametrize("cdi", [True, False], ids=["cdi", "markers"])
@given(attack=attacks)
def test_an_attacker_never_gets_cpus_of_others(cdi: bool, attack: Attack) -> None:
    enforcer, _ = node(attack, cdi=cdi)
    known = enforcer.containers.get("id-evil")
    desired = enforcer.decide(known).desired if known is not None else None
    if desired is not None and desired.cpus is not None:
        assert desired.cpus.isdisjoint(CpuSet.parse("2-3,5,7"))


def test_a_variable_of_an_unprepared_claim_holds_nothing_after_a_restart() -> None:
    """One pod, one variable, one restart: no CPU was left on the node."""
    for cdi in (True, False):
        enforcer = Enforcer(Pinner, PreparedClaims, trust_cdi=cdi)
        evil = NriContainer(
            id="id-evil", name="main", pod_id="sandbox-9", state=State.RUNNING,
            env=(f"{MARKER_PREFIX}whatever_x={KIND}",), resources=Resources(cpus=str(ALL)),
        )  # fmt: skip
        synchronize(enforcer, [PodSandbox(id="sandbox-9", uid="pod-9")], [evil])
        assert enforcer.orphaned(()) == {}
        assert enforcer.create(pod(), NriContainer(id="x", pod_id="sandbox-1")).resources.cpus == "0-15"


def test_even_with_evidence_a_variable_never_takes_the_last_cpus() -> None:
    enforcer = Enforcer(Pinner, PreparedClaims, trust_cdi=False)
    evil = NriContainer(
        id="id-evil", name="main", pod_id="sandbox-9", state=State.RUNNING,
        env=(f"{MARKER_PREFIX}{LOST}_r0={KIND}",), resources=Resources(cpus=str(ALL)),
    )  # fmt: skip
    enforcer.replace_all([PodSandbox(id="sandbox-9", uid="pod-9")], [evil])
    assert enforcer.orphaned({LOST}) == {}


def test_a_container_on_a_lost_claim_keeps_its_cpus_where_names_are_not_reported() -> None:
    """With evidence that is not in the pod's hands: a CDI spec, or a damaged record."""
    enforcer = Enforcer(Pinner, PreparedClaims, trust_cdi=False)
    pinned = NriContainer(
        id="id-x", name="main", pod_id="sandbox-1", state=State.RUNNING,
        env=(f"{MARKER_PREFIX}{LOST}_r0={KIND}",), resources=Resources(cpus="7"),
    )  # fmt: skip
    enforcer.replace_all([pod()], [pinned])
    assert enforcer.orphaned(()) == {}
    assert enforcer.orphaned({LOST}) == {LOST: CpuSet([7])}
    assert enforcer.orphaned({LOST}, lambda known: True) == {}, "it ended"


def test_cpus_that_containers_without_claims_use_are_not_held_on_a_variables_word() -> None:
    enforcer = Enforcer(Pinner, PreparedClaims, trust_cdi=False)
    marked = NriContainer(
        id="id-x", name="main", pod_id="sandbox-1", state=State.RUNNING,
        env=(f"{MARKER_PREFIX}{LOST}_r0={KIND}",), resources=Resources(cpus="6-7"),
    )  # fmt: skip
    plain = NriContainer(
        id="id-y", name="main", pod_id="sandbox-2", state=State.RUNNING,
        resources=Resources(cpus="0-6"),
    )  # fmt: skip
    enforcer.replace_all([pod(), pod(2)], [marked, plain])
    assert enforcer.orphaned({LOST}) == {LOST: CpuSet([7])}


def test_a_device_names_the_user_of_a_claim_nothing_else_is_known_of() -> None:
    enforcer = Enforcer(Pinner, PreparedClaims)
    running = NriContainer(id="id-x", pod_id="sandbox-1", state=State.RUNNING, cdi_devices=devices(LOST))
    synchronize(enforcer, [pod()], [running])
    assert [known.reported.id for known in enforcer.users_of(LOST)] == ["id-x"]


def test_containers_of_the_go_driver_keep_their_cpus() -> None:
    """Its device is named without a request, its variable is another one."""
    uid = "11111111-1111-4111-8111-111111111111"
    with_name = NriContainer(
        id="id-x", pod_id="sandbox-1", state=State.RUNNING, resources=Resources(cpus="0,4"),
        cdi_devices=(f"{KIND}=claim-{uid}",), env=(f"DRA_CPUSET_{uid}=0,4",),
    )  # fmt: skip
    enforcer = Enforcer(Pinner, PreparedClaims)
    assert synchronize(enforcer, [pod()], [with_name]) == []
    assert enforcer.orphaned(()) == {uid: CpuSet([0, 4])}
    without = msgspec.structs.replace(with_name, cdi_devices=())
    enforcer = Enforcer(Pinner, PreparedClaims, trust_cdi=False)
    enforcer.replace_all([pod()], [without])
    assert enforcer.orphaned({uid}) == {uid: CpuSet([0, 4])}


def test_a_claim_without_its_device_is_rejected_where_devices_are_reported() -> None:
    held = PreparedClaims(CLAIMS)
    enforcer = Enforcer(Pinner, lambda: held)
    marked = NriContainer(id="x", name="main", pod_id="sandbox-1", env=(f"{MARKER_PREFIX}a_r0={KIND}",))
    with pytest.raises(RejectedError, match="reports no CDI device") as caught:
        enforcer.create(pod(), marked)
    assert caught.value.reason == "missing-device"
    assert enforcer.containers == {}


def test_a_running_container_of_the_pod_is_still_served_by_its_marker() -> None:
    """It may have been created by a release that did not report devices: it keeps its CPUs."""
    held = PreparedClaims(CLAIMS)
    enforcer = Enforcer(Pinner, lambda: held)
    running = NriContainer(
        id="x", name="main", pod_id="sandbox-1", state=State.RUNNING,
        env=(f"{MARKER_PREFIX}a_r0={KIND}",), resources=Resources(cpus="2-3", quota=-1),
    )  # fmt: skip
    assert synchronize(enforcer, [pod()], [running]) == []
    assert [known.reported.id for known in enforcer.users_of("a")] == ["x"]


def test_a_flood_of_variables_is_neither_kept_nor_searched() -> None:
    held = PreparedClaims(CLAIMS)
    enforcer = Enforcer(Pinner, lambda: held, trust_cdi=False)
    flood = tuple(f"{MARKER_PREFIX}{i}_r={KIND}" for i in range(20_000))
    evil = NriContainer(id="x", name="main", pod_id="sandbox-1", state=State.RUNNING, env=flood)
    with pytest.raises(RejectedError, match=f"more than {MOST_MARKERS}"):
        enforcer.create(pod(), evil)
    synchronize(enforcer, [pod()], [evil])
    known = enforcer.containers["x"]
    assert known.reported.env == ()
    assert len(known.references.markers) <= MOST_MARKERS + 1
    worthless = msgspec.structs.replace(evil, env=tuple(f"{MARKER_PREFIX}{i}=" for i in range(9)))
    synchronize(enforcer, [pod()], [worthless])
    assert not enforcer.containers["x"].references_claims


@given(added=st.integers(1, 1 << 40), pages=st.integers(0, 1 << 40))
def test_a_note_about_the_kubelets_limits_counts_only_if_the_pod_could_not_write_it(
    added: int, pages: int
) -> None:
    theirs = Resources(memory_limit=1 << 41, hugepage_limits={"2MB": pages})
    ours = Resources(memory_limit=(1 << 41) + added, hugepage_limits={"2MB": pages + 1})
    note = annotation_for(ours, theirs)
    container = NriContainer(id="x", annotations=note, resources=ours.over(theirs))
    honest = PodSandbox(id="s", annotations={"other": "x"})
    assert kubelet_limits(container, honest).memory_limit == theirs.memory_limit
    assert kubelet_limits(container, honest).hugepage_limits == {"2MB": pages}
    for doubtful in (None, PodSandbox(id="s", annotations=note)):
        assert kubelet_limits(container, doubtful).hugepage_limits == {}
        assert kubelet_limits(container, doubtful).memory_limit is None
