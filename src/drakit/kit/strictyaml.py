"""YAML as configuration should be read: safe, and a key given twice is an error."""

from __future__ import annotations

from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlError(ValueError):
    """The text is no YAML, or gives a key twice; the message has line and column."""


class _StrictLoader(_Loader):  # type: ignore[misc] # the C loader has no types
    """A safe loader that refuses duplicate keys instead of letting the last one win."""

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
    """Read one YAML document. Raises :class:`YamlError` with the line."""
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader underneath
    except yaml.YAMLError as problem:
        raise YamlError(" ".join(str(problem).split())) from problem
    except RecursionError as problem:
        raise YamlError("nested too deeply") from problem
