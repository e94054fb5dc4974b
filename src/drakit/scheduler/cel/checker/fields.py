"""Which fields of ``device`` an expression names, so that its result need not be computed twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from drakit.scheduler.cel.checker.validators import children
from drakit.scheduler.cel.syntax.tree import CallExpr, Expr, IdentExpr, LiteralExpr, SelectExpr


class Field(NamedTuple):
    """``device.attributes["gpu.io"].model`` is ``("attributes", "gpu.io", "model")``."""

    part: str
    """``attributes``, ``capacity``, ``driver`` or ``allowMultipleAllocations``."""
    domain: str
    name: str


def fields_named(root: Expr) -> Iterator[Field]:
    """The fields an expression names with literal domain and name, outermost first."""
    pending = [root]
    while pending:
        node = pending.pop(0)
        found = _field(node)
        if found is not None and found.part != "allowMultipleAllocations":
            yield found
        pending.extend(children(node))


def all_fields(root: Expr) -> frozenset[Field] | None:
    """Every field an expression can look at; None when it uses ``device`` in any other way."""
    found: set[Field] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        field = _field(node)
        if field is not None:
            found.add(field)
        elif isinstance(node, IdentExpr) and node.name == "device":
            return None
        else:
            pending.extend(children(node))
    return frozenset(found)


def is_driver(node: Expr) -> bool:
    """Whether this is ``device.driver``."""
    return _of_device(node) == "driver"


def _of_device(node: Expr) -> str:
    if isinstance(node, SelectExpr) and isinstance(node.operand, IdentExpr):
        return node.field if node.operand.name == "device" else ""
    return ""


def _field(node: Expr) -> Field | None:
    whole = _of_device(node)
    if whole in ("driver", "allowMultipleAllocations"):
        return Field(whole, "", "")
    operand: Expr
    if isinstance(node, SelectExpr):
        operand, name = node.operand, node.field
    elif isinstance(node, CallExpr) and node.function in ("_?._", "_[_]", "_[?_]"):
        operand, argument = node.args
        if not isinstance(argument, LiteralExpr) or not isinstance(argument.value, str):
            return None
        name = argument.value
    else:
        return None
    if not isinstance(operand, CallExpr) or operand.function not in ("_[_]", "_[?_]"):
        return None
    container, domain = operand.args
    part = _of_device(container)
    if part not in ("attributes", "capacity"):
        return None
    if not isinstance(domain, LiteralExpr) or not isinstance(domain.value, str):
        return None
    return Field(part, domain.value, name)
