"""Address of the API server: URL parsing and quoting without the memory cost of ``urllib.parse``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from drakit.wire.kube.errors import ConfigError

_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._")
_ADDRESS = frozenset("ABCDEFabcdef0123456789:.")
_PORTS = {"https": 443, "http": 80}


def quote(text: str) -> str:
    """Percent-encode everything but the unreserved characters of RFC 3986."""
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in text.encode("utf-8"))


def query(parameters: Iterable[tuple[str, str]]) -> str:
    """``?a=b&c=d`` of all parameters with a value; may be empty."""
    pairs = "&".join(f"{quote(key)}={quote(value)}" for key, value in parameters if value)
    return f"?{pairs}" if pairs else ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Scheme, host, port and path prefix of an API server."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Parse a URL such as ``https://[fd00::1]:6443/k8s``.

        Raises :class:`ConfigError` for other schemes, user information, queries and fragments.
        """
        scheme, separator, rest = url.partition("://")
        scheme = scheme.lower()
        if not separator or scheme not in _PORTS:
            raise ConfigError(f"server {url!r} is not an http:// or https:// URL")
        authority, slash, path = rest.partition("/")
        if not authority or any(mark in rest for mark in "@?#"):
            raise ConfigError(f"server {url!r} must be scheme://host[:port][/prefix]")
        host, port = cls._host_and_port(authority, url)
        allowed = _ADDRESS if authority.startswith("[") else _NAME
        if not set(host) <= allowed or any(not " " < character <= "~" for character in rest):
            raise ConfigError(f"server {url!r} has an invalid character")
        return cls(scheme, host, port or _PORTS[scheme], (slash + path).rstrip("/"))

    @staticmethod
    def _host_and_port(authority: str, url: str) -> tuple[str, int]:
        if authority.startswith("["):
            host, bracket, tail = authority[1:].partition("]")
            if not bracket or (tail and not tail.startswith(":")):
                raise ConfigError(f"server {url!r} has a malformed IPv6 address")
            port = tail[1:]
        else:
            host, _, port = authority.partition(":")
        if not host:
            raise ConfigError(f"server {url!r} has no host")
        if not port:
            return host, 0
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ConfigError(f"server {url!r} has no valid port")
        return host, int(port)

    @property
    def secure(self) -> bool:
        """Whether TLS is used."""
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """Host and port for the ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"
