"""YAML as configuration should be read: safe, and a key given twice is an error."""

from __future__ import annotations

from typing import Any, Final

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEEPEST: Final = 100


class YamlError(ValueError):
    """The text is no YAML, or gives a key twice; the message has the line where it is known."""


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
    try:
        _reject_depth(text)
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader underneath
    except YamlError:
        raise
    except yaml.YAMLError as error:
        raise YamlError(" ".join(str(error).split())) from error
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        # PyYAML takes a value for what it looks like, or its tag says, and trips over the rest of
        # it: the 99th of a month, `!!bool perhaps`, a number of 5000 digits.
        raise YamlError(f"a value is not what it seems to be: {error}") from error
    except RecursionError as error:  # already deep in calls ourselves
        raise YamlError("nested too deeply") from error


def _reject_depth(text: str) -> None:
    """Raise for what is nested too deeply: the loader in C would end the process, by its stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            raise YamlError(f"line {event.start_mark.line + 1}: nested too deeply")
