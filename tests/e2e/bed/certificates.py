"""Certificate authority of one run, created with openssl; all TLS connections are verified."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, as files."""

    certificate: Path
    key: Path


class Authority:
    """Certificate authority for server and client certificates, with all files in one directory."""

    def __init__(self, directory: Path) -> None:
        """Create the key and certificate of the authority in ``directory``."""
        directory.mkdir()
        self._directory = directory
        self.certificate = directory / "ca.crt"
        self._key = directory / "ca.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "30", "-subj", "/CN=drakit-e2e", "-keyout", self._key),
            *("-out", self.certificate),
            *("-addext", "keyUsage=critical,keyCertSign,digitalSignature"),
        )

    def service_account_key(self) -> Path:
        """The key that signs service-account tokens."""
        path = self._directory / "service-accounts.key"
        _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
        return path

    def server(self, name: str, addresses: Sequence[str], names: Sequence[str] = ()) -> KeyPair:
        """A serving certificate for these IP addresses and DNS names."""
        alternatives = [f"IP:{address}" for address in addresses] + [f"DNS:{dns}" for dns in names]
        extension = f"extendedKeyUsage=serverAuth\nsubjectAltName={','.join(alternatives)}\n"
        return self._sign(name, f"/CN={name}", extension)

    def client(self, user: str, group: str = "") -> KeyPair:
        """A client certificate for a Kubernetes user, optionally in a group."""
        subject = (f"/O={group}" if group else "") + f"/CN={user}"
        return self._sign(user.replace(":", "-"), subject, "extendedKeyUsage=clientAuth\n")

    def _sign(self, name: str, subject: str, extension: str) -> KeyPair:
        pair = KeyPair(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        request, extensions = self._directory / f"{name}.csr", self._directory / f"{name}.ext"
        extensions.write_text(extension)
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", subject, "-keyout", pair.key, "-out", request),
        )
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key),
            *("-CAcreateserial", "-days", "30", "-extfile", extensions, "-out", pair.certificate),
        )
        return pair


def _openssl(*words: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"openssl {words[0]}: {done.stderr.decode(errors='replace').strip()}")
