"""Configuration from file, environment and flags, defined by one type.

A configuration is a ``Struct``; each field has a key in the file (``kubeletRootDir``), a flag
(``--kubelet-root-dir``) and an environment variable (``<PREFIX>_KUBELET_ROOT_DIR``). Help text and aliases
are in its annotation: ``group_by: Annotated[GroupBy, setting("how CPUs are grouped")] = "numanode"``.

Precedence (lowest to highest): default, configuration file, environment, flag. An unknown setting is
an error that names its source and suggests the nearest known one.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from drakit.core.objects import Struct

C = TypeVar("C", bound=Struct)

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LARGEST_FILE = 1 << 20


class ConfigurationError(ValueError):
    """Invalid configuration; the text names the source, the setting and the remedy."""


def setting(description: str, *, flags: Sequence[str] = (), env: Sequence[str] = ()) -> msgspec.Meta:
    """Metadata of a setting: help text, and aliases of its flag and environment variable."""
    return msgspec.Meta(description=description, extra={"flags": tuple(flags), "env": tuple(env)})


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting and its names in all sources."""

    field: str
    key: str
    flags: tuple[str, ...]
    variables: tuple[str, ...]
    kind: Any
    default: Any
    help: str

    @property
    def is_switch(self) -> bool:
        """Whether the flag needs no value (``--verbose``)."""
        return _bare(self.kind) is bool


def settings_of(kind: type[Struct], prefix: str) -> tuple[Setting, ...]:
    """All settings of the configuration *kind*, in the order of its fields."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found = []
    for field in msgspec.structs.fields(kind):
        meta = _meta(hints[field.name])
        extra = (meta.extra if meta else None) or {}
        name = field.name.replace("_", "-")
        found.append(
            Setting(
                field=field.name,
                key=field.encode_name,
                flags=(f"--{name}", *extra.get("flags", ())),
                variables=(f"{prefix}_{field.name.upper()}", *extra.get("env", ())),
                kind=hints[field.name],
                default=None if field.default is msgspec.NODEFAULT else field.default,
                help=(meta.description if meta else None) or "",
            )
        )
    return tuple(found)


@dataclass(frozen=True)
class Loaded(Generic[C]):
    """A configuration, the source of each setting, and all parsed command-line arguments."""

    config: C
    sources: Mapping[str, str]
    arguments: argparse.Namespace


def load(
    kind: type[C],
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    *,
    prefix: str,
) -> Loaded[C]:
    """Add ``--config`` and a flag per setting to *parser*, parse, and resolve the configuration.

    Raises :class:`ConfigurationError`; ``--help`` and unknown flags exit as in argparse.
    """
    add_flags(parser, kind, prefix=prefix)
    return resolve(kind, parser.parse_args(arguments), environ, prefix=prefix)


def resolve(
    kind: type[C], parsed: argparse.Namespace, environ: Mapping[str, str], *, prefix: str
) -> Loaded[C]:
    """Combine file, *environ* and *parsed* flags; raises :class:`ConfigurationError`."""
    settings = settings_of(kind, prefix)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    path = parsed.config or environ.get(f"{prefix}_CONFIG")
    if path:
        for key, value in read_file(kind, path).items():
            values[key], sources[key] = value, path
    for one in settings:
        for variable in one.variables:
            if environ.get(variable, "") != "":
                values[one.key] = _from_text(one, environ[variable], f"${variable}")
                sources[one.key] = f"${variable}"
                break
        text = getattr(parsed, one.field)
        if text is not None:
            values[one.key], sources[one.key] = _from_text(one, text, one.flags[0]), one.flags[0]
    try:
        return Loaded(msgspec.convert(values, kind), sources, parsed)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigurationError(_explain(str(error), sources)) from error


def read_file(kind: type[Struct], path: str) -> dict[str, Any]:
    """Read a YAML or JSON file of settings for *kind*; keys and values are checked."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_LARGEST_FILE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the configuration {path}: {error}") from error
    if len(text) > _LARGEST_FILE:
        raise ConfigurationError(f"the configuration {path} is larger than {_LARGEST_FILE} bytes")
    document = _parse(path, text)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path}: expected settings (key: value), found {document!r:.40}")
    known = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in document.items():
        if key not in known:
            raise ConfigurationError(f"{path}: unknown setting {key!r}{did_you_mean(key, known)}")
        if value is False and "off" in typing.get_args(_bare(known[key])):
            document[key] = value = "off"  # YAML reads an unquoted off as false
        try:
            msgspec.convert(value, known[key])
        except msgspec.ValidationError as error:
            hint = ' (quote it: a CPU list is a string, "0-1")' if isinstance(value, int) else ""
            raise ConfigurationError(f"{path}: {key}: {error}{hint}") from error
    return document


