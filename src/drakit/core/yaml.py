"""Strict YAML loader: safe types only, duplicate keys and excessive nesting are errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST: Final = 100


class YamlError(ValueError):
    """The text is not valid YAML or repeats a key; the message states the line where it is known."""


class _StrictLoader(_Loader):  # type: ignore[misc] # the C loader has no types
    """A safe loader that rejects duplicate keys instead of letting the last one win."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float | bool | None):
                if key in seen:
                    mark = key_node.start_mark
                    raise YamlError(f"line {mark.line + 1}: {key!r} is given twice")
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def load_strictly(text: str) -> Any:
    """Read one YAML document. Raises :class:`YamlError`, whatever the text is."""
    with _yaml_errors():
        _reject_depth(text)
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader underneath


def load_documents(text: str | bytes) -> Iterator[tuple[Any, int]]:
    """Read every document of a YAML stream with its first line. Raises :class:`YamlError`."""
    with _yaml_errors():
        _reject_depth(text)
        loader: Any = _StrictLoader(text)
        try:
            while loader.check_node():
                node: Any = loader.get_node()
                yield loader.construct_document(node), node.start_mark.line + 1
        finally:
            loader.dispose()


@contextmanager
def _yaml_errors() -> Iterator[None]:
    """Turn every exception of PyYAML into a :class:`YamlError`."""
    try:
        yield
    except YamlError:
        raise
    except yaml.YAMLError as error:
        # PyYAML names a text in memory "<unicode string>"; callers name the file.
        message = re.sub(r'in "<\w+ string>", (line|position)', r"at \1", " ".join(str(error).split()))
        raise YamlError(f"not valid YAML: {message}") from error
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        # PyYAML converts values by their appearance or tag and fails on invalid ones: the 99th of
        # a month, `!!bool perhaps`, a number of 5000 digits.
        raise YamlError(f"invalid value: {error}") from error
    except RecursionError as error:  # called from deep within the stack
        raise YamlError("nested too deeply") from error


def _reject_depth(text: str | bytes) -> None:
    """Raise for excessive nesting: the C loader would overflow its stack and end the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            raise YamlError(f"line {event.start_mark.line + 1}: nested too deeply")
