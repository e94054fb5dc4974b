from __future__ import annotations

import base64
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from drakit.wire.kube import ConfigError, CredentialError, find_cluster, in_cluster
from drakit.wire.kube.access.credentials import Certificate, Credential, Fixed, TokenFile
from drakit.wire.kube.access.exec_plugin import ExecPlugin
from drakit.wire.kube.access.kubeconfig import load
from drakit.wire.kube.access.tls import Trust

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    for name, content in (("token", "t"), ("ca.crt", "pem"), ("namespace", "kube-system\n")):
        (tmp_path / name).write_text(content)
    return tmp_path


async def test_in_cluster(mount: Path) -> None:
    cluster = in_cluster(IN_POD, mount=str(mount))
    assert str(cluster.endpoint) == "https://10.96.0.1"
    assert cluster.namespace == "kube-system"
    assert cluster.trust == Trust(file=str(mount / "ca.crt"))
    assert isinstance(cluster.credentials, TokenFile)
    assert (await cluster.credentials.current()).token == "t"


def test_in_cluster_over_ipv6(mount: Path) -> None:
    environ = IN_POD | {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert in_cluster(environ, mount=str(mount)).endpoint.authority == "[fd00::1]:6443"


def test_in_cluster_elsewhere(mount: Path) -> None:
    with pytest.raises(ConfigError, match="not in a pod"):
        in_cluster({}, mount=str(mount))
    (mount / "token").unlink()
    with pytest.raises(ConfigError, match="automountServiceAccountToken"):
        in_cluster(IN_POD, mount=str(mount))


def test_a_missing_namespace_is_the_default(mount: Path) -> None:
    (mount / "namespace").unlink()
    assert in_cluster(IN_POD, mount=str(mount)).namespace == "default"


# -- kubeconfig -------------------------------------------------------------------------------------


def kubeconfig(cluster: Any = None, user: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "k", "cluster": {"server": "https://h:6443"} | (cluster or {})}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
        "preferences": {},
    } | more


def write(path: Path, document: Any) -> str:
    path.write_text(yaml.safe_dump(document))
    return str(path)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_token(tmp_path: Path) -> None:
    cluster = load([write(tmp_path / "c", kubeconfig(user={"token": "t"}))])
    assert await cluster.credentials.current() == Credential("t")
    assert cluster.trust == Trust()
    assert cluster.namespace == "n"


async def test_json_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text(json.dumps(kubeconfig(user={"token": "t"})))
    assert await load([str(path)]).credentials.current() == Credential("t")


async def test_a_token_file_wins_over_a_token(tmp_path: Path) -> None:
    (tmp_path / "tok").write_text("file")
    user = {"token": "t", "tokenFile": "tok"}
    cluster = load([write(tmp_path / "c", kubeconfig(user=user))])
    assert (await cluster.credentials.current()).token == "file"


async def test_certificates_inline_and_beside(tmp_path: Path) -> None:
    (tmp_path / "crt").write_bytes(b"C")
    (tmp_path / "key").write_bytes(b"K")
    beside = {"client-certificate": "crt", "client-key": str(tmp_path / "key")}
    inline = {"client-certificate-data": b64(b"C2"), "client-key-data": b64(b"K2")}
    first = load([write(tmp_path / "c", kubeconfig(user=beside))])
    assert await first.credentials.current() == Credential(None, Certificate(b"C", b"K"))
    both = load([write(tmp_path / "c", kubeconfig(user=beside | inline))])
    assert await both.credentials.current() == Credential(None, Certificate(b"C2", b"K2"))


def test_authorities(tmp_path: Path) -> None:
    beside = {"certificate-authority": "ca.pem"}
    inline = {"certificate-authority-data": b64(b"PEM")}
    first = load([write(tmp_path / "c", kubeconfig(beside))])
    assert first.trust == Trust(file=str(tmp_path / "ca.pem"))
    assert load([write(tmp_path / "c", kubeconfig(beside | inline))]).trust == Trust(data="PEM")


def test_skipping_verification_works_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        cluster = load([write(tmp_path / "c", kubeconfig({"insecure-skip-tls-verify": True}))])
    assert cluster.trust == Trust(insecure=True)
    assert "insecure-skip-tls-verify" in caplog.text


def test_server_name(tmp_path: Path) -> None:
    cluster = load([write(tmp_path / "c", kubeconfig({"tls-server-name": "api"}))])
    assert cluster.server_name == "api"


def test_nulls_count_as_absent(tmp_path: Path) -> None:
    document = kubeconfig({"certificate-authority": None}, {"exec": None, "token": None})
    document["users"].append({"name": "other", "user": None})
    assert isinstance(load([write(tmp_path / "c", document)]).credentials, Fixed)