def did_you_mean(word: object, known: typing.Iterable[str]) -> str:
    """``; did you mean 'groupBy'?``, or the list of known names when none is similar."""
    names = sorted(known)
    by_lower = {name.lower(): name for name in names}
    near = by_lower.get(str(word).lower())
    if near is None:
        matches = difflib.get_close_matches(str(word), names, n=1, cutoff=0.6)
        near = matches[0] if matches else None
    return f"; did you mean {near!r}?" if near else f" (known: {', '.join(names)})"


def schema(kind: type[Struct]) -> dict[str, Any]:
    """The JSON schema of a configuration file of type *kind*; unknown keys are rejected."""
    whole = msgspec.json.schema(kind)
    definitions = whole.pop("$defs", {})
    body = definitions.pop(kind.__name__, {})
    body["additionalProperties"] = False
    return {"$schema": SCHEMA_DIALECT, **body, **({"$defs": definitions} if definitions else {})}


def _parse(path: str, text: str) -> Any:
    if path.endswith(".json"):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"{path} is not valid JSON: {error}") from error
    from drakit.core.yaml import YamlError, load_strictly  # PyYAML costs 1.3 MB

    try:
        return load_strictly(text)
    except YamlError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def add_flags(
    parser: argparse.ArgumentParser,
    kind: type[Struct],
    *,
    prefix: str,
    excluding: type[Struct] | None = None,
    title: str = "settings",
) -> None:
    """Add ``--config`` and a flag for each setting of *kind* to *parser*.

    Settings of *excluding*, whose flags were added before, are skipped.
    """
    if excluding is None:
        parser.add_argument(
            "--config", metavar="FILE", help=f"YAML or JSON file of settings (${prefix}_CONFIG)"
        )
    present = {one.field for one in settings_of(excluding, prefix)} if excluding else set()
    group = parser.add_argument_group(f"{title} (file key, environment variable in brackets)")
    for one in settings_of(kind, prefix):
        if one.field in present:
            continue
        default = "" if one.default in (None, "", ()) else f"; default {_spell(one.default)}"
        group.add_argument(
            *one.flags,
            dest=one.field,
            default=None,
            nargs="?" if one.is_switch else None,
            const="true" if one.is_switch else None,
            metavar=_metavar(one.kind),
            help=f"{one.help} [{one.key}, ${one.variables[-1]}{default}]".replace("%", "%%"),
        )


def _from_text(one: Setting, text: str, source: str) -> Any:
    """Convert the text of a flag or variable; errors name the *source*."""
    bare = _bare(one.kind)
    if bare is bool:
        lowered = text.strip().lower()
        if lowered not in _BOOLEANS:
            raise ConfigurationError(f"{source}: {text!r} is neither true nor false")
        return _BOOLEANS[lowered]
    try:
        return msgspec.to_builtins(msgspec.convert(text, one.kind, strict=False))
    except msgspec.ValidationError as error:
        choices = typing.get_args(bare) if typing.get_origin(bare) is typing.Literal else ()
        hint = did_you_mean(text, choices) if choices else f": {error}"
        raise ConfigurationError(f"{source}: {text!r} is not valid{hint}") from error


_BOOLEANS = {"true": True, "yes": True, "1": True, "on": True}
_BOOLEANS |= {"false": False, "no": False, "0": False, "off": False}


def _explain(error: str, sources: Mapping[str, str]) -> str:
    """Replace msgspec's ``… - at `$.groupBy``` by the source and key of the setting."""
    text, _, path = error.partition(" - at `$.")
    key = path.rstrip("`")
    return f"{sources.get(key, 'configuration')}: {key}: {text}" if key else error


def _meta(hint: Any) -> msgspec.Meta | None:
    return next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, msgspec.Meta)), None)


def _bare(hint: Any) -> Any:
    return typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint


def _metavar(hint: Any) -> str:
    bare = _bare(hint)
    if typing.get_origin(bare) is typing.Literal:
        return "{" + ",".join(map(str, typing.get_args(bare))) + "}"
    return {bool: "BOOL", int: "N", float: "NUMBER"}.get(bare, "TEXT")


def _spell(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def fail(program: str, error: Exception) -> int:
    """Print a configuration error and return the exit code."""
    print(f"{program}: {error}", file=sys.stderr)
    print(f"{program}: '{os.path.basename(program)} --help' lists every setting", file=sys.stderr)
    return 2
