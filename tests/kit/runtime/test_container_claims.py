"""The driver declares which exclusive kinds are CPUs; the kit holds and evicts by these alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drakit.core.cpuset import CpuSet
from drakit.kit.driver import PreparedClaim, PreparedClaims, PreparedDevice
from drakit.kit.runtime.container_claims import exclusive_cpus, holds
from drakit.kit.runtime.enforcer import Enforcer
from drakit.wire.nri.values import NriContainer, Resources, State
from tests.kit.runtime.test_enforcer import KIND, Pinner, pod

NAMED = PreparedClaim(
    uid="named",
    namespace="ns",
    name="named",
    devices=(
        PreparedDevice(
            request="r0",
            pool="p",
            device="d0",
            exclusive={"isolated": CpuSet([2, 3]), "cpu": CpuSet([4]), "seat": CpuSet([1])},
        ),
    ),
)


@pytest.mark.parametrize(
    ("kinds", "cpus"), [((), ""), (("cpu",), "4"), (("isolated",), "2-3"), (("cpu", "isolated"), "2-4")]
)
def test_only_the_kinds_that_a_driver_declares_are_cpus(kinds: tuple[str, ...], cpus: str) -> None:
    driver = replace(Pinner(), cpuset_kinds=frozenset(kinds))
    assert exclusive_cpus(NAMED, driver) == CpuSet.parse(cpus)


def test_cpus_of_lost_claims_are_held_in_every_kind_that_a_driver_declares() -> None:
    driver = replace(Pinner(), cpuset_kinds=frozenset({"isolated"}))
    lost = NriContainer(
        id="id-x",
        pod_id="sandbox-1",
        state=State.RUNNING,
        cdi_devices=(f"{KIND}=claim-lost",),
        resources=Resources(cpus="6-7"),
    )
    enforcer = Enforcer(lambda: driver, PreparedClaims)
    enforcer.replace_all([pod()], [lost])
    assert enforcer.orphaned(()) == {"lost": CpuSet([6, 7])}
    assert holds(enforcer.orphaned(()), driver) == {"lost": {"isolated": CpuSet([6, 7])}}
    driver = replace(driver, cpuset_kinds=frozenset())
    assert enforcer.orphaned(()) == {}, "without such a kind there is nothing to hold"


@pytest.mark.parametrize(("kind", "users"), [("isolated", ["id-x"]), ("seat", [])])
def test_numbers_of_other_kinds_do_not_make_a_container_a_user(kind: str, users: list[str]) -> None:
    driver = replace(Pinner(), cpuset_kinds=frozenset({"isolated"}))
    orphaned = PreparedClaims((), {"lost": {kind: CpuSet([6, 7])}})
    marked = NriContainer(
        id="id-x",
        pod_id="sandbox-1",
        state=State.RUNNING,
        env=(f"DRA_CLAIM_lost_r0={KIND}",),
        resources=Resources(cpus="6-7"),
    )
    enforcer = Enforcer(lambda: driver, lambda: orphaned, trust_cdi=False)
    enforcer.replace_all([pod()], [marked])
    assert [user.id for user in enforcer.users_of("lost")] == users
