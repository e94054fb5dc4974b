"""Admission policies of the charts, tested with a real API server; no node needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.bed.deploy import render_chart
from tests.e2e.bed.host import Ability
from tests.e2e.bed.kubernetes import Api, ApiError, Manifest
from tests.e2e.bed.oracle import Oracle
from tests.e2e.bed.pins import Pins
from tests.e2e.bed.waiting import NotYetError, wait_for

SLICE = ("resource.k8s.io/v1", "ResourceSlice")
CLAIM = ("resource.k8s.io/v1", "ResourceClaim")
DRIVERS = {"dra-driver-cpu": "dra.cpu", "dra-driver-cpumem": "dra.cpumem"}
HERE, THERE = "admission-1", "admission-2"
APPLIED = {
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


@pytest.fixture(scope="module")
def oracle(ability: Ability, pins: Pins) -> Iterator[Oracle]:
    if not ability.go:
        pytest.skip(f"no control plane on this machine: {ability.why_not()}")
    with Oracle() as made:
        for name in (HERE, THERE):
            made.add_node(name)
        for chart in DRIVERS:
            values = {"driverConfig": {"hugepageGrowth": {"2Mi": "1Gi"}}} if "mem" in chart else {}
            rendered = render_chart(pins, chart, "kube-system", values)
            made.api.apply([each for each in rendered if each["kind"] in APPLIED], "kube-system")
        made.api.apply(_rights_of_1_35("dra-driver-cpumem"))
        for chart in DRIVERS:
            _wait_until_policies_hold(made, chart)
        yield made


def _rights_of_1_35(account: str) -> list[Manifest]:
    """Since 1.36 the API server itself restricts writes to the claim status.

    These permissions disable that check, as before 1.36, so that only the policy applies.
    """
    rbac = "rbac.authorization.k8s.io"
    rules = [
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims/driver"],
            "verbs": ["arbitrary-node:patch", "arbitrary-node:update"],
        },
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims/binding"],
            "verbs": ["patch", "update"],
        },
    ]
    role = {"apiGroup": rbac, "kind": "ClusterRole", "name": "as-in-1.35"}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}
    head = {"apiVersion": f"{rbac}/v1", "metadata": {"name": "as-in-1.35"}}
    return [
        {**head, "kind": "ClusterRole", "rules": rules},
        {**head, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]},
    ]


def _wait_until_policies_hold(oracle: Oracle, chart: str) -> None:
    """The API server compiles policies shortly after their creation."""
    user = _as_driver(oracle, chart)

    def holds() -> bool:
        try:
            made = user.create(_slice(DRIVERS[chart], THERE))
        except ApiError as error:
            if "may not write slices" in str(error):
                return True
            raise NotYetError(str(error)) from error
        oracle.api.delete(*SLICE, made["metadata"]["name"])
        raise NotYetError("a slice of another node was accepted")

    wait_for(f"the policies of {chart}", holds, limit=60, pause=0.1, alive=oracle.plane.check)


def _as_driver(oracle: Oracle, chart: str, node: str = HERE) -> Api:
    bound = oracle.api.get("v1", "Node", node)
    return oracle.api.as_bearer(oracle.api.token("kube-system", chart, bound_to=bound))


def _slice(driver: str, node: str) -> Manifest:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": SLICE[0],
        "kind": SLICE[1],
        "metadata": {"generateName": "forged-"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "all"}]},
    }


@pytest.mark.parametrize("chart", DRIVERS)
def test_a_driver_writes_its_own_slices_of_its_own_node(oracle: Oracle, chart: str) -> None:
    user = _as_driver(oracle, chart)
    name = user.create(_slice(DRIVERS[chart], HERE))["metadata"]["name"]
    found = oracle.api.get(*SLICE, name)
    found["spec"]["devices"].append({"name": "more"})
    user.call("PUT", user.path(*SLICE, name=name), found)
    user.delete(*SLICE, name)
    assert oracle.api.find(*SLICE, name) is None


@pytest.mark.parametrize("chart", DRIVERS)
def test_a_driver_writes_no_slices_of_another_driver(oracle: Oracle, chart: str) -> None:
    (other,) = set(DRIVERS.values()) - {DRIVERS[chart]}
    user = _as_driver(oracle, chart)
    with pytest.raises(ApiError, match=f"may not write slices of the driver '{other}'") as rejected:
        user.create(_slice(other, HERE))
    assert rejected.value.status == 403
    name = oracle.api.create(_slice(other, HERE))["metadata"]["name"]
    try:
        changed = oracle.api.get(*SLICE, name)
        changed["spec"]["devices"].append({"name": "more"})
        with pytest.raises(ApiError, match="may not write slices of the driver"):
            user.call("PUT", user.path(*SLICE, name=name), changed)
        with pytest.raises(ApiError, match="may not write slices of the driver"):
            user.delete(*SLICE, name)
    finally:
        oracle.api.delete(*SLICE, name)


# -- the status of claims --------------------------------------------------------------------------

CPUMEM = "dra.cpumem"
FOREIGN = {"driver": "other.example.com", "pool": HERE, "device": "x"}


def _result(driver: str, pool: str, device: str) -> dict[str, Any]:
    return {"request": "r", "driver": driver, "pool": pool, "device": device}


def _claim(oracle: Oracle, name: str, *results: dict[str, Any]) -> Manifest:
    """A claim that is allocated and reserved, with the status of another driver's device."""
    exactly = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": len(results)}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    metadata = {"name": name, "namespace": "default"}
    oracle.api.create(
        {"apiVersion": CLAIM[0], "kind": CLAIM[1], "metadata": metadata, "spec": spec}, "default"
    )
    allocated = {
        "allocation": {"devices": {"results": list(results)}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "p-uid"}],
    }
    oracle.set_status(*CLAIM, name, allocated, "default")
    foreign = [
        {key: each[key] for key in ("driver", "pool", "device")}
        for each in results
        if each["driver"] != CPUMEM
    ]
    return oracle.set_status(*CLAIM, name, {"devices": foreign}, "default")


