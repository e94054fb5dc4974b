from __future__ import annotations

import pytest

from drakit.core.objects import DeviceClass, DeviceTaintRule, from_builtins
from drakit.core.pods import Pod
from drakit.scheduler.lint import (
    _RULES,
    LintFinding,
    Published,
    lint_claim,
    lint_class,
    lint_pod,
    lint_slice,
    lint_taint_rule,
    lint_uses,
)
from tests.scheduler.factories import CLASSES, claim, device, exactly, resource_slice
from tests.scheduler.problems import Json

CLASS = tuple(CLASSES.values())
SHARED = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "8Gi"}}}


def lint(*requests: Json, published: Published | None = None, constraints: object = ()) -> list[LintFinding]:
    found = claim(*requests, constraints=constraints).spec.devices
    return list(lint_claim(found, published or Published(classes=CLASS)))


def rules(findings: list[LintFinding]) -> list[str]:
    return [finding.rule for finding in findings]


def a_pod(*used: Json, declared: str = "x") -> Pod:
    container = {"name": "c", "resources": {"claims": list(used)}}
    spec = {"containers": [container], "resourceClaims": [{"name": declared}]}
    return from_builtins({"metadata": {"name": "p"}, "spec": spec}, Pod)


def test_a_correct_claim_has_no_findings() -> None:
    slices = (resource_slice(device("a", **SHARED)),)
    published = Published(slices, CLASS)
    assert lint(exactly(capacity={"requests": {"memory": "1Gi"}}), published=published) == []


@pytest.mark.parametrize(
    ("request_spec", "rule"),
    [
        (exactly("r", "device.nope"), "refused-expression"),
        (exactly("r", 'device.attributes["e.io"].m == 1'), "unguarded-access"),
        (exactly(deviceClassName="no"), "unknown-class"),
        (exactly(count=9), "explosive-count"),
    ],
)
def test_a_request_has_exactly_the_expected_finding(request_spec: Json, rule: str) -> None:
    assert rules(lint(request_spec)) == [rule]


def test_8_devices_are_not_explosive_and_32_are_not_too_many() -> None:
    assert rules(lint(exactly(count=8))) == []
    assert "too-many-devices" not in rules(lint(exactly(count=32)))
    (finding, _) = lint(exactly(count=33))
    assert finding.message == "the claim requests at least 33 devices; a claim can have at most 32"


def test_an_unguarded_access_says_what_to_write() -> None:
    (finding,) = lint(exactly("r", 'device.attributes["e.io"].m == 1'))
    assert 'reads device.attributes["e.io"].m without checking that it exists' in finding.message
    assert finding.fix == (
        'write `has(device.attributes["e.io"].m) && …` or `device.attributes["e.io"].?m.orValue(…)`'
    )


def test_devices_are_checked_only_if_slices_are_known() -> None:
    never = exactly("r", 'device.driver == "no"')
    assert lint(never) == []
    published = Published((resource_slice(device("a"), device("b")),), CLASS)
    (finding,) = lint(never, published=published)
    assert finding.message.startswith("request r: none of the 2 published devices matches")


def test_a_selector_that_fails_on_a_published_device_is_an_error() -> None:
    published = Published((resource_slice(device("a")),), CLASS)
    request = exactly("r", 'device.driver == "d.io" && device.attributes["d.io"].m == 1')
    (finding,) = lint(request, published=published)
    assert finding.rule == "selector-error"
    assert "fails on device d.io/p/a: no such key: m" in finding.message


def test_a_wrong_capacity_key_gets_the_published_one_as_hint() -> None:
    published = Published((resource_slice(device("a", **SHARED)),), CLASS)
    (finding,) = lint(exactly(capacity={"requests": {"d.io/memory": "1Gi"}}), published=published)
    assert finding.rule == "wrong-capacity-key"
    assert finding.fix.endswith("write it as 'memory'")


def test_constraints_name_known_requests_and_published_attributes() -> None:
    published = Published((resource_slice(device("a", attributes={"n": {"int": 1}})),), CLASS)

    def of(attribute: str, *requests: str) -> list[str]:
        constraint = {"matchAttribute": attribute, "requests": list(requests)}
        return rules(lint(exactly(), published=published, constraints=[constraint]))

    assert of("d.io/n", "r") == []
    assert of("d.io/n", "other") == ["unknown-request"]
    assert of("n") == ["unqualified-attribute"]
    assert of("d.io/m") == ["unpublished-attribute"]


@pytest.mark.parametrize(
    ("first", "second", "unreachable"),
    [
        ({"count": 1}, {"count": 2}, True),
        ({"count": 2}, {"count": 1}, False),
        ({"selectors": [{"cel": {"expression": "true"}}]}, {}, False),
        ({}, {"selectors": [{"cel": {"expression": "true"}}]}, True),
        ({"capacity": {"requests": {"k": "2"}}}, {"capacity": {"requests": {"k": "1"}}}, False),
        ({"capacity": {"requests": {"k": "1"}}}, {"capacity": {"requests": {"k": "1"}}}, True),
        ({"allocationMode": "All"}, {"allocationMode": "All"}, False),
        ({}, {"tolerations": [{"operator": "Exists"}]}, False),
    ],
)
def test_unreachable_alternatives(first: Json, second: Json, unreachable: bool) -> None:
    alternatives = [
        {"name": name, "deviceClassName": "c", **fields} for name, fields in (("a", first), ("b", second))
    ]
    found = rules(lint({"name": "r", "firstAvailable": alternatives}))
    assert found == (["unreachable-alternative"] if unreachable else [])


def test_claims_of_a_pod_are_declared_and_used() -> None:
    assert list(lint_pod(a_pod({"name": "x"}))) == []
    assert rules(list(lint_pod(a_pod({"name": "y"})))) == ["unused-claim", "undeclared-claim"]
    (unused,) = lint_pod(a_pod())
    assert unused.fix == "add `claims: [{name: x}]` to the resources of a container"


def test_containers_use_requests_of_the_claim() -> None:
    devices = claim(exactly("one")).spec.devices
    assert list(lint_uses(a_pod({"name": "x", "request": "one"}), "x", devices)) == []
    (finding,) = lint_uses(a_pod({"name": "x", "request": "two"}), "x", devices)
    assert finding.message == "container c uses request 'two', which claim 'x' does not have"


def test_objects_of_drivers_and_administrators() -> None:
    bad = {"selectors": [{"cel": {"expression": "1"}}]}
    broken = from_builtins({"metadata": {"name": "c"}, "spec": bad}, DeviceClass)
    assert rules(list(lint_class(broken))) == ["refused-expression"]
    assert rules(list(lint_slice(resource_slice(device("a", **SHARED))))) == ["whole-capacity"]
    policy = {"memory": {"value": "8Gi", "requestPolicy": {"default": "1Gi"}}}
    good = device("a", allowMultipleAllocations=True, capacity=policy)
    assert list(lint_slice(resource_slice(good))) == []
    taint = {"taint": {"key": "k", "effect": "NoSchedule"}}
    for selector, expected in (({}, ["taints-everything"]), ({"driver": "d.io"}, [])):
        spec = {**taint, "deviceSelector": selector}
        rule = from_builtins({"metadata": {"name": "r"}, "spec": spec}, DeviceTaintRule)
        assert rules(list(lint_taint_rule(rule))) == expected


def test_every_rule_has_a_level_and_a_fix() -> None:
    assert {level for level, _ in _RULES.values()} == {"error", "warning"}
    assert all(fix for _, fix in _RULES.values())
