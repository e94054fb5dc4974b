"""Static types of CEL expressions and their assignability.

The rules are cel-go's: ``dyn`` (and Kubernetes' ``any`` for attributes) is assignable to every type,
``null`` to object types, and type parameters are bound when they are first used.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Type:
    """A type: its kind, its name if it has one, and its type parameters."""

    kind: str
    name: str = ""
    params: tuple[Type, ...] = ()

    def __str__(self) -> str:
        if self.kind in ("list", "map"):
            return f"{self.kind}({', '.join(map(str, self.params))})"
        if self.kind == "param":
            return f"<{self.name}>"
        text = self.name or self.kind
        return f"{text}({', '.join(map(str, self.params))})" if self.params else text

    @property
    def is_dyn(self) -> bool:
        """Whether the type is known only at run time."""
        return self.kind in ("dyn", "any")

    @property
    def is_optional(self) -> bool:
        """Whether it is ``optional_type(T)``."""
        return self.kind == "opaque" and self.name == "optional_type"


DYN: Final = Type("dyn")
ANY: Final = Type("any")
ERROR: Final = Type("error")
NULL: Final = Type("null", "null_type")
BOOL: Final = Type("bool")
INT: Final = Type("int")
UINT: Final = Type("uint")
DOUBLE: Final = Type("double")
STRING: Final = Type("string")
BYTES: Final = Type("bytes")
TIMESTAMP: Final = Type("timestamp", "google.protobuf.Timestamp")
DURATION: Final = Type("duration", "google.protobuf.Duration")
TYPE: Final = Type("type")

NAMED: Final = {
    t.name or t.kind: t
    for t in (
        DYN, ANY, NULL, BOOL, INT, UINT, DOUBLE, STRING, BYTES, TIMESTAMP, DURATION, TYPE,
        Type("opaque", "net.IP"), Type("opaque", "net.CIDR"),
    )
}  # fmt: skip


def list_of(item: Type) -> Type:
    """``list(item)``."""
    return Type("list", "list", (item,))


def map_of(key: Type, value: Type) -> Type:
    """``map(key, value)``."""
    return Type("map", "map", (key, value))


def optional_of(item: Type) -> Type:
    """``optional_type(item)``."""
    return Type("opaque", "optional_type", (item,))


def struct(name: str) -> Type:
    """An object type such as ``kubernetes.Quantity``."""
    return Type("struct", name)


@functools.cache
def parse_type(text: str) -> Type:
    """Parse a type in the notation of the declarations table."""
    text = text.strip()
    if text.startswith("<"):
        return Type("param", text[1:-1])
    match = re.fullmatch(r"([\w.]+)\((.*)\)", text)
    if match:
        name, params = match[1], tuple(map(parse_type, split_types(match[2])))
        kind = name if name in ("list", "map", "type") else "opaque"
        return Type(kind, name, params)
    return NAMED.get(text) or struct(text)


def split_types(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return [p for p in map(str.strip, parts) if p]


class Bindings:
    """Types to which the type parameters of an expression are bound."""

    def __init__(self) -> None:
        self._bound: dict[Type, Type] = {}
        self._fresh = 0

    def fresh(self) -> Type:
        """A new, unbound type parameter."""
        self._fresh += 1
        return Type("param", f"_var{self._fresh}")

    def fits(self, given: tuple[Type, ...], wanted: tuple[Type, ...]) -> bool:
        """Whether all *given* types are assignable to the *wanted* ones; if so, bind parameters."""
        if len(given) != len(wanted):
            return False
        saved = dict(self._bound)
        if all(self._assignable(g, w) for g, w in zip(given, wanted, strict=True)):
            return True
        self._bound = saved
        return False

    def substitute(self, t: Type, *, unbound: Type | None = None) -> Type:
        """Replace bound parameters, and unbound ones with *unbound* if given."""
        if t.kind == "param":
            if t in self._bound:
                return self.substitute(self._bound[t], unbound=unbound)
            return unbound or t
        if not t.params:
            return t
        return Type(t.kind, t.name, tuple(self.substitute(p, unbound=unbound) for p in t.params))

    def _assignable(self, given: Type, wanted: Type) -> bool:
        if wanted.kind == "param":
            valid, bound = self._substitutes(given, wanted)
            if valid or bound:
                return valid
        if given.kind == "param":
            return self._substitutes(wanted, given)[0]
        if given.is_dyn or wanted.is_dyn or "error" in (given.kind, wanted.kind):
            return True
        if given.kind == "null":
            return _nullable(wanted)
        if wanted.kind == "null":
            return _nullable(given)
        if given.kind == "type":
            return wanted.kind == "type"
        if given.kind in ("opaque", "list", "map"):
            return (
                given.kind == wanted.kind
                and given.name == wanted.name
                and len(given.params) == len(wanted.params)
                and all(map(self._assignable, given.params, wanted.params))
            )
        return given == wanted

    def _substitutes(self, t: Type, param: Type) -> tuple[bool, bool]:
        """Whether *param* can be bound to *t*, and whether it was bound before."""
        if t == param:
            return True, True
        known = self._bound.get(param)
        if known is not None:
            if t == known:
                return True, True
            if not self._assignable(t, known):
                return False, True
            general = most_general(t, known)
            if self._absent(param, general):
                self._bound[param] = general
            return True, True
        if self._absent(param, t):
            self._bound[param] = t
            return True, False
        return False, False

    def _absent(self, param: Type, within: Type) -> bool:
        if param == within:
            return False
        if within.kind == "param":
            known = self._bound.get(within)
            return known is None or self._absent(param, known)
        return all(self._absent(param, p) for p in within.params)


def _nullable(t: Type) -> bool:
    return t.kind in ("opaque", "struct", "any", "duration", "timestamp", "null")


def most_general(a: Type, b: Type) -> Type:
    """The less specific of two types that are assignable to each other."""
    return a if _less_specific(a, b) else b


def _less_specific(a: Type, b: Type) -> bool:
    if a.is_dyn or a.kind == "param":
        return True
    if b.is_dyn or b.kind == "param" or a.kind != b.kind:
        return False
    if a.kind in ("opaque", "list", "map"):
        return (
            a.name == b.name
            and len(a.params) == len(b.params)
            and all(map(_less_specific, a.params, b.params))
        )
    return a.kind == "type" or a == b
