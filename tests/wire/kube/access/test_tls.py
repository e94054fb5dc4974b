"""TLS for real: a server with a certificate of our own authority."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from drakit.testing.apiserver import FakeApiServer
from drakit.wire.kube import (
    Client,
    ClusterAccess,
    ConfigError,
    ConnectionFailedError,
    CredentialError,
    Endpoint,
)
from drakit.wire.kube.access.credentials import Certificate, Credential, Fixed
from drakit.wire.kube.access.kubeconfig import load
from drakit.wire.kube.access.tls import TlsContexts, Trust, make_context

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="needs the openssl command to make certificates"
)


class Authority:
    """A certificate authority in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.name = name
        self.path = directory / f"{name}.crt"
        self.key = directory / f"{name}.key"
        self._openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
            f"-subj /CN={name} -keyout {self.key} -out {self.path}"
        )

    @staticmethod
    def _openssl(command: str) -> None:
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True)

    def issue(self, name: str, alternative: str = "") -> tuple[Path, Path]:
        certificate, key = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        request, extensions = self.directory / "r.csr", self.directory / "ext"
        extensions.write_text(f"subjectAltName={alternative}\n" if alternative else "")
        self._openssl(
            "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "
            f"-subj /O=system:nodes/CN={name} -keyout {key} -out {request}"
        )
        self._openssl(
            f"x509 -req -in {request} -CA {self.path} -CAkey {self.key} -CAcreateserial -days 2 "
            f"-out {certificate} -extfile {extensions}"
        )
        return certificate, key


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"), "cluster")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "stranger")


def server_context(authority: Authority, alternative: str) -> ssl.SSLContext:
    certificate, key = authority.issue(f"server-{alternative.replace(':', '-')}", alternative)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


async def version_from(
    server: FakeApiServer,
    trust: Trust,
    *,
    server_name: str | None = None,
    certificate: Certificate | None = None,
) -> str:
    cluster = ClusterAccess(
        Endpoint.parse(server.url), Fixed(Credential(None, certificate)), trust, server_name
    )
    async with Client(cluster) as client:
        version: str = (await client.get_document("/version"))["gitVersion"]
        return version


async def test_our_authority_is_trusted(authority: Authority) -> None:
    context = server_context(authority, "IP:127.0.0.1")
    async with FakeApiServer(tls=context, authority=str(authority.path)) as server:
        assert await version_from(server, Trust(file=str(authority.path)))
        assert await version_from(server, Trust(data=authority.path.read_text()))
        async with Client(server.cluster()) as client:
            await client.get_document("/version")


async def test_other_authorities_are_not_trusted(authority: Authority, stranger: Authority) -> None:
    async with FakeApiServer(tls=server_context(stranger, "IP:127.0.0.1")) as server:
        for trust in (Trust(file=str(authority.path)), Trust()):
            with pytest.raises(ConnectionFailedError, match="not trusted"):
                await version_from(server, trust)


async def test_verification_can_be_switched_off(stranger: Authority) -> None:
    async with FakeApiServer(tls=server_context(stranger, "DNS:elsewhere")) as server:
        assert await version_from(server, Trust(insecure=True))


async def test_the_name_must_fit(authority: Authority) -> None:
    async with FakeApiServer(tls=server_context(authority, "DNS:api.cluster")) as server:
        trust = Trust(file=str(authority.path))
        with pytest.raises(ConnectionFailedError, match="tls-server-name"):
            await version_from(server, trust)
        assert await version_from(server, trust, server_name="api.cluster")


async def test_client_certificates(authority: Authority, stranger: Authority) -> None:
    context = server_context(authority, "IP:127.0.0.1")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.path)
    certificate, key = authority.issue("node-agent")
    wrong = stranger.issue("node-agent")
    trust = Trust(file=str(authority.path))
    async with FakeApiServer(tls=context) as server:
        good = Certificate(certificate.read_bytes(), key.read_bytes())
        assert await version_from(server, trust, certificate=good)
        bad = Certificate(wrong[0].read_bytes(), wrong[1].read_bytes())
        for presented in (None, bad):
            with pytest.raises(ConnectionFailedError):
                await version_from(server, trust, certificate=presented)


async def test_the_kubeconfig_of_the_fake_works_over_tls(authority: Authority, tmp_path: Path) -> None:
    context = server_context(authority, "IP:127.0.0.1")
    async with FakeApiServer(tls=context, authority=str(authority.path), tokens={"t"}) as server:
        path = tmp_path / "kubeconfig"
        path.write_text(server.kubeconfig())
        async with Client(load([str(path)])) as client:
            await client.get_document("/version")


async def test_a_replaced_authority_is_noticed(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    mounted = tmp_path / "ca.crt"
    mounted.write_bytes(stranger.path.read_bytes())
    contexts = TlsContexts(Trust(file=str(mounted)))
    first = contexts.context(None)
    assert contexts.context(None) is first
    replacement = tmp_path / "new"
    replacement.write_bytes(authority.path.read_bytes())
    replacement.replace(mounted)
    second = contexts.context(None)
    assert second is not first
    assert [c["subject"] for c in second.get_ca_certs()] != [c["subject"] for c in first.get_ca_certs()]


def test_only_the_cluster_is_in_the_context(authority: Authority) -> None:
    context = make_context(Trust(file=str(authority.path)), None)
    assert len(context.get_ca_certs()) == 1
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_unusable_files_are_named(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no/such/file"):
        make_context(Trust(file="/no/such/file"), None)
    with pytest.raises(ConfigError, match="certificate-authority-data"):
        make_context(Trust(data="nonsense"), None)
    with pytest.raises(CredentialError, match="client certificate"):
        make_context(Trust(file=str(authority.path)), Certificate(b"x", b"y"))
    encrypted = tmp_path / "encrypted.key"
    subprocess.run(
        ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", authority.key, "-out", encrypted],
        check=True,
        capture_output=True,
    )
    pair = Certificate(authority.path.read_bytes(), encrypted.read_bytes())
    with pytest.raises(CredentialError, match="client certificate"):
        make_context(Trust(file=str(authority.path)), pair)
