"""``drakit doctor`` and ``drakit gather`` on written machines and on a node that is served."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from drakit.cli import main
from drakit.cli.commands.gather import claims_document, last_warnings
from drakit.core.cpuset import CpuSet
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.program import program as cpu_program
from drakit.kit.claims.checkpoint import encode
from drakit.kit.config.settings import settings_of
from drakit.kit.driver import PreparedClaim, PreparedDevice
from drakit.kit.telemetry import logs
from drakit.testing.node import SimulatedNode
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree

NODE = "bed-node"


@pytest.fixture(name="root", scope="module")
def _root(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("machine")
    write_tree(build(sockets=2, cores=2, threads=2), str(root))
    return str(root)


@pytest.fixture(name="short")
def _short() -> Iterator[Path]:
    """A directory whose path leaves room for sockets; pytest's own may not."""
    with tempfile.TemporaryDirectory(prefix="dk", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture(name="settings")
def _settings(tmp_path: Path, short: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Settings under which nothing of this very machine is looked at."""
    for variable in ("NODE_NAME", "KUBECONFIG", "POD_UID"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return [
        f"--sysfs-root={root}",
        f"--kubelet-root-dir={short / 'kubelet'}",
        f"--kubelet-config-dir={short / 'kubelet.conf.d'}",
        f"--cdi-dir={short / 'cdi'}",
        f"--nri-socket={short / 'nri.sock'}",
        f"--hostname-override={NODE}",
        "--bind-address=127.0.0.1:0",
    ]


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--output", "json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def of(document: dict[str, Any], subject: str) -> list[dict[str, str]]:
    return [remark for remark in document["remarks"] if remark["subject"] == subject]


def test_a_machine_without_kubernetes_gets_a_remedy_for_every_problem(
    settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = doctor(capsys, *settings)
    assert code == 1
    assert document["ready"] is False
    lacking = {r["subject"]: r for r in document["remarks"] if r["level"] == "problem"}
    assert set(lacking) == {"kubelet", "plugin data", "CDI", "NRI", "API server"}
    assert all(remark["wayOut"] for remark in lacking.values())


def test_the_text_marks_every_line(settings: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *settings]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("[+] machine: CPUs 0-7 online, none reserved, 0-7 offered")
    assert lines[-1] == "not ready: see the lines marked [-]"
    assert all(line[:4] in ("[+] ", "[!] ", "[-] ", "    ") for line in lines[:-1])


@pytest.mark.parametrize(("policy", "level"), [("static", "problem"), ("none", "good"), (None, "good")])
def test_the_cpu_manager_must_be_off(
    policy: str | None, level: str, settings: list[str], short: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "kind: KubeletConfiguration\n" + (f"cpuManagerPolicy: {policy}\n" if policy else "")
    (short / "kubelet").mkdir()
    (short / "kubelet" / "config.yaml").write_text(text)
    _code, document = doctor(capsys, *settings)
    (remark,) = [r for r in of(document, "kubelet") if "cpuManagerPolicy" in r["text"]]
    assert remark["level"] == level
    assert f"cpuManagerPolicy is {policy or 'none'}" in remark["text"]


def test_the_cpu_manager_of_a_drop_in_must_be_off_too(
    settings: list[str], short: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (short / "kubelet.conf.d").mkdir()
    (short / "kubelet.conf.d" / "10.conf").write_text("cpuManagerPolicy: static\nreservedSystemCPUs: '7'\n")
    _code, document = doctor(capsys, *settings)
    manager, reserved, *_ = of(document, "kubelet")
    assert manager["level"] == "problem"
    assert f"static ({short}/kubelet/config.yaml and {short}/kubelet.conf.d)" in manager["text"]
    assert "reservedSystemCPUs is 7" in reserved["text"]


@pytest.mark.parametrize("content", ["[1, 2]", "a: [", "\x00"])
def test_an_invalid_kubelet_configuration_is_a_note(
    content: str, settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.yaml").write_text(content)
    _code, document = doctor(capsys, *settings, f"--kubelet-config={tmp_path / 'odd.yaml'}")
    assert of(document, "kubelet")[0]["level"] == "note"


@pytest.mark.parametrize(("ours", "noted"), [("0,1", False), ("0-1", False), ("0", True)])
def test_reservations_that_differ_are_noted(
    ours: str, noted: bool, settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kubelet.yaml").write_text("reservedSystemCPUs: 0-1\n")
    _code, document = doctor(
        capsys, *settings, f"--reserved-cpus={ours}", f"--kubelet-config={tmp_path / 'kubelet.yaml'}"
    )
    assert any("reservedSystemCPUs" in r["text"] for r in of(document, "kubelet")) is noted


def test_a_reservation_of_all_cpus_is_a_problem(
    settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    _code, document = doctor(capsys, *settings, "--reserved-cpus=0-7")
    (remark,) = of(document, "configuration")
    assert remark["level"] == "problem"
    assert "leaves no CPU for pods" in remark["text"]


def test_a_wrong_setting_is_exit_code_2(settings: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *settings, "--group-by", "numa"]) == 2
    assert "did you mean 'numanode'?" in capsys.readouterr().err


# -- gather ------------------------------------------------------------------------------------------


def gather(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["gather", "--file=-", *arguments]) == 0
    document: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return document


def test_gather_works_on_a_machine_without_kubernetes(
    settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    document = gather(capsys, *settings, "--reserved-cpus=0", "--min-shared-cpus=2")
    assert document["node"] == NODE
    assert [cpu["id"] for cpu in document["machine"]["cpus"]] == list(range(8))
    effective = document["configuration"]["effective"]
    assert set(effective) == {one.key for one in settings_of(CpuConfig, cpu_program().prefix)}
    assert (effective["reservedCPUs"], effective["minSharedCPUs"]) == ("0", 2)
    assert document["configuration"]["sources"]["reservedCPUs"] == "--reserved-cpus"
    (preview,) = document["slices"]["preview"]
    assert [d["name"] for d in preview["spec"]["devices"]] == ["cpudevnuma000", "cpudevnuma001"]
    for part in (document["ledger"], document["slices"]["published"], document["driver"]):
        assert part["problem"]


def test_yaml_and_json_are_equal(settings: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    told = gather(capsys, *settings)
    assert main(["gather", "--file=-", "--output=json", *settings]) == 0
    again = json.loads(capsys.readouterr().out)
    for document in (told, again):
        del document["gathered"]
    assert told == again


def test_the_file_is_new_and_private(
    settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["gather", *settings]) == 0
    (path,) = tmp_path.glob(f"drakit-gather-{NODE}-*.yaml")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert yaml.safe_load(path.read_text())["node"] == NODE
    before = path.read_bytes()
    capsys.readouterr()
    assert main(["gather", f"--file={path}", *settings]) == 2
    assert "File exists" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_the_checkpoint_is_read_and_not_touched(tmp_path: Path) -> None:
    prepared = PreparedDevice(
        request="cpus", pool=NODE, device="cpudevnuma000", exclusive={"cpu": CpuSet([2])}
    )
    entry = PreparedClaim(uid="u-1", namespace="default", name="mine", devices=(prepared,))
    (tmp_path / "u-1.json").write_bytes(encode(entry))
    (tmp_path / "u-2.json").write_bytes(encode(entry)[:-9])
    (tmp_path / ".lock").touch()
    before = sorted(os.listdir(tmp_path))
    document = claims_document(str(tmp_path))
    (claim,) = document["claims"]
    assert (claim["uid"], claim["grants"][0]["exclusive"]) == ("u-1", {"cpu": "2"})
    (damaged,) = document["unreadable"]
    assert damaged["file"].endswith("u-2.json")
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_log_is_searched_for_rejections(
    form: Any, settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        with open(tmp_path / "log", "w", encoding="utf-8") as stream:
            logs.configure(form, "debug", stream)
            logger = logging.getLogger("drakit.kit.runtime.nri_hooks")
            logger.info("all is well, no ERROR and no WARNING")
            logger.warning("refused: CPU 2 is held by claim default/other")
    finally:
        root.handlers[:], level = before
        root.setLevel(level)
    document = gather(capsys, *settings, f"--log={tmp_path / 'log'}")
    (line,) = document["log"]
    assert "refused: CPU 2 is held by claim default/other" in line
    missing = gather(capsys, *settings, f"--log={tmp_path / 'none'}")
    assert "No such file" in missing["log"]["problem"]


def test_only_the_last_warnings_are_included() -> None:
    lines = [f"2026-11-16T02:30:50.123Z WARNING kit.checkpoint {n}\n" for n in range(1000)]
    assert last_warnings(lines)[-1].endswith(" 999")
    assert len(last_warnings(lines)) == 300


# -- a running driver --------------------------------------------------------------------------------


class _Pages(BaseHTTPRequestHandler):
    ready = True
    metrics = (
        'dra_cpu_rejections_total{operation="assign",reason="conflict"} 3.0\n'
        'dra_cpu_rejections_total{operation="enforce",reason="shared-pool"} 1.0\n'
    )

    def do_GET(self) -> None:
        good = self.path == "/metrics" or self.ready
        text = "[+] kubelet: ok\n" if self.ready else "[+] kubelet: ok\n[-] runtime: no socket\n"
        body = (self.metrics if self.path == "/metrics" else text).encode()
        self.send_response(200 if good else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture(name="pages")
def _pages() -> Iterator[tuple[type[_Pages], int]]:
    """Somebody who answers like a driver's health pages, and the port."""

    class Pages(_Pages):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Pages, server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("ready", [True, False])
def test_a_port_in_use_is_fine_if_it_is_the_driver_s(
    ready: bool, pages: tuple[type[_Pages], int], settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    handler, port = pages
    handler.ready = ready
    _code, document = doctor(capsys, *settings, f"--bind-address=127.0.0.1:{port}")
    assert not of(document, "health endpoint")
    remark = of(document, "driver")[-1]
    assert remark["level"] == ("good" if ready else "problem")
    assert ("runtime: no socket" in remark["text"]) is not ready


def test_rejections_are_taken_from_the_metrics(
    pages: tuple[type[_Pages], int], settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    document = gather(capsys, *settings, f"--bind-address=127.0.0.1:{pages[1]}")
    assert document["driver"]["ready"] is True
    assert document["driver"]["refusals"] == [
        {"verb": "assign", "reason": "conflict", "count": 3},
        {"verb": "enforce", "reason": "shared-pool", "count": 1},
    ]


def test_the_settings_of_a_running_driver_are_found_by_its_pid(
    settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from argparse import ArgumentParser

    from drakit.cli.driver_settings import add_options, driver_settings

    (tmp_path / "proc" / "7").mkdir(parents=True)
    words = ["/usr/bin/python3", "-sE", "/usr/local/bin/dra-driver-cpu", "--group-by=socket"]
    words += ["--reserved-cpus", "0-1", *settings]
    (tmp_path / "proc" / "7" / "cmdline").write_bytes("\0".join([*words, ""]).encode())
    parser = ArgumentParser()
    add_options(parser)
    options = parser.parse_args(["--pid", "7", "--reserved-cpus", "3"])
    found = driver_settings(options, str(tmp_path / "proc"))
    assert found.config.group_by == "socket"
    assert found.config.reserved_cpus == "3", "what is given here wins"
    assert found.node == NODE


def test_a_pid_of_something_else_is_rejected(settings: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--pid", str(os.getpid())]) == 2
    assert "is not a dra-driver-cpu" in capsys.readouterr().err


PROGRAM_TEXT = "from drakit.drivers.cpu.program import main; raise SystemExit(main())"


async def test_a_served_node_is_healthy_and_can_be_gathered(
    tmp_path_factory: pytest.TempPathFactory, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real driver process against the fakes; then the commands, as a user would run them."""
    monkeypatch.delenv("NODE_NAME", raising=False)
    directory = str(tmp_path_factory.mktemp("n"))
    port = _free_port()
    async with SimulatedNode(directory, name=NODE, online_cpus="0-7") as node:
        flags = [f for f in node.arguments() if not f.startswith("--bind-address")]
        flags += [f"--sysfs-root={root}", f"--bind-address=127.0.0.1:{port}"]
        driver = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM_TEXT, *flags, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            await node.kubelet.registered("dra.cpu", seconds=60)
            while not node.api.objects("resourceslices"):
                await asyncio.sleep(0.05)
            document = await _drakit("gather", "--file=-", "--output=json", *flags)
        finally:
            driver.terminate()
            await driver.wait()
    (published,) = document["slices"]["published"]
    (preview,) = document["slices"]["preview"]
    assert published["spec"]["devices"] == preview["spec"]["devices"]
    assert document["ledger"]["claims"] == []
    assert document["cdi"]["specs"] == []
    assert any(row.startswith("dra_cpu_cpus{") for row in document["driver"]["metrics"])
    checks = {(c["subject"], c["level"]) for c in document["checks"]}
    assert {("NRI", "good"), ("API server", "good"), ("node", "good")} <= checks


async def _drakit(*arguments: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "drakit",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    document: dict[str, Any] = json.loads(out)
    return document


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
