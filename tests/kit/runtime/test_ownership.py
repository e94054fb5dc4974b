"""A running container keeps its CPUs; a newcomer is rejected."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.drivers.models.cpu_enforcement import check_owner
from drakit.kit.claims.cdi_names import MARKER_PREFIX
from drakit.kit.driver import ContainerView, DesiredResources, PreparedClaims, RejectedError
from drakit.kit.runtime.enforcer import Enforcer
from drakit.wire.nri.values import Resources, State
from tests.kit.runtime.test_enforcer import KIND, Pinner, claim, container, pod, synchronize


class Exclusive(Pinner):
    """Pins like the CPU driver does: a claim is one pod's."""

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        for use in container.uses:
            check_owner(container, use)
        return super().enforce(container, prepared_claims)


def enforcer_of(*entries: object, cdi: bool = True) -> Enforcer:
    held = PreparedClaims(entries)  # type: ignore[arg-type]
    return Enforcer(Exclusive, lambda: held, trust_cdi=cdi)


SHARED = claim("a", "2-3", consumers=("pod-1", "pod-2"))


def test_a_pod_that_was_reserved_first_does_not_take_the_cpus_of_a_running_one() -> None:
    enforcer = enforcer_of(SHARED)
    enforcer.create(pod(2), container("second", ("a", "r0"), pod_number=2))
    enforcer.started(pod(2), container("second", ("a", "r0"), pod_number=2), runs=True)
    enforcer.pod_started(pod(1))
    assert enforcer.collect_updates() == []
    with pytest.raises(RejectedError, match="belongs to pod ns/p2"):
        enforcer.create(pod(1), container("first", ("a", "r0")))
    assert enforcer.collect_updates() == []
    assert enforcer.conflicts() == {}


def test_a_pod_between_two_lives_of_its_container_keeps_the_claim() -> None:
    enforcer = enforcer_of(SHARED)
    enforcer.create(pod(2), container("second", ("a", "r0"), pod_number=2))
    enforcer.stopped("id-second")
    enforcer.pod_started(pod(1))
    with pytest.raises(RejectedError, match="belongs to pod ns/p2"):
        enforcer.create(pod(1), container("first", ("a", "r0")))
    again = enforcer.create(pod(2), container("again", ("a", "r0"), pod_number=2))
    assert again.resources.cpus == "2-3"


def test_a_pod_whose_sandbox_stopped_passes_the_claim_on() -> None:
    enforcer = enforcer_of(SHARED)
    enforcer.create(pod(2), container("second", ("a", "r0"), pod_number=2))
    enforcer.stopped("id-second")
    enforcer.pod_stopped(pod(2))
    assert enforcer.create(pod(1), container("first", ("a", "r0"))).resources.cpus == "2-3"


def test_a_container_that_outlives_its_sandboxs_stop_keeps_the_claim() -> None:
    enforcer = enforcer_of(SHARED)
    enforcer.create(pod(2), container("second", ("a", "r0"), pod_number=2))
    enforcer.pod_stopped(pod(2))
    with pytest.raises(RejectedError, match="belongs to pod ns/p2"):
        enforcer.create(pod(1), container("first", ("a", "r0")))


def test_after_a_restart_the_one_that_runs_on_the_claim_owns_it() -> None:
    enforcer = enforcer_of(SHARED)
    waiting = container("first", ("a", "r0"), state=State.RUNNING, resources=Resources(cpus="0-1"))
    running = container(
        "second", ("a", "r0"), pod_number=2, state=State.RUNNING, resources=Resources(cpus="2-3")
    )
    synchronize(enforcer, [pod(1), pod(2)], [waiting, running])
    assert list(enforcer.conflicts()) == ["id-first"]


