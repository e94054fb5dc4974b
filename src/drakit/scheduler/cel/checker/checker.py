"""Type checker: finds the type errors for which the API server rejects an object.

It follows cel-go's algorithm, so that both accept the same expressions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from drakit.core.kubernetes_releases import CelEnvironment
from drakit.scheduler.cel.checker import types as t
from drakit.scheduler.cel.checker.declarations import Overload, functions
from drakit.scheduler.cel.checker.types import Type
from drakit.scheduler.cel.errors import CelTypeError, CelUnsupportedError
from drakit.scheduler.cel.syntax import tree
from drakit.scheduler.cel.syntax.tree import Expr, UInt

DEVICE: Final = "kubernetes.DRADevice"
_TYPE_NAMES: Final = {
    **{name: found for name, found in t.NAMED.items() if found != t.ANY},
    "list": t.list_of(Type("param", "A")),
    "map": t.map_of(Type("param", "A"), Type("param", "B")),
    "optional_type": t.optional_of(Type("param", "V")),
}


@dataclass(frozen=True, slots=True)
class Environment:
    """Declarations for expressions: the type of attributes, and functions that are missing."""

    attribute: Type
    missing: frozenset[str] = frozenset()

    def fields(self) -> dict[str, Type]:
        """The fields of ``device``."""
        quantity = t.struct("kubernetes.Quantity")
        return {
            "driver": t.STRING,
            "allowMultipleAllocations": t.BOOL,
            "attributes": t.map_of(t.STRING, t.map_of(t.STRING, self.attribute)),
            "capacity": t.map_of(t.STRING, t.map_of(t.STRING, quantity)),
        }


def new_objects(release: CelEnvironment) -> Environment:
    """The environment for expressions in new objects."""
    return Environment(t.ANY, release.rejected)


def stored_objects(release: CelEnvironment) -> Environment:
    """The environment for stored expressions, which the scheduler evaluates."""
    return Environment(t.DYN, release.missing)


@dataclass(slots=True)
class Checked:
    """The type of every expression, and the overloads that each call may use."""

    types: dict[Expr, Type] = field(default_factory=dict)
    overloads: dict[Expr, tuple[str, ...]] = field(default_factory=dict)
    names: dict[Expr, str] = field(default_factory=dict)
    """Qualified names that denote a type or function instead of a selection."""


def check(root: Expr, environment: Environment) -> Checked:
    """Determine all types. Raises :class:`CelTypeError` with all errors."""
    checker = _Checker(environment)
    checker.check(root)
    if checker.errors:
        position = checker.errors[0][0]
        raise CelTypeError("; ".join(text for _, text in checker.errors), position)
    checked = checker.checked
    for node, found in checked.types.items():
        checked.types[node] = checker.bindings.substitute(found, unbound=t.DYN)
    return checked


def qualified_name(node: Expr | None) -> str | None:
    """``a.b.c`` for a chain of selections from a name."""
    parts: list[str] = []
    while isinstance(node, tree.SelectExpr) and not node.test:
        parts.append(node.field)
        node = node.operand
    if not isinstance(node, tree.IdentExpr):
        return None
    return ".".join([node.name, *reversed(parts)])


class _Checker:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._fields = environment.fields()
        self._scopes: list[dict[str, Type]] = [{"device": t.struct(DEVICE)}]
        self.bindings = t.Bindings()
        self.checked = Checked()
        self.errors: list[tuple[int, str]] = []

    def _report(self, node: Expr, text: str) -> None:
        self.errors.append((node.at, text))

    def _set(self, node: Expr, found: Type) -> Type:
        self.checked.types[node] = found
        return found

    def _variable(self, name: str) -> Type | None:
        scopes = self._scopes[:1] if name.startswith(".") else reversed(self._scopes)
        name = name.removeprefix(".")
        for scope in scopes:
            if name in scope:
                return scope[name]
        return None

    def _fits(self, given: Type, wanted: Type) -> bool:
        return self.bindings.fits((given,), (wanted,))

    def check(self, node: Expr) -> Type:
        """Determine and record the type of *node*."""
        match node:
            case tree.LiteralExpr():
                return self._set(node, _literal_type(node))
            case tree.IdentExpr():
                return self._set(node, self._ident(node))
            case tree.SelectExpr():
                return self._set(node, self._select(node))
            case tree.CallExpr():
                return self._set(node, self._call(node))
            case tree.ListExpr():
                return self._set(node, self._list(node))
            case tree.MapExpr():
                return self._set(node, self._map(node))
            case tree.StructExpr():
                return self._set(node, self._struct(node))
            case tree.ComprehensionExpr():
                return self._set(node, self._comprehension(node))

    def _ident(self, node: tree.IdentExpr) -> Type:
        found = self._variable(node.name)
        if found is not None:
            return found
        name = node.name.removeprefix(".")
        if name in _TYPE_NAMES:
            self.checked.names[node] = name
            return Type("type", "type", (_TYPE_NAMES[name],))
        self._report(node, f"undeclared reference to '{node.name}' (in container '')")
        return t.ERROR

    def _select(self, node: tree.SelectExpr) -> Type:
        name = qualified_name(node)
        plain = (name or "").removeprefix(".")
        if plain in _TYPE_NAMES and self._variable(plain.split(".", maxsplit=1)[0]) is None:
            self.checked.names[node] = plain
            return Type("type", "type", (_TYPE_NAMES[plain],))
        found = self._field(node, node.operand, node.field)
        return t.BOOL if node.test else self.bindings.substitute(found)

    def _field(self, node: Expr, operand: Expr, field_name: str) -> Type:
        target = self.bindings.substitute(self.check(operand))
        optional = target.is_optional
        if optional:
            target = target.params[0]
        found: Type
        if target.kind == "map":
            found = target.params[1]
        elif target.kind == "struct":
            found = t.ERROR
            if target.name == DEVICE and field_name in self._fields:
                found = self._fields[field_name]
            else:
                self._report(node, f"undefined field '{field_name}'")
        elif target.kind == "param":
            self._fits(t.DYN, target)
            found = t.DYN
        else:
            if not target.is_dyn and target.kind != "error":
                self._report(node, f"type '{target}' does not support field selection")
            found = t.DYN
        return t.optional_of(found) if optional else found

    def _call(self, node: tree.CallExpr) -> Type:
        if node.function == "_?._":
            self.check(node.args[1])
            name = node.args[1]
            assert isinstance(name, tree.LiteralExpr)
            found = self._field(node, node.args[0], str(name.value))
            self.checked.overloads[node] = ("select_optional_field",)
            found = self.bindings.substitute(found)
            return found if found.is_optional else t.optional_of(found)
        arguments = tuple(self.check(argument) for argument in node.args)
        if node.target is not None:
            prefix = qualified_name(node.target)
            full = f"{prefix}.{node.function}".removeprefix(".")
            if prefix is not None and self._declared(full) is not None:
                self.checked.names[node] = full
                return self._resolve(node, full, arguments, member=False)
            arguments = (self.check(node.target), *arguments)
        name_ = node.function if node.target else node.function.removeprefix(".")
        if self._declared(name_) is None:
            self._report(node, f"undeclared reference to '{node.function}' (in container '')")
            return t.ERROR
        return self._resolve(node, name_, arguments, member=node.target is not None)

    def _declared(self, name: str) -> tuple[Overload, ...] | None:
        return None if name in self._environment.missing else functions().get(name)

    def _resolve(self, node: tree.CallExpr, name: str, arguments: tuple[Type, ...], *, member: bool) -> Type:
        overloads = self._declared(name) or ()
        if name in ("_&&_", "_||_"):
            self.checked.overloads[node] = (overloads[0].id,)
            return self._logical(node, arguments)
        result: Type | None = None
        chosen: list[str] = []
        for overload in overloads:
            if overload.member != member:
                continue
            wanted, answer = self._instantiate(overload)
            if not self.bindings.fits(arguments, wanted):
                continue
            chosen.append(overload.id)
            found = self.bindings.substitute(answer)
            if result is None:
                result = found
            elif not result.is_dyn and found != result:
                result = t.DYN
        if result is None:
            shown = [str(self.bindings.substitute(a, unbound=t.DYN)) for a in arguments]
            applied = f"{shown[0]}.({', '.join(shown[1:])})" if member else f"({', '.join(shown)})"
            self._report(node, f"found no matching overload for '{name}' applied to '{applied}'")
            return t.ERROR
        self.checked.overloads[node] = tuple(chosen)
        return result

    def _instantiate(self, overload: Overload) -> tuple[tuple[Type, ...], Type]:
        """The overload's types with fresh parameters."""
        if not overload.params:
            return overload.args, overload.result
        fresh = {param: self.bindings.fresh() for param in overload.params}
        return tuple(_replace(a, fresh) for a in overload.args), _replace(overload.result, fresh)

    def _logical(self, node: tree.CallExpr, arguments: tuple[Type, ...]) -> Type:
        for argument, found in zip(node.args, arguments, strict=True):
            if not self._fits(found, t.BOOL):
                self._report(argument, f"expected type 'bool' but found '{found}'")
                return t.ERROR
        return t.BOOL

    def _element(self, node: Expr, optional: bool) -> Type:
        """The type of an element of a list or map, unwrapped if the element is marked ``?``."""
        found = self.check(node)
        if not optional or found.is_dyn:
            return found
        if found.is_optional:
            return found.params[0]
        self._report(node, f"expected type '{t.optional_of(found)}' but found '{found}'")
        return found

    def _join(self, previous: Type | None, current: Type) -> Type:
        if previous is None:
            return current
        if self._fits(previous, current):
            return t.most_general(previous, current)
        return t.DYN  # the validators reject mixed literals, except as arguments of format()

    def _list(self, node: tree.ListExpr) -> Type:
        joined: Type | None = None
        for index, item in enumerate(node.items):
            joined = self._join(joined, self._element(item, index in node.optional))
        return t.list_of(self.bindings.fresh() if joined is None else joined)

    def _map(self, node: tree.MapExpr) -> Type:
        keys: Type | None = None
        values: Type | None = None
        for index, (key, value) in enumerate(node.entries):
            keys = self._join(keys, self.check(key))
            values = self._join(values, self._element(value, index in node.optional))
        if keys is None or values is None:
            return t.map_of(self.bindings.fresh(), self.bindings.fresh())
        return t.map_of(keys, values)

    def _struct(self, node: tree.StructExpr) -> Type:
        if node.type_name.startswith(("google.protobuf.", "kubernetes.")):
            raise CelUnsupportedError(f"drakit cannot build a {node.type_name}", node.at)
        self._report(node, f"undeclared reference to '{node.type_name}' (in container '')")
        return t.ERROR

    def _comprehension(self, node: tree.ComprehensionExpr) -> Type:
        ranged = self.check(node.range)
        accumulated = self.check(node.init)
        over = self.bindings.substitute(ranged)
        self._scopes.append({node.accumulator: accumulated})
        self._scopes.append(self._loop_variables(node, over))
        for part, wanted in ((node.condition, t.BOOL), (node.step, accumulated)):
            found = self.check(part)
            if not self._fits(wanted, found):
                self._report(part, f"expected type '{wanted}' but found '{found}'")
        self._scopes.pop()
        result = self.check(node.result)
        self._scopes.pop()
        return self.bindings.substitute(result)

    def _loop_variables(self, node: tree.ComprehensionExpr, over: Type) -> dict[str, Type]:
        if over.kind == "list":
            first, second = over.params[0], over.params[0]
            if node.second:
                first = t.INT
        elif over.kind == "map":
            first, second = over.params
        elif over.kind in ("dyn", "error", "param"):
            self._fits(t.DYN, over)
            first = second = t.DYN
        else:
            self._report(
                node.range, f"expression of type '{over}' cannot be range of a comprehension "
                "(must be list, map, or dynamic)",
            )  # fmt: skip
            first = second = t.ERROR
        return {node.variable: first, node.second: second} if node.second else {node.variable: first}


def _replace(found: Type, fresh: dict[Type, Type]) -> Type:
    if found.kind == "param":
        return fresh[found]
    if not found.params:
        return found
    return Type(found.kind, found.name, tuple(_replace(p, fresh) for p in found.params))


def _literal_type(node: tree.LiteralExpr) -> Type:
    value = node.value
    if value is None:
        return t.NULL
    for kind, found in (
        (bool, t.BOOL), (UInt, t.UINT), (int, t.INT), (float, t.DOUBLE), (str, t.STRING),
    ):  # fmt: skip
        if isinstance(value, kind):
            return found
    return t.BYTES
