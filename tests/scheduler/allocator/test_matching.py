from __future__ import annotations

import pytest

from drakit.core.objects import Device, from_builtins
from drakit.scheduler.allocator.matching import Matcher
from drakit.scheduler.cel.errors import CelCompileError, CelRuntimeError
from tests.scheduler.problems import Json


def device(**fields: Json) -> Device:
    return from_builtins({"name": "d", **fields}, Device)


def test_the_key_contains_only_the_fields_that_the_expression_reads() -> None:
    matcher = Matcher('device.attributes["d.io"].model == "a"')
    one = device(attributes={"model": {"string": "a"}, "uuid": {"string": "1"}})
    two = device(attributes={"model": {"string": "a"}, "uuid": {"string": "2"}})
    other = device(attributes={"model": {"string": "b"}})
    assert matcher.key("d.io", one, False) == matcher.key("d.io", two, False)
    assert matcher.key("d.io", one, False) != matcher.key("d.io", other, False)
    assert matcher.key("d.io", one, False) != matcher.key("e.io", one, False)
    assert [matcher.outcome("d.io", d, False) for d in (one, two, other)] == [True, True, False]


def test_qualified_and_unqualified_names_are_the_same_attribute() -> None:
    matcher = Matcher('device.attributes["d.io"].model == "a"')
    qualified = device(attributes={"d.io/model": {"string": "a"}})
    assert matcher.outcome("e.io", qualified, False) is True
    assert isinstance(matcher.outcome("e.io", device(), False), CelRuntimeError)


def test_an_expression_over_all_attributes_is_not_cached() -> None:
    matcher = Matcher('device.attributes["d.io"].exists(k, k == "x")')
    assert matcher.key("d.io", device(), False) is None
    assert matcher.outcome("d.io", device(attributes={"x": {"int": 1}}), False) is True
    assert matcher.outcome("d.io", device(attributes={"y": {"int": 1}}), False) is False


def test_an_attribute_without_a_value_fails_every_expression() -> None:
    matcher = Matcher('device.driver == "d.io"')
    invalid = device(attributes={"x": {"version": "not a version"}})
    assert matcher.outcome("d.io", device(), False) is True
    assert isinstance(matcher.outcome("d.io", invalid, False), CelRuntimeError)


def test_whether_a_device_is_shareable_comes_from_the_caller() -> None:
    matcher = Matcher("device.allowMultipleAllocations")
    shared = device(allowMultipleAllocations=True)
    assert matcher.outcome("d.io", shared, True) is True
    assert matcher.outcome("d.io", shared, False) is False


def test_an_invalid_expression_is_an_error() -> None:
    with pytest.raises(CelCompileError):
        Matcher("device.nope")
