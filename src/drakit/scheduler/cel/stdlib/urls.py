"""URLs: Kubernetes' ``url()``, by the rules of Go's ``net/url``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_plus

from drakit.scheduler.cel.errors import CelRuntimeError
from drakit.scheduler.cel.values import Overloads, accepts

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_PATH_SAFE: Final = "$&+,/:;=@!'()*[]%"


@dataclass(frozen=True, slots=True)
class Url:
    """The parts of a URL."""

    scheme: str
    host: str
    path: str
    query: str
    rest: str = ""

    type_name = "kubernetes.URL"

    def hostname(self) -> str:
        """The host without port and brackets."""
        host = self.host
        if host.startswith("["):
            return host[1 : host.index("]")]
        return host.rpartition(":")[0] if ":" in host else host

    def port(self) -> str:
        """The port, or an empty string."""
        after = self.host.rpartition("]")[2]
        return after.rpartition(":")[2] if ":" in after else ""


def parse_url(text: str) -> Url:
    """Parse an absolute URL or path. Raises :class:`CelRuntimeError`."""
    if not text:
        raise _bad(text, "empty url")
    if any(c < " " or c == "\x7f" for c in text):
        raise _bad(text, "invalid control character in URL")
    body, _, fragment = text.partition("#")
    match = _SCHEME.match(body)
    if match is None and re.match(r"[^/?]*:", body) and not body.startswith(("/", "?")):
        first = body.partition("/")[0]
        if first.startswith(":"):
            raise _bad(text, "missing protocol scheme")
    scheme = match[1].lower() if match else ""
    rest = body[match.end() :] if match else body
    rest, _, query = rest.partition("?")
    if not rest.startswith("/"):
        if scheme:
            return Url(scheme, "", "", query, rest + "#" + fragment)
        raise _bad(text, "invalid URI for request")
    host = ""
    if (scheme or not rest.startswith("///")) and rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        host = _host(text, authority)
        rest = slash + path
    if _ESCAPE.search(rest):
        raise _bad(text, "invalid URL escape")
    return Url(scheme, host, rest, query, fragment)


def _bad(text: str, reason: str) -> CelRuntimeError:
    return CelRuntimeError(f'URL parse error during conversion from string: parse "{text}": {reason}')


def _host(text: str, authority: str) -> str:
    host = authority.rpartition("@")[2]
    if host.startswith("["):
        closing = host.find("]")
        if closing < 0:
            raise _bad(text, "missing ']' in host")
        port = host[closing + 1 :]
    else:
        if re.search(r"[ <>\"^`{}|\\]", host):
            raise _bad(text, "invalid character in host name")
        colon = host.rfind(":")
        port = host[colon:] if colon >= 0 else ""
    if port and not re.fullmatch(r":[0-9]*", port, re.ASCII):
        raise _bad(text, f'invalid port "{port}" after host')
    return host


def _query(url: Url) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pair in url.query.split("&"):
        if not pair or ";" in pair:
            continue
        key, _, value = pair.partition("=")
        if _ESCAPE.search(key) or _ESCAPE.search(value):
            continue
        found.setdefault(unquote_plus(key), []).append(unquote_plus(value))
    return found


OVERLOADS: Final[Overloads] = {
    "url": [(parse_url, (str,))],
    "isURL": [(accepts(parse_url), (str,))],
    "getScheme": [(lambda url: url.scheme, (Url,))],
    "getHost": [(lambda url: url.host, (Url,))],
    "getHostname": [(Url.hostname, (Url,))],
    "getPort": [(Url.port, (Url,))],
    "getEscapedPath": [(lambda url: quote(url.path, safe=_PATH_SAFE), (Url,))],
    "getQuery": [(_query, (Url,))],
}
