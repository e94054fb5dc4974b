"""Validation of well-typed expressions: homogeneous literals, format strings and constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from drakit.scheduler.cel.checker.checker import Checked
from drakit.scheduler.cel.checker.types import Type
from drakit.scheduler.cel.errors import CelRuntimeError, CelTypeError
from drakit.scheduler.cel.stdlib import printf, regex, times
from drakit.scheduler.cel.syntax import tree
from drakit.scheduler.cel.syntax.tree import Expr, children

_VERBS: Final = {
    "d": {"int", "uint"}, "f": {"double", "string"}, "e": {"double", "string"},
    "b": {"int", "uint", "bool"}, "x": {"int", "uint", "string", "bytes"},
    "X": {"int", "uint", "string", "bytes"}, "o": {"int", "uint"},
    "s": {"list", "map", "int", "uint", "double", "bool", "string", "timestamp", "bytes",
          "duration", "type", "null"},
}  # fmt: skip
_PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "duration": times.parse_duration,
    "timestamp": times.parse_timestamp,
    "matches": regex.compiled,
}


def validate(root: Expr, checked: Checked) -> None:
    """Raise :class:`CelTypeError` if the API server rejects the well-typed expression."""
    _Validator(checked).visit(root, exempt=False)


class _Validator:
    def __init__(self, checked: Checked) -> None:
        self._types = checked.types
        self._checked = checked

    def visit(self, node: Expr, *, exempt: bool) -> None:
        """Check *node* and its subexpressions; arguments of ``format`` may have mixed types."""
        if isinstance(node, tree.ListExpr) and not exempt:
            self._same(node.items, [self._unwrapped(n, i in node.optional) for i, n in enumerate(node.items)])
        elif isinstance(node, tree.MapExpr) and not exempt:
            keys = [k for k, _ in node.entries]
            values = [v for _, v in node.entries]
            self._same(tuple(keys), [self._types[k] for k in keys])
            self._same(tuple(values), [self._unwrapped(v, i in node.optional) for i, v in enumerate(values)])
        elif isinstance(node, tree.CallExpr):
            self._call(node)
            exempt = exempt or node.function == "format"
        for child in children(node):
            self.visit(child, exempt=exempt)

    def _unwrapped(self, node: Expr, optional: bool) -> Type:
        found = self._types[node]
        return found.params[0] if optional and found.params else found

    def _same(self, nodes: tuple[Expr, ...], found: list[Type]) -> None:
        for node, t in zip(nodes[1:], found[1:], strict=True):
            if t != found[0]:
                raise CelTypeError(f"expected type '{found[0]}' but found '{t}'", node.at)

    def _call(self, node: tree.CallExpr) -> None:
        argument = node.args[-1] if node.args else None
        if isinstance(argument, tree.LiteralExpr) and isinstance(argument.value, str):
            self._constant(node.function, argument.value, argument.at)
        if node.function == "format" and isinstance(node.target, tree.LiteralExpr):
            arguments = node.args[0]
            if isinstance(arguments, tree.ListExpr) and isinstance(node.target.value, str):
                self._format(node.target.value, arguments)

    def _constant(self, function: str, value: str, at: int) -> None:
        try:
            if function in _PARSERS:
                _PARSERS[function](value)
        except regex.UnsafeRegexError:
            return  # valid, but the evaluator will report that it cannot run it
        except (CelRuntimeError, regex.RegexError):
            raise CelTypeError(f"invalid {function} argument", at) from None

    def _format(self, template: str, arguments: tree.ListExpr) -> None:
        try:
            verbs = [clause.verb for clause in printf.clauses(template) if clause.verb]
        except CelRuntimeError as error:
            raise CelTypeError(str(error), arguments.at) from None
        for at, verb in enumerate(verbs):
            if at >= len(arguments.items):
                raise CelTypeError(f"index {at} out of range", arguments.at)
            self._verb(verb, arguments.items[at])
        if len(arguments.items) > len(verbs):
            raise CelTypeError(
                "too many arguments supplied to string.format "
                f"(expected {len(verbs)}, got {len(arguments.items)})",
                arguments.at,
            )

    def _verb(self, verb: str, node: Expr) -> None:
        found = self._types[node]
        if found.kind != "dyn" and found.kind not in _VERBS[verb]:
            raise CelTypeError(
                f"error during formatting: %{verb} clause cannot be used on '{found}'", node.at
            )
        if verb == "s" and isinstance(node, tree.ListExpr | tree.MapExpr):
            for child in children(node):
                self._verb("s", child)
