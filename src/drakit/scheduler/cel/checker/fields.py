"""Fields of ``device`` that an expression refers to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from drakit.scheduler.cel.syntax import tree
from drakit.scheduler.cel.syntax.tree import Expr, children, walk


class Field(NamedTuple):
    """``device.attributes["gpu.io"].model`` is ``("attributes", "gpu.io", "model")``."""

    part: str
    """``attributes``, ``capacity``, ``driver`` or ``allowMultipleAllocations``."""
    domain: str
    name: str


def fields_named(root: Expr) -> Iterator[Field]:
    """The fields that an expression names with literal domain and name, outermost first."""
    for found in map(device_field, walk(root)):
        if found is not None and found.part != "allowMultipleAllocations":
            yield found


def all_fields(root: Expr) -> frozenset[Field] | None:
    """Every field that an expression can read; None if it uses ``device`` in any other way."""
    found: set[Field] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        field = device_field(node)
        if field is not None:
            found.add(field)
        elif isinstance(node, tree.IdentExpr) and node.name == "device":
            return None
        else:
            pending.extend(children(node))
    return frozenset(found)


def unguarded_fields(root: Expr) -> list[Field]:
    """Attributes and capacities that an expression reads without checking that they exist.

    A check anywhere in the expression counts, and so does a comparison of ``device.driver`` with the
    domain: a driver can be expected to publish its own attributes.
    """
    read: dict[Field, None] = {}
    guarded: set[Field | None] = set()
    drivers: set[object] = set()
    for node in walk(root):
        function = node.function if isinstance(node, tree.CallExpr) else ""
        if isinstance(node, tree.CallExpr) and function == "_==_":
            values = [a.value for a in node.args if isinstance(a, tree.LiteralExpr)]
            drivers.update(values if "driver" in map(_of_device, node.args) else ())
        if isinstance(node, tree.CallExpr) and function == "@in":
            guarded.add(device_field(tree.CallExpr("_[_]", node.args[::-1])))
        field = device_field(node)
        if field is None or field.part not in ("attributes", "capacity"):
            continue
        if function == "_[_]" or (isinstance(node, tree.SelectExpr) and not node.test):
            read[field] = None
        else:
            guarded.add(field)
    return [f for f in read if f not in guarded and f.domain not in drivers]


def _of_device(node: Expr) -> str:
    if isinstance(node, tree.SelectExpr) and isinstance(node.operand, tree.IdentExpr):
        return node.field if node.operand.name == "device" else ""
    return ""


def device_field(node: Expr) -> Field | None:
    """The field of ``device`` that the expression itself reads, if it names one."""
    whole = _of_device(node)
    if whole in ("driver", "allowMultipleAllocations"):
        return Field(whole, "", "")
    operand: Expr
    if isinstance(node, tree.SelectExpr):
        operand, name = node.operand, node.field
    elif isinstance(node, tree.CallExpr) and node.function in ("_?._", "_[_]", "_[?_]"):
        operand, argument = node.args
        if not isinstance(argument, tree.LiteralExpr) or not isinstance(argument.value, str):
            return None
        name = argument.value
    else:
        return None
    if not isinstance(operand, tree.CallExpr) or operand.function not in ("_[_]", "_[?_]"):
        return None
    container, domain = operand.args
    part = _of_device(container)
    if part not in ("attributes", "capacity"):
        return None
    if not isinstance(domain, tree.LiteralExpr) or not isinstance(domain.value, str):
        return None
    return Field(part, domain.value, name)
