"""Recursive-descent parser for cel-go's grammar; expands macros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from drakit.scheduler.cel.errors import CelSyntaxError
from drakit.scheduler.cel.syntax import lexer, tree
from drakit.scheduler.cel.syntax.macros import expand
from drakit.scheduler.cel.syntax.tree import Expr

MAX_EXPRESSION_BYTES: Final = 10 * 1024
"""CELSelectorExpressionMaxLength: the API server rejects longer expressions."""
MAX_NESTING: Final = 250
"""cel-go's parser rejects a greater recursion depth."""

_RESERVED: Final = frozenset(
    {
        "as", "break", "const", "continue", "else", "false", "for", "function", "if", "import",
        "in", "let", "loop", "package", "namespace", "null", "return", "true", "var", "void",
        "while",
    }
)  # fmt: skip
_RELATIONS: Final = {
    "<": "_<_", "<=": "_<=_", ">=": "_>=_", ">": "_>_", "==": "_==_", "!=": "_!=_", "in": "@in",
}  # fmt: skip
_LEVELS: Final = (_RELATIONS, {"+": "_+_", "-": "_-_"}, {"*": "_*_", "/": "_/_", "%": "_%_"})
_NUMBERS: Final = ("int", "float")
_TEXTS: Final[dict[str, Callable[[str, int], tree.Constant]]] = {
    "uint": lexer.unsigned, "string": lexer.string, "bytes": lexer.byte_string,
}  # fmt: skip
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_T = TypeVar("_T")