def _status(pool: str, device: str, driver: str = CPUMEM) -> dict[str, Any]:
    condition = {
        "type": f"{driver}/HugepagesReady",
        "status": "True",
        "reason": "Provided",
        "message": "the node has what was allocated",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return {"driver": driver, "pool": pool, "device": device, "conditions": [condition]}


def _apply(user: Api, claim: Manifest, *devices: dict[str, Any]) -> Manifest:
    """Server-side apply of the status, as the driver does it."""
    meta = claim["metadata"]
    body = {
        "apiVersion": CLAIM[0],
        "kind": CLAIM[1],
        "metadata": {key: meta[key] for key in ("name", "namespace", "uid")},
        "status": {"devices": list(devices)},
    }
    path = user.path(*CLAIM, "default", meta["name"])
    query = "/status?fieldManager=dra.cpumem-binding&force=true"
    answer: Manifest = user.call("PATCH", path + query, body, content_type="application/apply-patch+yaml")
    return answer


def _merge(user: Api, claim: Manifest, status: dict[str, Any]) -> None:
    path = user.path(*CLAIM, "default", claim["metadata"]["name"]) + "/status"
    user.call("PATCH", path, {"status": status}, content_type="application/merge-patch+json")


@pytest.fixture
def user(oracle: Oracle) -> Api:
    return _as_driver(oracle, "dra-driver-cpumem")


@pytest.fixture
def mixed(oracle: Oracle, request: pytest.FixtureRequest) -> Iterator[Manifest]:
    """A claim with a device of this driver and one of another driver."""
    name = f"mixed-{abs(hash(request.node.name)) % 10**8}"
    yield _claim(oracle, name, _result(CPUMEM, HERE, "mine"), _result("other.example.com", HERE, "x"))
    oracle.api.delete(*CLAIM, name, "default")


def test_the_driver_writes_the_status_of_its_own_devices(user: Api, mixed: Manifest) -> None:
    for _ in range(2):  # once created, once unchanged
        kept = _apply(user, mixed, _status(HERE, "mine"))["status"]["devices"]
    assert sorted(each["driver"] for each in kept) == [CPUMEM, "other.example.com"]


def test_the_driver_writes_no_status_of_other_devices(user: Api, mixed: Manifest) -> None:
    with pytest.raises(
        ApiError, match=f"only the status of devices of {CPUMEM} on node '{HERE}'"
    ) as rejected:
        _apply(user, mixed, _status(HERE, "x", "other.example.com"))
    assert rejected.value.status == 403
    with pytest.raises(
        ApiError, match=f"only the status of devices of {CPUMEM} on node '{HERE}'"
    ) as rejected:
        _merge(user, mixed, {"devices": []})
    assert rejected.value.status == 403


@pytest.mark.parametrize(
    "status",
    [{"reservedFor": None}, {"reservedFor": None, "allocation": None, "devices": None}],
    ids=["reservation", "allocation"],
)
def test_the_driver_changes_no_allocation_and_no_reservation(
    user: Api, mixed: Manifest, status: dict[str, Any]
) -> None:
    with pytest.raises(ApiError, match="may not change the allocation or reservedFor") as rejected:
        _merge(user, mixed, status)
    assert rejected.value.status == 403


@pytest.mark.parametrize(
    ("name", "driver", "pool"), [("elsewhere", CPUMEM, THERE), ("foreign", "other.example.com", HERE)]
)
def test_the_driver_writes_no_status_of_claims_without_its_devices(
    oracle: Oracle, user: Api, name: str, driver: str, pool: str
) -> None:
    claim = _claim(oracle, name, _result(driver, pool, "d"))
    try:
        with pytest.raises(ApiError, match="the status of claims without its devices") as rejected:
            _apply(user, claim, _status(pool, "d", driver))
        assert rejected.value.status == 403
    finally:
        oracle.api.delete(*CLAIM, name, "default")


def test_a_token_without_a_node_cannot_write_a_status(oracle: Oracle, mixed: Manifest) -> None:
    loose = oracle.api.as_bearer(oracle.api.token("kube-system", "dra-driver-cpumem"))
    with pytest.raises(ApiError, match="no node name in the credential") as rejected:
        _apply(loose, mixed, _status(HERE, "mine"))
    assert rejected.value.status == 403


def test_no_policy_has_a_type_error(oracle: Oracle) -> None:
    """The API server type-checks expressions, but only warns."""
    for policy in oracle.api.list("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"):
        checked = policy.get("status", {}).get("typeChecking", {})
        assert not checked.get("expressionWarnings"), checked
