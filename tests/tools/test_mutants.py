"""The mutants of the end-to-end tests replace attributes that exist.

They run in a virtual machine only; a renamed method would leave the driver unbroken there.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

MUTANTS = sorted((Path(__file__).parents[1] / "e2e/mutants").glob("[!_]*.py"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.stem)
def test_a_mutant_replaces_something_that_exists(mutant: Path) -> None:
    body = ast.parse(mutant.read_text()).body
    names: dict[str, Any] = {}
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), mutant.name, "exec"), names)
    replaced = [
        target
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    ]
    assert replaced
    for target in replaced:
        owner = eval(ast.unparse(target.value), names)
        assert hasattr(owner, target.attr), ast.unparse(target)
