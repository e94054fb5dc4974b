"""Client credentials: bearer tokens and certificates, read again when they change."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from drakit.wire.kube.errors import CredentialError

# The kubelet rotates a projected token at 80 % of its lifetime, which is at least 10 minutes.
TOKEN_FRESH_SECONDS: Final = 60.0
_LARGEST_TOKEN: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Certificate:
    """A client certificate with its key, both PEM."""

    certificate: bytes
    key: bytes

    @contextlib.contextmanager
    def files(self) -> Iterator[tuple[str, str]]:
        """Paths of both for OpenSSL, in memory: the key is never written to a disk."""
        with contextlib.ExitStack() as stack:
            paths = []
            for name, content in (("certificate", self.certificate), ("key", self.key)):
                descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
                stack.callback(os.close, descriptor)
                view = memoryview(content)
                while view:
                    view = view[os.write(descriptor, view) :]
                paths.append(f"/proc/self/fd/{descriptor}")
            yield paths[0], paths[1]


@dataclass(frozen=True, slots=True)
class Credential:
    """A token, a client certificate, both or neither."""

    token: str | None = None
    certificate: Certificate | None = None

    def __repr__(self) -> str:
        held = [name for name in ("token", "certificate") if getattr(self, name) is not None]
        return f"Credential({' and '.join(held) or 'anonymous'})"


class CredentialSource(Protocol):
    """Provides the credential for each request."""

    async def current(self) -> Credential:
        """The credential to use now. Raises :class:`CredentialError`."""
        ...

    def rejected(self) -> None:
        """Called after a 401: get a new credential the next time."""
        ...


class Fixed:
    """A credential that never changes."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def current(self) -> Credential:
        """The credential."""
        return self._credential

    def rejected(self) -> None:
        """No effect."""


class TokenFile:
    """A token file that is rotated, such as a projected token.

    Read at most once a minute, and again after a 401.
    """

    def __init__(
        self,
        path: str,
        *,
        certificate: Certificate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._certificate = certificate
        self._clock = clock
        self._held: Credential | None = None
        self._fresh_until = 0.0

    async def current(self) -> Credential:
        """The token; the previous one if the file cannot be read."""
        if self._held is None or self._clock() >= self._fresh_until:
            try:
                self._held = Credential(self._read(), self._certificate)
            except CredentialError:
                if self._held is None:
                    raise
            self._fresh_until = self._clock() + TOKEN_FRESH_SECONDS
        return self._held

    def rejected(self) -> None:
        """Read the file before the next request."""
        self._fresh_until = 0.0

    def _read(self) -> str:
        try:
            with open(self._path, "rb") as file:
                data = file.read(_LARGEST_TOKEN)
        except OSError as error:
            raise CredentialError(f"token file {self._path}: {error.strerror}") from error
        token = data.decode("ascii", "replace").strip()
        if not token or not all(" " < character < "\x7f" for character in token):
            raise CredentialError(f"token file {self._path} does not contain a valid token")
        return token