async def test_exec(tmp_path: Path) -> None:
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "status": {"token": "from-exec"},
    }
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!{sys.executable}\nprint({json.dumps(answer)!r})\n")
    plugin.chmod(0o755)
    wanted = {
        "command": "./plugin",
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "args": None,
        "env": [{"name": "A", "value": "b"}],
        "provideClusterInfo": True,
        "interactiveMode": "Never",
    }
    cluster = load([write(tmp_path / "c", kubeconfig(user={"exec": wanted}))])
    assert isinstance(cluster.credentials, ExecPlugin)
    assert (await cluster.credentials.current()).token == "from-exec"


def test_several_files_first_wins(tmp_path: Path) -> None:
    one = write(tmp_path / "1", {"current-context": "c", "contexts": kubeconfig()["contexts"]})
    two = write(tmp_path / "2", kubeconfig({"server": "https://two"}, {"token": "2"}))
    three = write(tmp_path / "3", kubeconfig({"server": "https://three"}) | {"current-context": "x"})
    cluster = load([str(tmp_path / "absent"), one, two, three])
    assert str(cluster.endpoint) == "https://two"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "no current-context"),
        ({"current-context": "x"}, "no context 'x'"),
        (kubeconfig() | {"clusters": []}, "no cluster 'k'"),
        (kubeconfig() | {"users": []}, "no user 'u'"),
        (kubeconfig({"server": ""}), "has no server"),
        (kubeconfig({"server": "h"}), "http"),
        (kubeconfig({"proxy-url": "http://p"}), "proxy-url"),
        (kubeconfig({"certificate-authority-data": "%"}), "not valid base64"),
        (kubeconfig(user={"client-certificate-data": b64(b"x")}), "must both be set"),
        (kubeconfig(user={"client-certificate": "x", "client-key": "y"}), "No such file"),
        (kubeconfig(user={"username": "u"}), "basic"),
        (kubeconfig(user={"auth-provider": {"name": "gcp"}}), "auth-provider"),
        (
            kubeconfig(
                user={"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1alpha1"}}
            ),
            "v1alpha1",
        ),
        (kubeconfig() | {"clusters": 5}, "clusters"),
        ("just text", "Expected `object`"),
    ],
)
def test_errors_name_the_problem(tmp_path: Path, document: Any, message: str) -> None:
    path = write(tmp_path / "c", document)
    with pytest.raises(ConfigError, match=message):
        load([path])


@given(st.binary(max_size=200) | st.text(max_size=80).map(str.encode))
def test_any_file_is_a_cluster_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("k") / "c"
    path.write_bytes(data)
    with pytest.raises((ConfigError, CredentialError)):
        load([str(path)])


# -- which one ----------------------------------------------------------------------------------------


def test_the_first_source_is_used(mount: Path, tmp_path: Path) -> None:
    home = tmp_path / "home" / ".kube"
    home.mkdir(parents=True)
    given_ = write(tmp_path / "given", kubeconfig({"server": "https://given"}))
    named = write(tmp_path / "named", kubeconfig({"server": "https://named"}))
    write(home / "config", kubeconfig({"server": "https://home"}))
    environ = IN_POD | {"KUBECONFIG": named, "HOME": str(home.parent)}

    def found(kubeconfig: str | None = None) -> str:
        return find_cluster(kubeconfig=kubeconfig, environ=environ, mount=str(mount)).endpoint.host

    assert found(given_) == "given"
    assert found() == "named"
    del environ["KUBECONFIG"]
    assert found() == "10.96.0.1"
    del environ["KUBERNETES_SERVICE_HOST"]
    assert found() == "home"
    environ["HOME"] = "/nonexistent"
    with pytest.raises(ConfigError, match="no cluster: neither"):
        found()


def test_a_context_can_be_chosen(tmp_path: Path) -> None:
    document = kubeconfig()
    document["clusters"].append({"name": "k2", "cluster": {"server": "https://second"}})
    document["contexts"].append({"name": "c2", "context": {"cluster": "k2"}})
    path = write(tmp_path / "c", document)
    cluster = find_cluster(kubeconfig=path, context="c2", environ={})
    assert cluster.endpoint.host == "second"
    assert cluster.namespace == "default"


def test_the_daemon_stays_light() -> None:
    """In-cluster, neither YAML nor any of the heavy library modules is imported."""
    program = """
import sys
from drakit.wire.kube import Client, Reflector, in_cluster
heavy = ("yaml", "http.client", "urllib.request", "urllib.parse", "email", "rich", "unittest",
         "multiprocessing", "pathlib")
print([name for name in heavy if name in sys.modules])
"""

    result = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == "[]", result.stdout
