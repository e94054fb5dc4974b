"""Exec credential plugins (``client.authentication.k8s.io`` v1 and v1beta1)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from drakit.wire.kube.access.credentials import Certificate, Credential
from drakit.wire.kube.errors import CredentialError

API_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_PLUGIN_SECONDS: Final = 60.0
_RENEW_BEFORE: Final = 10.0
"""Seconds before its expiry at which a credential is renewed."""


class _ExecStatus(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    status: _ExecStatus | None = None


@dataclass(frozen=True, slots=True)
class ExecCommand:
    """Command of an exec plugin."""

    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    api_version: str = API_VERSIONS[0]
    cluster: Mapping[str, Any] | None = None
    """Server and CA for the plugin, if ``provideClusterInfo`` is set."""
    install_hint: str = ""


class ExecPlugin:
    """Runs the plugin when there is no credential, it expired, or the server rejected it."""

    def __init__(self, command: ExecCommand, *, clock: Callable[[], float] = time.time) -> None:
        self._command = command
        self._clock = clock
        self._held: Credential | None = None
        self._expires: float | None = None
        self._lock = asyncio.Lock()  # one run at a time, even with concurrent requests

    async def current(self) -> Credential:
        """The plugin's credential, while it is valid."""
        async with self._lock:
            expired = self._expires is not None and self._clock() >= self._expires - _RENEW_BEFORE
            if self._held is None or expired:
                self._held, self._expires = read_answer(await self._run(), self._command)
            return self._held

    def rejected(self) -> None:
        """Run the plugin again before the next request."""
        self._held = None

    async def _run(self) -> bytes:
        command = self._command
        interactive = sys.stdin is not None and sys.stdin.isatty()
        asked: dict[str, Any] = {"interactive": interactive}
        if command.cluster:
            asked["cluster"] = dict(command.cluster)
        request = {"apiVersion": command.api_version, "kind": "ExecCredential", "spec": asked}
        environment = {
            **os.environ,
            **command.environment,
            "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode(),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                command.command,
                *command.arguments,
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                env=environment,
            )
        except OSError as error:
            hint = f" {command.install_hint}" if command.install_hint else ""
            raise CredentialError(
                f"exec plugin {command.command!r} cannot be started: {error.strerror}.{hint}"
            ) from error
        try:
            async with asyncio.timeout(_PLUGIN_SECONDS):
                output, _ = await process.communicate()
        except TimeoutError as error:
            raise CredentialError(
                f"exec plugin {command.command!r} did not finish within {_PLUGIN_SECONDS:.0f} s"
            ) from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode != 0:
            raise CredentialError(
                f"exec plugin {command.command!r} ended with status {process.returncode}; "
                "see its message on standard error"
            )
        return output


def read_answer(output: bytes, command: ExecCommand) -> tuple[Credential, float | None]:
    """Credential and expiry (seconds since the epoch) in the plugin's output.

    Raises :class:`CredentialError`.
    """
    name = f"exec plugin {command.command!r}"
    try:
        answer = msgspec.json.decode(output, type=_ExecCredential)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CredentialError(f"{name} did not print a valid ExecCredential: {error}") from error
    if answer.api_version != command.api_version or answer.kind != "ExecCredential":
        raise CredentialError(
            f"{name} returned {answer.api_version} {answer.kind}, "
            f"the kubeconfig requires {command.api_version} ExecCredential"
        )
    status = answer.status or _ExecStatus()
    chain, key = status.client_certificate_data.encode(), status.client_key_data.encode()
    if bool(chain) != bool(key):
        raise CredentialError(f"{name} returned a certificate without key or a key without certificate")
    if not status.token and not chain:
        raise CredentialError(f"{name} returned neither a token nor a client certificate")
    certificate = Certificate(chain, key) if chain else None
    return Credential(status.token or None, certificate), _expiry(status, name)


def _expiry(status: _ExecStatus, name: str) -> float | None:
    if status.expiration_timestamp is None:
        return None
    import datetime as dt  # only for plugins that set an expiry

    try:
        moment = msgspec.convert(status.expiration_timestamp, dt.datetime, strict=False)
    except msgspec.ValidationError as error:
        raise CredentialError(f"{name} returned an expiry that is not an RFC 3339 time: {error}") from error
    if moment.tzinfo is None:
        raise CredentialError(f"{name} returned an expiry without time zone")
    return moment.timestamp()
