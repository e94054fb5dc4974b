"""Which fields of ``device`` an expression names, so that its result need not be computed twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from drakit.scheduler.cel.checker.validators import children
from drakit.scheduler.cel.syntax.tree import Call, Ident, Literal, Node, Select


class Field(NamedTuple):
    """``device.attributes["gpu.io"].model`` is ``("attributes", "gpu.io", "model")``."""

    part: str
    """``attributes``, ``capacity``, ``driver`` or ``allowMultipleAllocations``."""
    domain: str
    name: str


def fields_named(root: Node) -> Iterator[Field]:
    """The fields an expression names with literal domain and name, outermost first."""
    pending = [root]
    while pending:
        node = pending.pop(0)
        found = _field(node)
        if found is not None and found.part != "allowMultipleAllocations":
            yield found
        pending.extend(children(node))


def all_fields(root: Node) -> frozenset[Field] | None:
    """Every field an expression can look at; None when it uses ``device`` in any other way."""
    found: set[Field] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        field = _field(node)
        if field is not None:
            found.add(field)
        elif isinstance(node, Ident) and node.name == "device":
            return None
        else:
            pending.extend(children(node))
    return frozenset(found)


def is_driver(node: Node) -> bool:
    """Whether this is ``device.driver``."""
    return _of_device(node) == "driver"


def _of_device(node: Node) -> str:
    if isinstance(node, Select) and isinstance(node.operand, Ident):
        return node.field if node.operand.name == "device" else ""
    return ""


def _field(node: Node) -> Field | None:
    whole = _of_device(node)
    if whole in ("driver", "allowMultipleAllocations"):
        return Field(whole, "", "")
    operand: Node
    if isinstance(node, Select):
        operand, name = node.operand, node.field
    elif isinstance(node, Call) and node.function in ("_?._", "_[_]", "_[?_]"):
        operand, argument = node.args
        if not isinstance(argument, Literal) or not isinstance(argument.value, str):
            return None
        name = argument.value
    else:
        return None
    if not isinstance(operand, Call) or operand.function not in ("_[_]", "_[?_]"):
        return None
    container, domain = operand.args
    part = _of_device(container)
    if part not in ("attributes", "capacity"):
        return None
    if not isinstance(domain, Literal) or not isinstance(domain.value, str):
        return None
    return Field(part, domain.value, name)
