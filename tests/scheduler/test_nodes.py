from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.objects import NodeSelector, from_builtins
from drakit.core.pods import Pod
from drakit.core.quantity import Quantity
from drakit.scheduler.errors import FatalError
from drakit.scheduler.nodes import node_matches, node_rejection, pod_requests, selector_matches
from tests.scheduler.factories import node, pod
from tests.scheduler.problems import Json


def selector(*terms: list[Json], fields: tuple[Json, ...] = ()) -> NodeSelector:
    plain = [{"matchExpressions": term, "matchFields": list(fields)} for term in terms]
    return from_builtins({"nodeSelectorTerms": plain}, NodeSelector)


def condition(operator: str, *values: str, key: str = "k") -> Json:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("operator", "values", "label", "missing"),
    [
        ("In", ("5", "6"), True, False),
        ("NotIn", ("5",), False, True),
        ("Exists", (), True, False),
        ("DoesNotExist", (), False, True),
        ("Gt", ("4",), True, False),
        ("Gt", ("5",), False, False),
        ("Lt", ("6",), True, False),
        ("Lt", ("5",), False, False),
    ],
)
def test_operators_with_label_5_and_without_label(
    operator: str, values: tuple[str, ...], label: bool, missing: bool
) -> None:
    found = selector([condition(operator, *values)])
    assert selector_matches(found, node(labels={"k": "5"})) == label
    assert selector_matches(found, node()) == missing


def test_terms_are_alternatives_and_conditions_of_a_term_are_not() -> None:
    one, other = condition("In", "1"), condition("Exists", key="x")
    assert selector_matches(selector([one], [other]), node(labels={"k": "1"}))
    assert not selector_matches(selector([one, other]), node(labels={"k": "1"}))
    assert not selector_matches(selector([]), node())  # a term without conditions matches nothing


def test_an_invalid_selector_is_an_error_even_if_another_term_matches() -> None:
    with pytest.raises(FatalError, match="not a single integer"):
        selector_matches(selector([condition("DoesNotExist")], [condition("Gt", "x")]), node())
    with pytest.raises(FatalError, match="not a valid operator"):
        selector_matches(selector([condition("Near", "x")]), node())
    with pytest.raises(FatalError, match="exactly one value"):
        selector_matches(selector([], fields=(condition("In", "a", "b", key="metadata.name"),)), node())


def test_fields_select_nodes_by_name() -> None:
    by_name = selector([], fields=(condition("In", "n", key="metadata.name"),))
    assert selector_matches(by_name, node("n"))
    assert not selector_matches(by_name, node("m"))


def test_a_node_name_takes_precedence_over_all_nodes() -> None:
    assert not node_matches(node("n"), "m", True, None)
    assert node_matches(node("n"), "", True, None)
    assert not node_matches(node("n"), "", False, None)


def rejection(found_node: Json, in_use: dict[str, Quantity] | None = None, **spec: object) -> str | None:
    return node_rejection(pod(**spec), node(**found_node), in_use)


def test_the_reason_of_a_rejection_is_that_of_kube_scheduler() -> None:
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    assert rejection({}) is None
    assert rejection({}, nodeName="m") == "the pod is bound to node m"
    assert "node affinity/selector: a=b" in str(rejection({}, nodeSelector={"a": "b"}))
    assert rejection({"spec": {"unschedulable": True}}) == "node(s) were unschedulable"
    assert rejection({"spec": {"taints": [taint]}}) == "node(s) had untolerated taint {k: v}"
    tolerated = [{"key": "k", "operator": "Exists"}]
    assert rejection({"spec": {"taints": [taint]}}, tolerations=tolerated) is None
    assert rejection({"spec": {"taints": [{**taint, "effect": "PreferNoSchedule"}]}}) is None


@given(used=st.integers(0, 9), asked=st.integers(0, 9))
def test_a_resource_is_insufficient_exactly_if_the_sum_exceeds_the_allocatable_amount(
    used: int, asked: int
) -> None:
    container = {"name": "c", "resources": {"requests": {"cpu": str(asked)}}}
    status = {"status": {"allocatable": {"cpu": "8"}}}
    found = rejection(status, {"cpu": Quantity(used)}, containers=[container])
    assert found == ("Insufficient cpu" if asked and used + asked > 8 else None)


def test_init_containers_count_with_their_peak_and_sidecars_with_their_sum() -> None:
    def container(name: str, cpu: str, **more: str) -> Json:
        return {"name": name, "resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [container("a", "2"), container("b", "1")],
        "initContainers": [container("side", "1", restartPolicy="Always"), container("init", "5")],
        "overhead": {"cpu": "500m"},
    }
    found = pod_requests(from_builtins({"metadata": {"name": "p"}, "spec": spec}, Pod))
    assert str(found["cpu"]) == "6500m"  # init 5 with the sidecar's 1, and the overhead
