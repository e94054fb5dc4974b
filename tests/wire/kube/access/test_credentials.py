from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from drakit.wire.kube import CredentialError
from drakit.wire.kube.access.credentials import Certificate, Credential, Fixed, TokenFile
from drakit.wire.kube.access.exec_plugin import API_VERSIONS, ExecCommand, ExecPlugin, read_answer


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_token_file_is_read_once_a_minute(tmp_path: Path) -> None:
    path, clock = tmp_path / "token", Clock()
    path.write_text("one\n")
    source = TokenFile(str(path), clock=clock)
    assert (await source.current()).token == "one"
    path.write_text("two")
    clock.now += 59
    assert (await source.current()).token == "one"
    clock.now += 2
    assert (await source.current()).token == "two"


async def test_a_rejected_token_is_read_again_at_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    source = TokenFile(str(path), clock=Clock())
    assert (await source.current()).token == "one"
    path.write_text("two")
    source.rejected()
    assert (await source.current()).token == "two"


async def test_a_token_is_kept_while_its_file_is_missing(tmp_path: Path) -> None:
    path, clock = tmp_path / "token", Clock()
    path.write_text("one")
    source = TokenFile(str(path), clock=clock)
    assert (await source.current()).token == "one"
    path.unlink()
    clock.now += 61
    assert (await source.current()).token == "one"
    path.write_text("two")
    clock.now += 61
    assert (await source.current()).token == "two"


@pytest.mark.parametrize("content", [b"", b"\n", b"a b", b"a\r\nX: y", b"\xff\xfe", "ö".encode()])
async def test_an_invalid_token_is_never_sent(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(CredentialError, match="does not contain a valid token"):
        await TokenFile(str(path)).current()


async def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialError, match=f"{tmp_path}/x: No such file"):
        await TokenFile(str(tmp_path / "x")).current()


def test_credentials_are_not_shown() -> None:
    secret = Credential("s3cret", Certificate(b"cert", b"k3y"))
    assert "s3cret" not in repr(secret)
    assert "k3y" not in repr(secret)
    assert repr(Credential()) == "Credential(anonymous)"


def test_certificate_files_hold_the_content_and_are_gone_afterwards() -> None:
    with Certificate(b"c" * 100_000, b"key").files() as (certificate, key):
        assert Path(certificate).read_bytes() == b"c" * 100_000
        assert Path(key).read_bytes() == b"key"
        assert not stat.S_ISREG(os.lstat(key).st_mode)  # a link into our own process, no file
    assert not Path(certificate).exists()
    assert not Path(key).exists()


async def test_fixed() -> None:
    source = Fixed(Credential("x"))
    source.rejected()
    assert await source.current() == Credential("x")


# -- exec plugins ---------------------------------------------------------------------------------


def plugin_command(tmp_path: Path, body: str, **more: object) -> ExecCommand:
    script = tmp_path / "plugin.py"
    script.write_text(f"import json, os, sys\n{body}\n")
    return ExecCommand(sys.executable, (str(script),), **more)  # type: ignore[arg-type]


ANSWER = """
runs = {path!r}
n = len(open(runs).read()) if os.path.exists(runs) else 0
open(runs, "a").write("x")
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
print(json.dumps(dict(
    apiVersion=info["apiVersion"], kind="ExecCredential",
    status=dict(token="t%d" % n, expirationTimestamp={expiry!r}),
)))
"""


@pytest.mark.parametrize("version", API_VERSIONS)
async def test_a_plugin_is_run_when_needed(tmp_path: Path, version: str) -> None:
    clock = Clock()
    body = ANSWER.format(path=str(tmp_path / "runs"), expiry="1970-01-01T00:20:00Z")
    command = plugin_command(tmp_path, body, api_version=version)
    source = ExecPlugin(command, clock=clock)
    assert (await source.current()).token == "t0"
    assert (await source.current()).token == "t0"
    clock.now = 1195.0  # ten seconds before its end a token counts as expired
    assert (await source.current()).token == "t1"
    clock.now = 1000.0
    source.rejected()
    assert (await source.current()).token == "t2"


async def test_a_plugin_receives_its_input(tmp_path: Path) -> None:
    out = tmp_path / "out"
    body = f"""
told = [os.environ["KUBERNETES_EXEC_INFO"], os.environ["REGION"], sys.argv[1:]]
open({str(out)!r}, "w").write(json.dumps(told))
version = "client.authentication.k8s.io/v1"
print(json.dumps(dict(apiVersion=version, kind="ExecCredential", status=dict(token="t"))))
"""
    base = plugin_command(tmp_path, body)
    command = ExecCommand(
        base.command, (*base.arguments, "--x", "y z"), {"REGION": "north"}, cluster={"server": "https://h"}
    )
    assert (await ExecPlugin(command).current()).token == "t"
    info, region, arguments = json.loads(out.read_text())
    assert json.loads(info)["spec"]["cluster"] == {"server": "https://h"}
    assert json.loads(info)["kind"] == "ExecCredential"
    assert region == "north"
    assert arguments == ["--x", "y z"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit(3)", "status 3"),
        ("print('hello')", "a valid ExecCredential"),
        ("print('{}')", "a valid ExecCredential"),
        ("print(json.dumps(dict(apiVersion='v9', kind='ExecCredential')))", "v9"),
    ],
)
async def test_a_failing_plugin_is_named(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(CredentialError, match=message):
        await ExecPlugin(plugin_command(tmp_path, body)).current()


async def test_a_missing_plugin_comes_with_its_hint() -> None:
    command = ExecCommand("/nonexistent/plugin", install_hint="Get it from the shop.")
    with pytest.raises(CredentialError, match=r"No such file or directory\. Get it from the shop\."):
        await ExecPlugin(command).current()


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({}, "neither a token nor"),
        ({"clientCertificateData": "c"}, "without key"),
        ({"clientKeyData": "k"}, "without certificate"),
        ({"token": "t", "expirationTimestamp": "soon"}, "RFC 3339"),
        ({"token": "t", "expirationTimestamp": "2026-01-01T00:00:00"}, "time zone"),
        ({"token": 5}, "a valid ExecCredential"),
    ],
)
def test_invalid_plugin_output_is_rejected(status: object, message: str) -> None:
    document = {"apiVersion": API_VERSIONS[0], "kind": "ExecCredential", "status": status}
    with pytest.raises(CredentialError, match=message):
        read_answer(json.dumps(document).encode(), ExecCommand("p"))


def test_plugin_output_with_a_certificate() -> None:
    status = {"clientCertificateData": "CERT", "clientKeyData": "KEY"}
    document = {"apiVersion": API_VERSIONS[0], "kind": "ExecCredential", "status": status}
    credential, expiry = read_answer(json.dumps(document).encode(), ExecCommand("p"))
    assert credential == Credential(None, Certificate(b"CERT", b"KEY"))
    assert expiry is None
