"""TLS towards the API server: which certificates we believe, and which one we show."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

from drakit.wire.kube.access.credentials import Certificate
from drakit.wire.kube.errors import ConfigError, CredentialError


@dataclass(frozen=True, slots=True)
class AuthorityFile:
    """Believe only the authorities in a PEM file, which somebody may replace."""

    path: str

    def install(self, context: ssl.SSLContext) -> None:
        """Load the authorities as they are now."""
        try:
            context.load_verify_locations(cafile=self.path)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"certificate authority {self.path}: {error}") from error

    def version(self) -> object:
        """Changes when the file does."""
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns


@dataclass(frozen=True, slots=True)
class AuthorityData:
    """Believe only the authorities in this PEM text."""

    pem: str

    def install(self, context: ssl.SSLContext) -> None:
        """Load the authorities."""
        try:
            context.load_verify_locations(cadata=self.pem)
        except (ValueError, ssl.SSLError) as error:
            raise ConfigError(
                f"certificate-authority-data is no PEM certificate: {error}"
            ) from error

    def version(self) -> object:
        """Never changes."""
        return None


@dataclass(frozen=True, slots=True)
class SystemTrust:
    """Believe the authorities of this system: what a kubeconfig without authority means."""

    def install(self, context: ssl.SSLContext) -> None:
        """Load the system's authorities."""
        context.load_default_certs()

    def version(self) -> object:
        """Never looked at again."""
        return None


@dataclass(frozen=True, slots=True)
class NoTrust:
    """Believe anybody, because the kubeconfig says ``insecure-skip-tls-verify``."""

    def install(self, context: ssl.SSLContext) -> None:
        """Switch verification off."""
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE

    def version(self) -> object:
        """Never changes."""
        return None


Trust = AuthorityFile | AuthorityData | SystemTrust | NoTrust


class TlsContexts:
    """Makes the context for a connection, and keeps it until authority or certificate change."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._key: object = None
        self._context: ssl.SSLContext | None = None

    def context(self, certificate: Certificate | None) -> ssl.SSLContext:
        """A verifying client context that shows *certificate*, if any."""
        key = (self._trust.version(), certificate)
        if self._context is None or key != self._key:
            self._context, self._key = make_context(self._trust, certificate), key
        return self._context


def make_context(trust: Trust, certificate: Certificate | None) -> ssl.SSLContext:
    """A client context with only the named authorities in it.

    ``ssl.create_default_context`` would load the system's whole store: a megabyte of memory, and
    every public authority could then vouch for the cluster.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    trust.install(context)
    if certificate is not None:
        with certificate.files() as (certificate_path, key_path):
            try:
                # The empty password makes OpenSSL fail on an encrypted key instead of asking.
                context.load_cert_chain(certificate_path, key_path, password="")
            except (OSError, ssl.SSLError) as error:
                raise CredentialError(
                    f"client certificate or key cannot be used: {error}"
                ) from error
    return context
