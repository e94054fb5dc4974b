"""TLS contexts for connections to the API server."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

from drakit.wire.kube.access.credentials import Certificate
from drakit.wire.kube.errors import ConfigError, CredentialError


@dataclass(frozen=True, slots=True)
class Trust:
    """Trusted certificate authorities: a PEM file, PEM data, or by default those of the system."""

    file: str = ""
    data: str = ""
    insecure: bool = False
    """Accept any certificate (``insecure-skip-tls-verify``)."""

    def install(self, context: ssl.SSLContext) -> None:
        """Load the authorities; raises :class:`ConfigError`."""
        what = f"certificate authority {self.file}" if self.file else "certificate-authority-data"
        try:
            if self.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            elif self.file or self.data:
                context.load_verify_locations(cafile=self.file or None, cadata=self.data or None)
            else:
                context.load_default_certs()
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise ConfigError(f"{what}: {error}") from error

    def version(self) -> object:
        """A value that changes when the file does."""
        try:
            status = os.stat(self.file) if self.file else None
        except OSError:
            return None
        return (status.st_ino, status.st_mtime_ns) if status else None


class TlsContexts:
    """The TLS context, until authority or certificate change."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._key: object = None
        self._context: ssl.SSLContext | None = None

    def context(self, certificate: Certificate | None) -> ssl.SSLContext:
        """A client context with *certificate*, if any."""
        key = (self._trust.version(), certificate)
        if self._context is None or key != self._key:
            self._context, self._key = make_context(self._trust, certificate), key
        return self._context


def make_context(trust: Trust, certificate: Certificate | None) -> ssl.SSLContext:
    """A client context that trusts only the given authorities.

    ``ssl.create_default_context`` would load the system's store: a megabyte of memory, and every
    public authority could issue a certificate for the cluster.
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
                raise CredentialError(f"client certificate or key cannot be used: {error}") from error
    return context
