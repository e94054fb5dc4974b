"""Evaluator: compiles a checked syntax tree to closures over a frame.

Slot 0 of a frame is the device, slot 1 counts loop iterations (which bounds the time), the others are
variables. ``&&``, ``||``, ``all`` and ``exists`` absorb errors as CEL specifies: an error counts only
if the other operands do not determine the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from drakit.scheduler.cel.checker.checker import Checked
from drakit.scheduler.cel.checker.fields import device_field
from drakit.scheduler.cel.errors import CelCompileError, CelRuntimeError, CelUnsupportedError
from drakit.scheduler.cel.stdlib.functions import FUNCTIONS
from drakit.scheduler.cel.stdlib.regex import RegexError, UnsafeRegexError, compiled
from drakit.scheduler.cel.syntax import tree
from drakit.scheduler.cel.syntax.tree import Expr
from drakit.scheduler.cel.values import (
    OPERATORS,
    OptionalValue,
    TypeValue,
    Value,
    elements,
    has,
    key_of,
    key_value,
    no_such_overload,
    optional_select,
    pairs,
    select,
)

Frame = list[Any]
Code = Callable[[Frame], Value]

DEVICE_SLOT: Final = 0
ITERATIONS_SLOT: Final = 1
MAX_ITERATIONS: Final = 1_000_000
"""Kubernetes stops at a cost of one million; an iteration costs at least one."""
_CONVERSIONS: Final = frozenset(
    {"bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"}
)
_PARSERS: Final = frozenset({"quantity", "semver", "ip", "cidr", "url", "isQuantity", "isSemver"})


@dataclass(frozen=True, slots=True)
class CompiledExpression:
    """An expression that can be evaluated."""

    _code: Code
    _slots: int

    def run(self, device: Value) -> Value:
        """Evaluate for *device*. Raises :class:`CelRuntimeError`."""
        frame: Frame = [None] * self._slots
        frame[DEVICE_SLOT] = device
        frame[ITERATIONS_SLOT] = 0
        try:
            return self._code(frame)
        except RecursionError:
            raise CelRuntimeError("the expression nests too deeply to be evaluated") from None


def build(root: Expr, checked: Checked) -> CompiledExpression:
    """Compile a checked expression.

    Raises :class:`CelCompileError` where cel-go fails to instantiate the program, and
    :class:`CelUnsupportedError` if drakit cannot evaluate the expression.
    """
    compiler = _Compiler(checked)
    code = compiler.build(root, {"device": DEVICE_SLOT})
    return CompiledExpression(code, compiler.slots)


class _Compiler:
    def __init__(self, checked: Checked) -> None:
        self._checked = checked
        self.slots = ITERATIONS_SLOT + 1

    def _slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def build(self, node: Expr, scope: dict[str, int]) -> Code:
        """The code of *node*; *scope* maps variables to slots."""
        if node in self._checked.names and not isinstance(node, tree.CallExpr):
            named_type = TypeValue(self._checked.names[node])
            return lambda _: named_type
        match node:
            case tree.LiteralExpr(value):
                return lambda _: value
            case tree.IdentExpr():
                return self._ident(node, scope)
            case tree.SelectExpr():
                return self._select(node, scope)
            case tree.CallExpr():
                return self._call(node, scope)
            case tree.ListExpr():
                return self._list(node, scope)
            case tree.MapExpr():
                return self._map(node, scope)
            case tree.ComprehensionExpr():
                return self._comprehension(node, scope)
            case tree.StructExpr():
                raise CelUnsupportedError(f"drakit cannot build a {node.type_name}", node.at)

    def _ident(self, node: tree.IdentExpr, scope: dict[str, int]) -> Code:
        if self._checked.types[node].kind == "type":
            # cel-go treats a variable that holds a type as the name of a type.
            raise CelCompileError(
                f"program instantiation failed: reference to undefined type: {node.name}", node.at
            )
        slot = DEVICE_SLOT if node.name.startswith(".") else scope[node.name]
        if slot < 0:  # bound lazily: the slot holds the code until the first use
            return _lazily(-slot)
        return lambda frame: frame[slot]

    def _select(self, node: tree.SelectExpr, scope: dict[str, int]) -> Code:
        name = node.field
        if not node.test:
            quick = self._attribute(node, scope)
            if quick is not None:
                return quick
        operand = self.build(node.operand, scope)
        if node.test:
            return lambda frame: has(operand(frame), name)
        return lambda frame: select(operand(frame), name)

    def _attribute(self, node: tree.SelectExpr, scope: dict[str, int]) -> Code | None:
        """A fast path for ``device.attributes["domain"].name``, which nearly all selectors use."""
        found = device_field(node)
        indexed = isinstance(node.operand, tree.CallExpr) and node.operand.function == "_[_]"
        if found is None or not indexed or scope["device"] != DEVICE_SLOT:
            return None
        field, key, name = found

        def code(frame: Frame) -> Value:
            try:
                return getattr(frame[DEVICE_SLOT], field)[key][name]
            except KeyError:
                raise CelRuntimeError(f"no such key: {name}") from None

        return code

    def _list(self, node: tree.ListExpr, scope: dict[str, int]) -> Code:
        items = [self.build(item, scope) for item in node.items]
        if not node.optional:
            if all(isinstance(item, tree.LiteralExpr) for item in node.items):
                constant = [item.value for item in node.items if isinstance(item, tree.LiteralExpr)]
                return lambda _: constant
            return lambda frame: [item(frame) for item in items]
        optional = node.optional

        def code(frame: Frame) -> Value:
            values = (_entry(item(frame), at in optional) for at, item in enumerate(items))
            return [value for value in values if value is not _ABSENT]

        return code

    def _map(self, node: tree.MapExpr, scope: dict[str, int]) -> Code:
        entries = [(self.build(k, scope), self.build(v, scope)) for k, v in node.entries]
        optional = node.optional

        def code(frame: Frame) -> Value:
            found: dict[Any, Value] = {}
            for at, (key_code, value_code) in enumerate(entries):
                key, value = key_of(key_code(frame)), _entry(value_code(frame), at in optional)
                if value is not _ABSENT:
                    found[key] = value
            return found

        return code

    def _call(self, node: tree.CallExpr, scope: dict[str, int]) -> Code:
        name = self._checked.names.get(node, node.function).removeprefix(".")
        if name == "_?._":
            operand = self.build(node.args[0], scope)
            field = node.args[1]
            assert isinstance(field, tree.LiteralExpr)
            text = str(field.value)
            return lambda frame: optional_select(operand(frame), text)
        arguments = list(node.args)
        if node.target is not None and node not in self._checked.names:
            arguments.insert(0, node.target)
        if name == "@in" and isinstance(arguments[1], tree.ListExpr) and not arguments[1].items:
            self.build(arguments[0], scope)
            return lambda _: False  # the item need not be evaluated
        special = _SPECIAL.get(name)
        codes = [self.build(argument, scope) for argument in arguments]
        if special is not None:
            return special(codes)
        self._check_constants(name, arguments)
        function = OPERATORS.get(name) or FUNCTIONS.get(name)
        if function is None:
            return _unusable(name, codes)
        if name in _CONVERSIONS and isinstance(arguments[0], tree.LiteralExpr):
            return _folded(function, arguments[0])
        if name in _PARSERS and all(isinstance(argument, tree.LiteralExpr) for argument in arguments):
            return _once(function, [a.value for a in arguments if isinstance(a, tree.LiteralExpr)])
        return _applied(function, codes)

    def _check_constants(self, name: str, arguments: list[Expr]) -> None:
        """Check constants as cel-go does when it instantiates the program."""
        if name in ("matches", "find", "findAll") and len(arguments) > 1:
            pattern = arguments[1]
            if isinstance(pattern, tree.LiteralExpr) and isinstance(pattern.value, str):
                try:
                    compiled(pattern.value)
                except UnsafeRegexError as error:
                    raise CelUnsupportedError(
                        f"drakit cannot run the regular expression {pattern.value!r}: {error}", pattern.at
                    ) from None
                except RegexError as error:
                    raise CelCompileError(
                        f"error parsing regexp: {error}: `{pattern.value}`", pattern.at
                    ) from None
        if name == "_[_]" and isinstance(arguments[1], tree.LiteralExpr) and arguments[1].value is None:
            raise CelCompileError("invalid qualifier type: types.Null", arguments[1].at)

    def _comprehension(self, node: tree.ComprehensionExpr, scope: dict[str, int]) -> Code:
        macro = node.macro
        if macro.name == "bind":
            slot = self._slot()
            value = self.build(node.init, scope)
            body = self.build(node.result, {**scope, node.accumulator: -slot})

            def bound(frame: Frame) -> Value:
                frame[slot] = value
                return body(frame)

            return bound
        over = self.build(node.range, scope)
        first = self._slot()
        inner = {**scope, node.variable: first}
        second = self._slot() if node.second else None
        if node.second and second is not None:
            inner[node.second] = second
        walk = _walk(over, first, second)
        condition = self.build(macro.condition, inner) if macro.condition else None
        value_code = self.build(macro.value, inner) if macro.value else None
        if macro.name in ("all", "exists"):
            assert condition is not None
            return _quantifier(walk, condition, macro.name == "exists")
        if macro.name == "exists_one":
            assert condition is not None
            return _exactly_one(walk, condition)
        assert value_code is not None
        if macro.name == "map":
            return _list_builder(walk, condition, value_code)
        key = (lambda frame: frame[first]) if macro.name == "transformMap" else None
        return _map_builder(walk, condition, value_code, key)


Walk = Callable[[Frame], Any]


def _walk(over: Code, first: int, second: int | None) -> Walk:
    """Iterate over a range: set the loop variables and yield once per iteration."""

    def walk(frame: Frame) -> Any:
        container = over(frame)
        if second is None:
            for item in elements(container):
                _count(frame)
                frame[first] = item
                yield
        else:
            for key, item in pairs(container):
                _count(frame)
                frame[first] = key
                frame[second] = item
                yield

    return walk


def _count(frame: Frame) -> None:
    frame[ITERATIONS_SLOT] += 1
    if frame[ITERATIONS_SLOT] > MAX_ITERATIONS:
        raise CelRuntimeError("operation cancelled: actual cost limit exceeded")


def _lazily(slot: int) -> Code:
    def code(frame: Frame) -> Value:
        value = frame[slot]
        if callable(value):
            value = value(frame)
            frame[slot] = value
        return value

    return code


_ABSENT: Final = object()


def _entry(value: Value, optional: bool) -> Value:
    """The value of an entry of a list or map; ``_ABSENT`` for an optional entry without one."""
    if not optional:
        return value
    if type(value) is not OptionalValue:
        raise CelRuntimeError("cannot initialize optional entry from non-optional value")
    return value.value if value.present else _ABSENT


def _truth(value: Value, operator: str) -> bool:
    if value is True or value is False:
        return value
    raise no_such_overload(operator, value)


def _quantifier(walk: Walk, condition: Code, deciding: bool) -> Code:
    """``exists`` (*deciding* is true) and ``all`` (*deciding* is false)."""
    operator = "_||_" if deciding else "_&&_"

    def code(frame: Frame) -> Value:
        failure: CelRuntimeError | None = None
        for _ in walk(frame):
            try:
                if _truth(condition(frame), operator) is deciding:
                    return deciding
            except CelRuntimeError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return not deciding

    return code


def _exactly_one(walk: Walk, condition: Code) -> Code:
    return lambda frame: sum(1 for _ in walk(frame) if _truth(condition(frame), "_?_:_")) == 1


def _list_builder(walk: Walk, condition: Code | None, value: Code) -> Code:
    if condition is None:
        return lambda frame: [value(frame) for _ in walk(frame)]
    return lambda frame: [value(frame) for _ in walk(frame) if _truth(condition(frame), "_?_:_")]


def _map_builder(walk: Walk, condition: Code | None, value: Code, key: Code | None) -> Code:
    def code(frame: Frame) -> Value:
        found: dict[Any, Value] = {}
        for _ in walk(frame):
            if condition is not None and not _truth(condition(frame), "_?_:_"):
                continue
            added = value(frame)
            if key is not None:
                added = {key_of(key(frame)): added}
            if not isinstance(added, dict):
                raise no_such_overload("cel.@mapInsert", added)
            for name, entry in added.items():
                if name in found:
                    raise CelRuntimeError(f"insert failed: key {key_value(name)} already exists")
                found[name] = entry
        return found

    return code


def _logical(deciding: bool) -> Callable[[list[Code]], Code]:
    """``||`` (*deciding* is true) and ``&&`` (*deciding* is false), which absorb errors."""
    operator = "_||_" if deciding else "_&&_"

    def build(codes: list[Code]) -> Code:
        left, right = codes

        def code(frame: Frame) -> Value:
            try:
                value = left(frame)
            except CelRuntimeError as error:
                if right(frame) is deciding:
                    return deciding
                raise error from None
            if value is deciding:
                return deciding
            other = right(frame)
            if other is deciding:
                return deciding
            _truth(value, operator)
            return _truth(other, operator)

        return code

    return build


def _conditional(codes: list[Code]) -> Code:
    condition, then, otherwise = codes

    def code(frame: Frame) -> Value:
        value = condition(frame)
        if value is True:
            return then(frame)
        if value is False:
            return otherwise(frame)
        raise no_such_overload("_?_:_", value)

    return code


def _or(name: str) -> Callable[[list[Code]], Code]:
    """``or`` and ``orValue``, which evaluate the second operand only if the first is absent."""

    def build(codes: list[Code]) -> Code:
        left, right = codes

        def code(frame: Frame) -> Value:
            value = left(frame)
            if type(value) is not OptionalValue:
                raise no_such_overload(name, value)
            if value.present:
                return value if name == "or" else value.value
            other = right(frame)
            if name == "or" and type(other) is not OptionalValue:
                raise no_such_overload(name, value, other)
            return other

        return code

    return build


_SPECIAL: Final[dict[str, Callable[[list[Code]], Code]]] = {
    "_&&_": _logical(False),
    "_||_": _logical(True),
    "_?_:_": _conditional,
    "orValue": _or("orValue"),
    "or": _or("or"),
}


def _applied(function: Callable[..., Value], codes: list[Code]) -> Code:
    if len(codes) == 1:
        (only,) = codes
        return lambda frame: function(only(frame))
    if len(codes) == 2:
        left, right = codes
        return lambda frame: function(left(frame), right(frame))
    return lambda frame: function(*[code(frame) for code in codes])


def _folded(function: Callable[..., Value], argument: tree.LiteralExpr) -> Code:
    """A conversion of a constant: evaluated once; an error rejects the expression."""
    try:
        value = function(argument.value)
    except CelRuntimeError as error:
        raise CelCompileError(f"program instantiation failed: {error}", argument.at) from None
    return lambda _: value


def _once(function: Callable[..., Value], values: list[Value]) -> Code:
    """A parser of constants: evaluated once if it succeeds, else at each evaluation."""
    try:
        value = function(*values)
    except CelRuntimeError:
        return lambda _: function(*values)
    return lambda _: value


def _unusable(name: str, codes: list[Code]) -> Code:
    """An authorization function: a selector cannot obtain the values that it accepts."""

    def code(frame: Frame) -> Value:
        raise no_such_overload(name, *[c(frame) for c in codes])

    return code
