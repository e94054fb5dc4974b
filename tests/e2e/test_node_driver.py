"""Node tier: guarantees of the CPU driver with a real runtime and kernel; mutants are detected.

A guarantee is a function: it must pass with the driver and fail with the driver broken in exactly that
respect (``mutants``). This proves that every test here can fail.

The node: cores {0,1} {2,3} on NUMA node 0, {4,5} {6,7} on NUMA node 1; CPU 0 is reserved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from grpclib.exceptions import GRPCError

from tests.e2e.bed.deploy import install_packages
from tests.e2e.bed.drivenode import ClaimRejectedError, DrivenNode, driven
from tests.e2e.bed.node import Node
from tests.e2e.bed.watch import role, watching

EVERYTHING = frozenset(range(1, 8))
SETTINGS = {"reserved_cpus": "0", "verify_seconds": "2"}
Guarantee = Callable[[DrivenNode], None]


def claimed_cpus_are_where_the_container_runs(node: DrivenNode) -> None:
    container, _ = node.owner(2, numa=0)
    assert node.cpus(container) == {2, 3}, "not the CPUs of its claim"
    assert node.node.effective_mems(container) == {0}
    (pid,) = node.node.pids(container)
    assert "DRA_CPUSET=2-3" in node.node.read(f"/proc/{pid}/environ").split("\0")


def no_cpu_is_owned_twice(node: DrivenNode) -> None:
    with watching(node.node, node.node.guest.node_tier_pods) as watch:
        sharer = node.run(node.pod(), environment=role("sharer"))
        owners = {node.owner(2, numa=1, **role("owner", 2))[0] for _ in range(2)}
        owners.add(node.owner(1, numa=0, **role("owner", 1))[0])
        assert node.soon(lambda: owners <= set(watch.report().owners), limit=15)
        assert node.cpus(sharer) == {2, 3}
        watch.report().check()


def the_shared_pool_shrinks_and_grows_back(node: DrivenNode) -> None:
    sharer = node.run(node.pod())
    assert node.cpus(sharer) == EVERYTHING
    container, claim = node.owner(2, numa=0)
    assert node.cpus(sharer) == EVERYTHING - {2, 3}
    node.end(container, claim)
    assert node.soon(lambda: node.cpus(sharer) == EVERYTHING), "the pool did not grow back"


def a_claim_is_kept_while_a_container_runs_on_it(node: DrivenNode) -> None:
    sharer = node.run(node.pod())
    container, claim = node.owner(2, numa=0)
    try:
        node.unprepare(claim)  # as the kubelet does once a minute for pods deleted by force
    except ClaimRejectedError as rejection:
        assert "still in use by" in str(rejection)
    assert not node.soon(lambda: bool(node.cpus(sharer) & {2, 3}), limit=3), "others run on its CPUs"
    assert node.cpus(container) == {2, 3}
    node.end(container, claim)
    assert node.soon(lambda: node.cpus(sharer) == EVERYTHING), "the pool did not grow back"


def a_prepared_claim_survives_a_crash(node: DrivenNode) -> None:
    pod = node.pod()
    first = node.claim(pod, 2, numa=1)
    devices = node.prepare(first)
    node.driver.kill()
    node.driver.start()
    other, _ = node.owner(2, numa=1)
    left = EVERYTHING & {4, 5, 6, 7} - node.cpus(other)
    try:
        container = node.run(pod, devices)
    except GRPCError as rejection:
        pytest.fail(f"the claim was forgotten: {rejection}", pytrace=False)
    assert node.cpus(container) == left, "the claim was forgotten"


def a_forged_environment_gives_nothing(node: DrivenNode) -> None:
    container, claim = node.owner(2, numa=0)
    forged = {
        "DRA_CPUSET": "2-3",
        f"DRA_CPUSET_{claim.uid}": "2-3",
        f"DRA_CLAIM_{claim.uid}_cpus": "dra.k8s.io/cpu",
    }
    try:
        forger = node.run(node.pod(), environment=forged)
    except GRPCError as rejection:
        # A runtime that does not report CDI devices: only the marker is available, and it is checked.
        assert f"remove DRA_CLAIM_{claim.uid}_cpus from the pod" in str(rejection)
    else:
        assert node.cpus(forger) == EVERYTHING - {2, 3}, "the forger has the owner's CPUs"
    assert node.cpus(container) == {2, 3}


def a_second_pod_is_rejected_the_claim_of_another(node: DrivenNode) -> None:
    pod, second = node.pod(), node.pod()
    claim = node.claim(pod, 2, 0, second)  # the API server allows several pods to use one claim
    devices = node.prepare(claim)
    container = node.run(pod, devices)
    try:
        node.run(second, devices)
    except GRPCError as rejection:
        assert "give each pod a claim of its own" in str(rejection)
    else:
        pytest.fail("a second pod runs on exclusive CPUs", pytrace=False)
    assert node.cpus(container) == {2, 3}


def what_started_while_it_was_away_is_corrected(node: DrivenNode) -> None:
    pod = node.pod()
    devices = node.prepare(node.claim(pod, 2, numa=0))
    node.driver.kill()
    container, sharer = node.run(pod, devices), node.run(node.pod())
    node.driver.start()
    corrected = node.soon(lambda: node.cpus(container) == {2, 3} and node.cpus(sharer) == EVERYTHING - {2, 3})
    assert corrected, "containers from its absence run anywhere"


def a_cgroup_changed_by_hand_is_put_right(node: DrivenNode) -> None:
    container, _ = node.owner(2, numa=0)
    cgroup = node.node.container_cgroup(container)
    node.node.run(f"echo 0-7 > {cgroup}/cpuset.cpus")
    assert node.cpus(container) == frozenset(range(8))
    assert node.soon(lambda: node.cpus(container) == {2, 3}), "the change was not noticed"


BROKEN: dict[str, tuple[Guarantee, str]] = {
    "pins_the_wrong_cpu": (claimed_cpus_are_where_the_container_runs, "not the CPUs of its claim"),
    "pins_all_to_the_same_cpus": (no_cpu_is_owned_twice, "together with"),
    "forgets_to_grow": (the_shared_pool_shrinks_and_grows_back, "did not grow back"),
    "gives_back_too_early": (a_claim_is_kept_while_a_container_runs_on_it, "others run on its CPUs"),
    "loses_state": (a_prepared_claim_survives_a_crash, "was forgotten"),
    "trusts_the_environment": (a_forged_environment_gives_nothing, "has the owner's CPUs"),
    "lets_pods_share": (a_second_pod_is_rejected_the_claim_of_another, "a second pod runs"),
    "ignores_what_it_missed": (what_started_while_it_was_away_is_corrected, "run anywhere"),
    "believes_its_own_books": (a_cgroup_changed_by_hand_is_put_right, "was not noticed"),
}
"""The guarantee that detects each mutant, and its message."""


_ALWAYS = ("pins_the_wrong_cpu", "forgets_to_grow", "loses_state", "trusts_the_environment")
"""The mutants of the default run and their guarantees; each starts a driver in the emulated machine."""
_MUTANTS = [pytest.param(name, marks=() if name in _ALWAYS else pytest.mark.full) for name in BROKEN]
_GUARANTEES = [
    pytest.param(guarantee, marks=() if name in _ALWAYS else pytest.mark.full, id=guarantee.__name__)
    for name, (guarantee, _) in BROKEN.items()
]


@pytest.fixture(scope="module")
def machine(runtime: Node, packages: Path) -> Node:
    """The node with drakit on its disk."""
    install_packages(runtime, packages)
    return runtime


@pytest.fixture(scope="module")
def driver(machine: Node, request: pytest.FixtureRequest) -> Iterator[DrivenNode]:
    """A driver on the node, unchanged (no parameter) or a mutant; one at a time."""
    with driven(machine, request.param, **SETTINGS) as node:
        yield node


@pytest.mark.parametrize("driver", [pytest.param("", id="unchanged")], indirect=True)
@pytest.mark.parametrize("guarantee", _GUARANTEES)
def test_the_driver_keeps_its_guarantee(driver: DrivenNode, guarantee: Guarantee) -> None:
    try:
        guarantee(driver)
    finally:
        driver.clear()


@pytest.mark.parametrize("driver", _MUTANTS, indirect=True)
def test_a_mutant_is_detected(driver: DrivenNode, request: pytest.FixtureRequest) -> None:
    mutant = request.node.callspec.params["driver"]
    guarantee, words = BROKEN[mutant]
    try:
        guarantee(driver)
    except (AssertionError, pytest.fail.Exception) as caught:
        assert words in str(caught), f"caught for another reason: {caught}"
    else:
        pytest.fail(f"{guarantee.__name__} does not detect a driver that {mutant}")
