"""Every expression of the corpus has the answer Kubernetes 1.37.1 gives.

``rejected``: the API server does not take it in a new object; ``unusable``: not even the scheduler
can compile it; ``results``: per device true, false or a run-time error; ``cost``: the API server's
estimate (-1 for "beyond 64 bits").
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drakit.core.objects import Device, from_builtins
from drakit.scheduler.cel.checker.cost import COST_LIMIT
from drakit.scheduler.cel.errors import CelCompileError, CelRuntimeError, CelUnsupportedError
from drakit.scheduler.cel.selector import CompiledSelector, compile_selector, device_value
from drakit.scheduler.cel.values import DeviceValue

CORPUS = json.loads((Path(__file__).parents[1] / "cel_corpus.json").read_text(encoding="utf-8"))
UNSUPPORTED = {
    'google.protobuf.Timestamp{} == timestamp("1970-01-01T00:00:00Z")',
    "google.protobuf.Int32Value{value: 1} == 1",
    'kubernetes.DRADevice{}.driver == ""',
    'device.driver.matches("(a+)+$")',
}


def devices() -> list[DeviceValue]:
    found = []
    for plain in CORPUS["devices"]:
        fields = {k: v for k, v in plain.items() if k != "driver"}
        found.append(device_value(plain["driver"], from_builtins(fields, Device)))
    return found


DEVICES = devices()


def answers(selector: CompiledSelector) -> list[bool | str]:
    found: list[bool | str] = []
    for device in DEVICES:
        try:
            found.append(selector.matches(device))
        except CelRuntimeError:
            found.append("error")
    return found


@pytest.mark.parametrize("case", CORPUS["cases"], ids=lambda case: case["expression"][:60])
def test_the_answer_is_that_of_kubernetes(case: dict[str, Any]) -> None:
    expression = case["expression"]
    if expression in UNSUPPORTED:
        with pytest.raises(CelUnsupportedError):
            compile_selector(expression)
        return
    if case.get("unusable"):
        with pytest.raises(CelCompileError):
            compile_selector(expression)
        return
    selector = compile_selector(expression)
    cost = case["cost"]
    too_complex = cost < 0 or cost > COST_LIMIT
    assert (selector.rejection is not None) == (bool(case.get("refused")) or too_complex)
    assert answers(selector) == case["results"]
    if cost >= 0:
        assert selector.max_cost == cost
    else:
        assert selector.max_cost >= 2**62


def test_the_corpus_is_large_and_has_all_kinds_of_answers() -> None:
    cases = CORPUS["cases"]
    assert len(cases) >= 200
    assert sum(1 for c in cases if c.get("refused")) >= 100
    assert sum(1 for c in cases if "error" in c.get("results", ())) >= 50