def test_a_forged_marker_does_not_make_a_pod_the_owner() -> None:
    """The first consumer left; an attacker carries the claim's variable."""
    for cdi in (True, False):
        entry = claim("a", "2-3", consumers=("pod-1",))
        enforcer = enforcer_of(entry, cdi=cdi)
        forged = container("evil", pod_number=9, env=(f"{MARKER_PREFIX}a_r0={KIND}",))
        evil = msgspec.structs.replace(forged, state=State.RUNNING)
        synchronize(enforcer, [pod(9)], [evil])
        if not cdi:
            enforcer.confirm("a", "pod-2")
        mine = container("second", ("a", "r0"), pod_number=2)
        if not cdi:
            mine = msgspec.structs.replace(mine, cdi_devices=(), env=(f"{MARKER_PREFIX}a_r0={KIND}",))
        assert enforcer.create(pod(2), mine).resources.cpus == "2-3"


def test_removing_an_old_sandbox_leaves_the_pods_new_one_alone() -> None:
    entry = claim("a", "2-3", consumers=("gone",))
    enforcer = enforcer_of(entry, cdi=False)
    old = msgspec.structs.replace(pod(2), id="old-sandbox")
    enforcer.pod_started(old)
    enforcer.pod_started(pod(2))
    enforcer.confirm("a", "pod-2")
    marked = container("x", pod_number=2, env=(f"{MARKER_PREFIX}a_r0={KIND}",))
    assert enforcer.create(pod(2), marked).resources.cpus == "2-3"
    enforcer.pod_stopped(old)
    enforcer.pod_removed("old-sandbox")
    assert enforcer.collect_updates() == []
    assert enforcer.conflicts() == {}
    assert [known.reported.id for known in enforcer.users_of("a")] == ["id-x"]


@given(st.randoms(use_true_random=False))
def test_no_event_moves_a_container_off_cpus_it_rightfully_uses(rng: random.Random) -> None:
    """Pods that share claims come, go, restart and return; the runtime restarts in between."""
    claims = [
        claim("a", "2-3", consumers=("pod-1", "pod-2", "pod-3")),
        claim("b", "5", consumers=("pod-2", "pod-4")),
    ]
    enforcer = enforcer_of(*claims)
    running: dict[str, tuple[int, str, str]] = {}
    ended: set[int] = set()

    def apply(updates: object) -> None:
        for update in updates:  # type: ignore[attr-defined]
            if update.container_id in running:
                number, uid, _ = running[update.container_id]
                running[update.container_id] = (number, uid, update.resources.cpus)

    for step in range(40):
        what, number = rng.randrange(6), rng.randint(1, 4)
        if what in (0, 1):
            uid = rng.choice(["a", "b"])
            new = container(f"k{step}", (uid, "r0"), pod_number=number)
            ended.discard(number)
            enforcer.pod_started(pod(number))
            try:
                answer = enforcer.create(pod(number), new)
            except RejectedError:
                pass
            else:
                apply(answer.updates)
                running[new.id] = (number, uid, answer.resources.cpus)
                enforcer.started(pod(number), new, runs=True)
        elif what == 2 and running:
            gone = rng.choice(sorted(running))
            del running[gone]
            apply(enforcer.stopped(gone))
        elif what == 3:
            for each in [c for c, (n, _, _) in running.items() if n == number]:
                del running[each]
                apply(enforcer.stopped(each))
            enforcer.pod_stopped(pod(number))
            if rng.random() < 0.5:
                enforcer.pod_removed(f"sandbox-{number}")
        elif what == 4:
            enforcer.pod_started(pod(number))
        else:
            there = [
                container(
                    each.removeprefix("id-"),
                    (uid, "r0"),
                    pod_number=n,
                    state=State.RUNNING,
                    resources=Resources(cpus=cpus, quota=-1),
                )
                for each, (n, uid, cpus) in running.items()
            ]
            rng.shuffle(there)
            apply(synchronize(enforcer, [pod(n) for n in (4, 3, 2, 1)], there))
        apply(enforcer.collect_updates())
        owners: dict[str, set[int]] = {}
        for n, uid, cpus in running.values():
            own = "2-3" if uid == "a" else "5"
            assert cpus == own, "it rightly got them and keeps them"
            owners.setdefault(uid, set()).add(n)
        assert all(len(pods) == 1 for pods in owners.values()), "one pod per claim"
