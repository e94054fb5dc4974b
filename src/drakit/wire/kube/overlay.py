"""Change a document without losing what we do not know of it."""

from __future__ import annotations

from typing import Any


def overlay(raw: Any, before: Any, after: Any) -> Any:
    """Apply to *raw* the difference between *before* and *after*.

    *before* is what our types read from *raw*, *after* what they shall say now. What did not change
    stays as *raw* spells it; fields only *raw* has stay, also inside list items, which are paired by
    their ``name`` or, when the lists are equally long, by position.
    """
    if before == after:
        return raw
    if isinstance(raw, dict) and isinstance(before, dict) and isinstance(after, dict):
        result = {key: value for key, value in raw.items() if key not in before or key in after}
        for key, value in after.items():
            if key in raw and key in before:
                result[key] = overlay(raw[key], before[key], value)
            elif key not in raw or key not in before or raw[key] is None:
                result[key] = value
        return result
    if _paired(raw, before, after):
        return _overlay_lists(raw, before, after)
    return after


def _paired(raw: Any, before: Any, after: Any) -> bool:
    lists = all(isinstance(value, list | tuple) for value in (raw, before, after))
    return lists and len(raw) == len(before)


def _overlay_lists(raw: Any, before: Any, after: Any) -> list[Any]:
    names = [_name(item) for item in before]
    if None not in names and len(set(names)) == len(names):
        at = {name: index for index, name in enumerate(names)}
        return [
            overlay(raw[at[name]], before[at[name]], item) if (name := _name(item)) in at else item
            for item in after
        ]
    if len(before) == len(after):
        return [overlay(r, b, a) for r, b, a in zip(raw, before, after, strict=True)]
    return list(after)


def _name(item: Any) -> str | None:
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) else None
