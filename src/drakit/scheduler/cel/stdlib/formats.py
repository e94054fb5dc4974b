"""Named formats of Kubernetes: ``format.dns1123Label().validate(…)`` and others."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from drakit.scheduler.cel.errors import CelRuntimeError
from drakit.scheduler.cel.stdlib import urls
from drakit.scheduler.cel.values import NONE, OptionalValue, Overloads

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED: Final = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"


@dataclass(frozen=True, slots=True)
class Format:
    """A named format; *validate* returns the errors in a string."""

    name: str
    validate: Callable[[str], list[str]]

    type_name = "kubernetes.NamedFormat"


def _rule(pattern: str, max_length: int, what: str) -> Callable[[str], list[str]]:
    expression = re.compile(pattern, re.ASCII)

    def errors(text: str) -> list[str]:
        found = []
        if len(text) > max_length:
            found.append(f"must be no more than {max_length} bytes")
        if not expression.fullmatch(text):
            found.append(f"{what} must match {pattern}")
        return found

    return errors


def _prefix(rule: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """The rule for generated names: a suffix follows a trailing dash."""
    return lambda text: rule(text[:-1] + "a" if text.endswith("-") and len(text) > 1 else text)


def _qualified_name(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    found: list[str] = []
    if slash:
        if not prefix:
            found.append("prefix part must be non-empty")
        elif _SUBDOMAIN(prefix):
            found.append("prefix part must be a DNS subdomain")
        if "/" in prefix:
            return ["a qualified name has at most one slash"]
    if not name:
        found.append("name part must be non-empty")
    elif len(name) > 63 or not re.fullmatch(_QUALIFIED, name, re.ASCII):
        found.append("name part must consist of alphanumeric characters, '-', '_' or '.'")
    return found


def _uri(text: str) -> list[str]:
    try:
        urls.parse_url(text)
    except CelRuntimeError as error:
        return [str(error)]
    return []


def _matching(pattern: str, error: str) -> Callable[[str], list[str]]:
    expression = re.compile(pattern, re.ASCII)
    return lambda text: [] if expression.fullmatch(text) else [error]


def _byte(text: str) -> list[str]:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return ["invalid base64"]
    return []


def _date(text: str) -> list[str]:
    try:
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text, re.ASCII):
            dt.date.fromisoformat(text)
            return []
    except ValueError:
        pass
    return ["invalid date"]


def _datetime(text: str) -> list[str]:
    pattern = (
        r"([0-9]{4}-[0-9]{2}-[0-9]{2})[tT]([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)"
        r"([.][0-9]+)?([zZ]|[+-][0-9]{2}:[0-9]{2})"
    )
    match = re.fullmatch(pattern, text, re.ASCII)
    return ["invalid datetime"] if match is None or _date(match[1]) else []


_DNS_LABEL: Final = _rule(_LABEL, 63, "a DNS-1123 label")
_SUBDOMAIN: Final = _rule(rf"{_LABEL}(\.{_LABEL})*", 253, "a DNS-1123 subdomain")
_LABEL_VALUE: Final = _matching(
    rf"(?=.{{0,63}}\Z)({_QUALIFIED})?",
    "a valid label must be an empty string or consist of alphanumeric characters",
)
_UUID: Final = _matching(
    r"(?i:[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12})", "does not match the UUID format"
)
_DNS1035: Final = _rule(r"[a-z]([-a-z0-9]*[a-z0-9])?", 63, "a DNS-1035 label")

FORMATS: Final[dict[str, Format]] = {
    name: Format(shown, rule)
    for name, shown, rule in (
        ("dns1123Label", "DNS1123Label", _DNS_LABEL),
        ("dns1123Subdomain", "DNS1123Subdomain", _SUBDOMAIN),
        ("dns1035Label", "DNS1035Label", _DNS1035),
        ("qualifiedName", "QualifiedName", _qualified_name),
        ("dns1123LabelPrefix", "DNS1123LabelPrefix", _prefix(_DNS_LABEL)),
        ("dns1123SubdomainPrefix", "DNS1123SubdomainPrefix", _prefix(_SUBDOMAIN)),
        ("dns1035LabelPrefix", "DNS1035LabelPrefix", _prefix(_DNS1035)),
        ("labelValue", "LabelValue", _LABEL_VALUE),
        ("uri", "URI", _uri),
        ("uuid", "uuid", _UUID),
        ("byte", "byte", _byte),
        ("date", "date", _date),
        ("datetime", "datetime", _datetime),
    )
}


def _named(name: str) -> OptionalValue:
    return OptionalValue(True, FORMATS[name]) if name in FORMATS else NONE


def _validate(found: Format, text: str) -> OptionalValue:
    errors = found.validate(text)
    return OptionalValue(True, errors) if errors else NONE


OVERLOADS: Final[Overloads] = {"format.named": [(_named, (str,))], "validate": [(_validate, (Format, str))]}
