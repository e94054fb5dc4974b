from __future__ import annotations

import pytest

from drakit.core.kubernetes_releases import V1_34, V1_36, V1_37
from drakit.core.objects import DeviceTaintRule, ResourceClaimTemplate, from_builtins
from drakit.core.pods import Pod
from drakit.scheduler.placement import (
    ClaimNotFoundError,
    NodeResult,
    place,
    pod_claims,
    prepare,
    rejected_selectors,
    with_taint_rules,
)
from tests.scheduler.factories import allocated, claim, device, exactly, node, pod, resource_slice, snapshot
from tests.scheduler.problems import Json


def test_the_pod_gets_the_first_fitting_node_by_name() -> None:
    on_m = resource_slice(device("a"), name="s", nodeName="m", pool={"name": "m"})
    on_n = resource_slice(device("a"), name="t", pool={"name": "n"})
    cluster = snapshot(on_m, on_n, claims=(claim(exactly()),), nodes=(node("n"), node("m"), node("k")))
    result = place(cluster, pod("x"))
    assert (result.feasible, result.node) == (True, "m")
    assert [(r.name, r.fits) for r in result.nodes] == [("k", False), ("m", True), ("n", True)]
    assert place(cluster, pod("x"), only_node="n").node == "n"


def test_a_node_with_a_more_preferred_alternative_is_chosen() -> None:
    request = {
        "name": "r",
        "firstAvailable": [
            {"name": "two", "deviceClassName": "c", "count": 2},
            {"name": "one", "deviceClassName": "c"},
        ],
    }
    small = resource_slice(device("a"), name="s", nodeName="a", pool={"name": "a"})
    large = resource_slice(device("a"), device("b"), name="t", nodeName="b", pool={"name": "b"})
    cluster = snapshot(small, large, claims=(claim(request),), nodes=(node("a"), node("b")))
    assert place(cluster, pod("x")).node == "b"


def test_an_error_on_one_node_fails_the_pod_on_all() -> None:
    good = resource_slice(device("a", attributes={"m": {"int": 1}}), name="s", pool={"name": "n"})
    bad = resource_slice(device("a"), name="t", nodeName="m", pool={"name": "m"})
    wanted = claim(exactly("r", 'device.attributes["d.io"].m == 1'))
    result = place(snapshot(good, bad, claims=(wanted,), nodes=(node("n"), node("m"))), pod("x"))
    assert not result.feasible
    assert "CEL runtime error: no such key: m" in result.reason
    assert {r.name: r.fits for r in result.nodes} == {"m": False, "n": True}


def test_a_claim_that_does_not_exist_is_reported() -> None:
    with pytest.raises(ClaimNotFoundError, match="ResourceClaim default/x not found"):
        place(snapshot(), pod("x"))
    entry = {"name": "t", "resourceClaimTemplateName": "tpl"}
    with pytest.raises(ClaimNotFoundError, match="ResourceClaimTemplate default/tpl not found"):
        place(snapshot(), pod(resourceClaims=[entry]))


def test_a_claim_is_generated_from_its_template_unless_it_exists() -> None:
    meta = {"name": "tpl", "namespace": "default"}
    spec = {"spec": {"devices": {"requests": [exactly()]}}}
    template = from_builtins({"metadata": meta, "spec": spec}, ResourceClaimTemplate)
    entries = [{"name": "t", "resourceClaimTemplateName": "tpl"}]
    cluster = snapshot(templates=(template,), claims=(claim(exactly(), name="made"),))
    assert [c.metadata.name for c in pod_claims(cluster, pod(resourceClaims=entries))] == ["pod-t"]
    status = {"resourceClaimStatuses": [{"name": "t", "resourceClaimName": "made"}]}
    plain = {"metadata": {"name": "pod", "namespace": "default"}, "spec": {"resourceClaims": entries}}
    known = from_builtins({**plain, "status": status}, Pod)
    assert [c.metadata.name for c in pod_claims(cluster, known)] == ["made"]


@pytest.mark.parametrize(
    ("fields", "blocked"),
    [({}, ""), ({"deviceClassName": "no"}, "request r: device class no does not exist")],
)
def test_a_missing_class_blocks_the_pod_on_every_node(fields: Json, blocked: str) -> None:
    cycle = prepare(snapshot(claims=(claim(exactly(**fields)),)), pod("x"))
    assert cycle.blocked == blocked


def test_a_claim_with_256_users_is_in_use() -> None:
    users = [{"resource": "pods", "name": f"p{i}", "uid": f"u{i}"} for i in range(256)]
    allocation = {"devices": {"results": []}}
    full = claim(exactly(), allocation=allocation, reservedFor=users)
    assert prepare(snapshot(claims=(full,)), pod("x")).blocked == "resourceclaim in use"
    one_less = claim(exactly(), allocation=allocation, reservedFor=users[1:])
    assert prepare(snapshot(claims=(one_less,)), pod("x")).blocked == ""


def test_a_claim_on_another_node_excludes_the_node() -> None:
    fields = {"key": "metadata.name", "operator": "In", "values": ["m"]}
    held = allocated("a", name="x")
    selector = {"nodeSelectorTerms": [{"matchFields": [fields]}]}
    bound = claim(exactly(), allocation={"devices": {"results": []}, "nodeSelector": selector})
    result = place(snapshot(claims=(bound,), nodes=(node("m"), node("n"))), pod("x"))
    assert {r.name: r.reason for r in result.nodes} == {
        "m": "",
        "n": "resourceclaim not available on the node",
    }
    assert place(snapshot(claims=(held,)), pod("x")).feasible


def test_taint_rules_apply_to_matching_devices_since_1_37() -> None:
    rule = {"metadata": {"name": "r"}, "spec": {"taint": {"key": "k", "effect": "NoSchedule"}}}
    spec = {**rule["spec"], "deviceSelector": {"device": "a"}}
    found = from_builtins({**rule, "spec": spec}, DeviceTaintRule)
    slices = (resource_slice(device("a"), device("b")),)
    (tainted,) = with_taint_rules(slices, (found,))
    assert [len(d.taints) for d in tainted.spec.devices] == [1, 0]
    without_selector = from_builtins(rule, DeviceTaintRule)
    assert with_taint_rules(slices, (without_selector,)) == slices
    for release, fits in ((V1_37, False), (V1_36, True)):
        only = snapshot(
            resource_slice(device("a")), claims=(claim(exactly()),), taint_rules=(found,), release=release
        )  # fmt: skip
        assert place(only, pod("x")).feasible == fits


def test_rejected_selectors_have_a_path_and_depend_on_the_release() -> None:
    request = {"name": "r", "firstAvailable": [{"name": "s", "deviceClassName": "c"}]}
    request["firstAvailable"][0]["selectors"] = [{"cel": {"expression": "[1].reverse() == [1]"}}]  # type: ignore[index]
    wanted = claim(exactly("a", "true"), request)
    assert rejected_selectors(wanted) == []
    ((path, error),) = rejected_selectors(wanted, V1_34.cel)
    assert path == "spec.devices.requests[1].firstAvailable[0].selectors[0].cel.expression"
    assert "reverse" in str(error)


def test_a_search_that_takes_too_long_has_a_warning() -> None:
    assert NodeResult("n", False, steps=1000).effort == ""
    assert "about 2^31 steps" in NodeResult("n", False, steps=2**31).effort
    assert "more than 5 steps here and may give up" in NodeResult("n", False, steps=5, at_least=True).effort
