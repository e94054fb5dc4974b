"""Every assumption of the fakes has a test with the real component, or a reason why not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.docs.pages import REPOSITORY, codes, rows, text_of
from tests.wire.kube.scenarios import SCENARIOS

PAGE = "docs/developers/fakes.md"
HEADS = ("assumption", "where in the fake", "real test that verifies it")
ROWS = rows(text_of(PAGE), *HEADS)
NOT_VERIFIED = {
    "a plugin that is late is dropped, and the container created without it",
    "gates and limits of Kubernetes 1.34 to 1.36",
    "a gated field that is stored already is kept while its gate is off",
    "GetInfo has 1 second, the notification 5, a call 45; failed registrations are repeated",
    "wrong types, unknown claim services and endpoints that are registered twice are rejected",
    "kubelets before 1.34 call `v1beta1.DRAPlugin`",
    "which health service each release opens, its time-outs and limits",
    "answers for unknown claims, and answers that leave claims out, are errors",
    "claims not reserved for the pod, not allocated, or known under another UID are rejected before any call",
    "node operations that every device of a driver skips are not called",
    "before NRI 0.12.1 an unsolicited update that meets an event deadlocks the runtime",
    "from NRI 0.7 on a Synchronize of more than 4 MiB comes in parts",
    "from NRI 0.7 on a plugin that fails to synchronize is closed, before that it receives no further events",
    "plugins are configured one after the other",
    "a plugin that the runtime launches inherits a connected socket",
    "containerd 2.0, 2.2 and 2.3 and CRI-O 1.33, 1.34 and 1.37 are as their NRI versions say",
}
"""The assumptions that no test verifies; additions must be deliberate."""
NO_ASSUMPTIONS = {"cdi.py", "synthetic.py", "sysfs_writer.py", "__init__.py", "stream_server.py"}
"""Modules that do not imitate a component."""


class Named(NamedTuple):
    """A test named by a row, and the run to which it belongs."""

    assumption: str
    file: str
    test: str
    case: str
    rounds: frozenset[str]

    def __str__(self) -> str:
        return f"{self.file}::{self.test}[{self.case}]: {self.assumption[:40]}"


def named() -> Iterator[Named]:
    for assumption, _, test in ROWS:
        if test.startswith("not verified:"):
            continue
        found = re.fullmatch(r"`(\w+\.py)::(\w+)(?:\[([\w-]+)\])?`(?: \((full|CRI-O)\))?", test)
        assert found, f"{PAGE}: {assumption!r} names no test: {test!r}"
        file, name, case, round_ = found.groups(default="")
        rounds = frozenset({round_.lower().replace("-", "")} - {""})
        yield Named(assumption, file, name, case, rounds)


def marks_of(test: Named) -> set[str]:
    """The names of all marks of a test or of its case; fails if there is no such test.

    Read, not imported: the markers of the end-to-end tests are not known to this suite.
    """
    tree = ast.parse(text_of(f"tests/e2e/{test.file}"))
    found = [n for n in tree.body if getattr(n, "name", "") == test.test]
    assert len(found) == 1, f"{test.file} has no {test.test}"
    (function,) = found
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    cases = {_id(node): node for node in ast.walk(function) if isinstance(node, ast.Call)}
    marked: list[ast.AST] = [
        *(n for n in tree.body if isinstance(n, ast.Assign) and _assigns(n, "pytestmark")),
        *(each for each in function.decorator_list if not isinstance(each, ast.Call)),
    ]
    if test.case and test.test != "test_scenario":  # whose cases have a test of their own
        assert test.case in cases, f"{test.file}::{test.test} has no case {test.case}"
        marked.append(cases[test.case])
    return {mark for each in marked for mark in re.findall(r"pytest\.mark\.(\w+)", ast.unparse(each))}


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def _id(call: ast.Call) -> str:
    """The case that a ``pytest.param`` names."""
    return next((str(ast.literal_eval(word.value)) for word in call.keywords if word.arg == "id"), "")


@pytest.mark.parametrize("test", list(named()), ids=str)
def test_every_named_test_exists_and_has_the_stated_marks(test: Named) -> None:
    assert marks_of(test) & {"full", "crio"} == test.rounds


def test_every_assumption_without_a_real_test_is_known() -> None:
    without = {row[0] for row in ROWS if row[2].startswith("not verified:")}
    assert without == NOT_VERIFIED
    for assumption, _, reason in ROWS:
        if assumption in without:
            assert len(reason) > len("not verified: ") + 20, f"{assumption}: why not?"


def test_every_fake_is_listed() -> None:
    folder = REPOSITORY / "src/drakit/testing"
    modules = {path.name for path in folder.glob("*.py")} - NO_ASSUMPTIONS
    listed = {name for row in ROWS for name in codes(row[1])}
    assert listed == modules


def test_every_scenario_is_an_assumption() -> None:
    """A scenario that runs with both servers verifies an assumption of the fake."""
    cases = {test.case for test in named() if test.test == "test_scenario"}
    assert cases == {scenario.__name__ for scenario in SCENARIOS}


def test_every_table_is_read_and_no_row_is_there_twice() -> None:
    assert text_of(PAGE).count("|---|---|---|") == 3
    assert len(ROWS) == sum(line.startswith("|") for line in text_of(PAGE).splitlines()) - 6
    assert len({row[0] for row in ROWS}) == len(ROWS)
