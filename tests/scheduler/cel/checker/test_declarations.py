from __future__ import annotations

from drakit.scheduler.cel.checker.declarations import functions
from drakit.scheduler.cel.evaluator import _SPECIAL
from drakit.scheduler.cel.stdlib.functions import FUNCTIONS
from drakit.scheduler.cel.values import OPERATORS

_AUTHORIZATION = {
    "allowed", "check", "error", "errored", "fieldSelector", "group", "labelSelector", "name",
    "namespace", "path", "reason", "resource", "serviceAccount", "subresource",
}  # fmt: skip


def test_declared_and_implemented_functions_are_the_same() -> None:
    implemented = set(OPERATORS) | set(FUNCTIONS) | set(_SPECIAL)
    assert set(functions()) - implemented == _AUTHORIZATION  # no selector can call these
    assert implemented - set(functions()) == set()


def test_overload_ids_are_unique() -> None:
    ids = [overload.id for overloads in functions().values() for overload in overloads]
    assert len(ids) == len(set(ids)) > 250


def test_families_are_expanded_in_the_order_of_cel_go() -> None:
    assert [o.id for o in functions()["_<_"]][:5] == [
        "less_bool", "less_int64", "less_int64_double", "less_int64_uint64", "less_uint64",
    ]  # fmt: skip
    assert len(functions()["_>=_"]) == 14
    assert [o.id for o in functions()["sort"]][4] == "list_google.protobuf.Duration_sort"
    assert [o.id for o in functions()["getHours"]] == [
        "timestamp_to_hours", "timestamp_to_hours_with_tz", "duration_to_hours",
    ]  # fmt: skip
    assert sum(name.startswith("format.") for name in functions()) == 14


def test_an_overload_knows_its_style_and_parameters() -> None:
    (in_list, in_map) = functions()["@in"]
    assert not in_list.member
    assert [p.name for p in in_map.params] == ["A", "B"]
    assert functions()["startsWith"][0].member