def parse(text: str) -> Expr:
    """Parse an expression. Raises :class:`CelSyntaxError` with the position."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_EXPRESSION_BYTES:
        raise CelSyntaxError(
            f"the expression has more than {MAX_EXPRESSION_BYTES} bytes, the limit of the API server"
        )
    parser = _Parser(lexer.tokens(text))
    node = parser.expression()
    parser.expect("end")
    return node


class _Parser:
    def __init__(self, tokens: list[lexer.Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    @property
    def _token(self) -> lexer.Token:
        return self._tokens[self._next]

    def _accept(self, kind: str) -> lexer.Token | None:
        token = self._tokens[self._next]
        if token.kind != kind:
            return None
        self._next += 1
        return token

    def expect(self, kind: str) -> lexer.Token:
        """Consume a token of *kind*. Raises :class:`CelSyntaxError`."""
        token = self._accept(kind)
        if token is None:
            raise self._unexpected(kind)
        return token

    def _unexpected(self, wanted: str) -> CelSyntaxError:
        token = self._token
        shown = "the end" if token.kind == "end" else repr(token.text)
        return CelSyntaxError(f"syntax error at {shown}: expected {wanted}", token.at)

    def _check_depth(self, more: int, at: int) -> None:
        if self._depth + more > MAX_NESTING:
            raise CelSyntaxError(f"expression recursion limit exceeded: {MAX_NESTING}", at)

    def expression(self) -> Expr:
        """``a ? b : c`` and everything that binds tighter."""
        self._depth += 1
        self._check_depth(0, self._token.at)
        condition = self._logical("||", "_||_", self._conjunction)
        question = self._accept("?")
        if question is not None:
            then = self._logical("||", "_||_", self._conjunction)
            self.expect(":")
            otherwise = self.expression()
            condition = tree.CallExpr("_?_:_", (condition, then, otherwise), None, question.at)
        self._depth -= 1
        return condition

    def _conjunction(self) -> Expr:
        return self._logical("&&", "_&&_", lambda: self._binary(0))

    def _logical(self, kind: str, function: str, term: Callable[[], Expr]) -> Expr:
        terms = [term()]
        while self._accept(kind):
            terms.append(term())
        return _balanced(function, terms)

    def _binary(self, level: int) -> Expr:
        if level == len(_LEVELS):
            return self._unary()
        left = self._binary(level + 1)
        chain = 0
        while (function := _LEVELS[level].get(self._token.kind)) is not None:
            token = self._token
            self._next += 1
            chain += 1
            self._check_depth(chain, token.at)  # cel-go also counts left recursion
            left = tree.CallExpr(function, (left, self._binary(level + 1)), None, token.at)
        return left

    def _unary(self) -> Expr:
        token = self._token
        function = {"!": "!_", "-": "-_"}.get(token.kind)
        if function is None:
            return self._member()
        count = 0
        while self._tokens[self._next + count].kind == token.kind:
            count += 1
        if function == "-_" and count == 1 and self._tokens[self._next + 1].kind in _NUMBERS:
            return self._member()  # the sign belongs to the literal
        self._next += count
        operand = self._member()
        return tree.CallExpr(function, (operand,), None, token.at) if count % 2 else operand

    def _member(self) -> Expr:
        node = self._primary()
        steps = 0
        while True:
            token = self._token
            if token.kind == ".":
                self._next += 1
                node = self._selection(node, token.at)
            elif token.kind == "[":
                self._next += 1
                function = "_[?_]" if self._accept("?") else "_[_]"
                index = self.expression()
                self.expect("]")
                node = tree.CallExpr(function, (node, index), None, token.at)
            else:
                return node
            steps += 1
            self._check_depth(steps, token.at)

    def _selection(self, operand: Expr, at: int) -> Expr:
        optional = self._accept("?") is not None
        quoted = self._accept("quoted")
        if quoted is not None:
            name = quoted.text[1:-1]
        else:
            name = self.expect("ident").text
            if not optional and self._accept("("):
                arguments = self._arguments()
                return expand(name, operand, arguments, at) or tree.CallExpr(name, arguments, operand, at)
        if optional:
            return tree.CallExpr("_?._", (operand, tree.LiteralExpr(name, at)), None, at)
        return tree.SelectExpr(operand, name, False, at)

    def _arguments(self) -> tuple[Expr, ...]:
        if self._accept(")"):
            return ()
        found = [self.expression()]
        while self._accept(","):
            found.append(self.expression())
        self.expect(")")
        return tuple(found)

    def _primary(self) -> Expr:
        token = self._token
        if token.kind in (".", "ident"):
            return self._name()
        self._next += 1
        if token.kind == "(":
            inner = self.expression()
            self.expect(")")
            return inner
        if token.kind == "[":
            return self._list(token.at)
        if token.kind == "{":
            return self._map(token.at)
        literal = self._literal(token)
        if literal is None:
            self._next -= 1
            raise self._unexpected("a value")
        return literal

    def _literal(self, token: lexer.Token) -> tree.LiteralExpr | None:
        negative = token.kind == "-"
        if negative:
            token = self._token
            self._next += 1
        if token.kind in _NUMBERS:
            read = lexer.integer if token.kind == "int" else lexer.double
            return tree.LiteralExpr(read(token.text, negative, token.at), token.at)
        if token.kind in _TEXTS:
            return tree.LiteralExpr(_TEXTS[token.kind](token.text, token.at), token.at)
        known = token.kind in _CONSTANTS
        return tree.LiteralExpr(_CONSTANTS[token.kind], token.at) if known else None

    def _name(self) -> Expr:
        leading = "." if self._accept(".") else ""
        token = self.expect("ident")
        if self._begins_message():
            return self._message(leading + token.text, token.at)
        if token.text in _RESERVED:
            raise CelSyntaxError(f"reserved identifier: {token.text}", token.at)
        name = leading + token.text
        if self._accept("("):
            arguments = self._arguments()
            return expand(name, None, arguments, token.at) or tree.CallExpr(name, arguments, None, token.at)
        return tree.IdentExpr(name, token.at)

    def _begins_message(self) -> bool:
        """Whether ``a.b.c{`` follows: a message literal rather than a selection."""
        at = self._next
        while self._tokens[at].kind == "." and self._tokens[at + 1].kind == "ident":
            at += 2
        return self._tokens[at].kind == "{"

    def _message(self, name: str, at: int) -> Expr:
        while self._accept("."):
            name += "." + self.expect("ident").text
        self.expect("{")
        fields: list[tuple[str, Expr]] = []
        while not self._accept("}"):
            self._accept("?")
            quoted = self._accept("quoted")
            field = quoted.text[1:-1] if quoted else self.expect("ident").text
            self.expect(":")
            fields.append((field, self.expression()))
            if not self._accept(","):
                self.expect("}")
                break
        return tree.StructExpr(name, tuple(fields), at)

    def _list(self, at: int) -> Expr:
        items, optional = self._elements("]", self.expression)
        return tree.ListExpr(tuple(items), optional, at)

    def _map(self, at: int) -> Expr:
        entries, optional = self._elements("}", self._entry)
        return tree.MapExpr(tuple(entries), optional, at)

    def _entry(self) -> tuple[Expr, Expr]:
        key = self.expression()
        self.expect(":")
        return key, self.expression()

    def _elements(self, end: str, element: Callable[[], _T]) -> tuple[list[_T], frozenset[int]]:
        found: list[_T] = []
        optional: set[int] = set()
        if self._accept(","):  # the grammar allows a lone comma in an empty literal
            self.expect(end)
            return found, frozenset()
        while not self._accept(end):
            if self._accept("?"):
                optional.add(len(found))
            found.append(element())
            if not self._accept(","):
                self.expect(end)
                break
        return found, frozenset(optional)


def _balanced(function: str, terms: list[Expr]) -> Expr:
    """Join the terms of a chain as a balanced tree, as cel-go does."""
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    left, right = _balanced(function, terms[:middle]), _balanced(function, terms[middle:])
    return tree.CallExpr(function, (left, right), None, right.at)
