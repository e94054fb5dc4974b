"""``drakit run`` as a command: exit codes, signals, messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drakit.core.bootrecord import boot_id
from drakit.core.cpuset import CpuSet
from drakit.kit.claims import checkpoint
from drakit.kit.claims.exclusion import exclude_other_drivers
from drakit.kit.config.options import HostOptions
from drakit.kit.driver import PreparedClaim, PreparedDevice

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs: one to claim, one for the rest"
)

CLAIM = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: one}
spec:
  devices:
    requests:
    - name: cpus
      exactly:
        deviceClassName: dra.cpu
        capacity: {requests: {dra.cpu/cpu: "1"}}
"""


def drakit(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drakit", arguments[0], "--state-dir", str(state), *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_the_kernel_confirms_the_claim(tmp_path: Path) -> None:
    file = tmp_path / "claim.yaml"
    file.write_text(CLAIM)
    done = drakit(
        tmp_path / "s", "run", "-f", str(file), "--", "grep", "Cpus_allowed_list", "/proc/self/status"
    )
    assert done.returncode == 0, done.stderr
    assert len(CpuSet.parse(done.stdout.partition(":")[2])) == 1
    assert "on CPU" in done.stderr


def test_exit_codes_are_the_commands_own(tmp_path: Path) -> None:
    assert drakit(tmp_path, "run", "-q", "--cpus", "1", "--", "sh", "-c", "exit 7").returncode == 7
    killed = drakit(tmp_path, "run", "-q", "--cpus", "1", "--", "sh", "-c", "kill -TERM $$")
    assert killed.returncode == 128 + signal.SIGTERM
    missing = drakit(tmp_path, "run", "-q", "--cpus", "1", "--", "/no/such/command")
    assert missing.returncode == 127
    assert "command not found" in missing.stderr
    ps = drakit(tmp_path, "ps", "--output", "json")
    assert json.loads(ps.stdout)["claims"] == []


def test_a_claim_that_does_not_fit_is_explained(tmp_path: Path) -> None:
    done = drakit(tmp_path, "run", "--cpus", "4096", "--", "true")
    assert done.returncode == 1
    assert "does not fit" in done.stderr
    assert "it would fit: ask for at most" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cpus", "1"], "no command given"),
        (["--cpus", "0", "--", "true"], "request at least one CPU"),
        (["-f", "/no/such/file", "--", "true"], "/no/such/file"),
        (["--cpus", "1", "--reserved-cpus", "3-1", "--", "true"], "runs backwards"),
    ],
)
def test_invalid_input_is_named(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = drakit(tmp_path, "run", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_dry_run_draws_the_cpus(tmp_path: Path) -> None:
    done = drakit(tmp_path, "run", "--cpus", "1", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "CPU" in done.stdout
    assert "A" in done.stdout


def test_wait_runs_the_command_when_the_claim_fits(tmp_path: Path) -> None:
    count = str(len(os.sched_getaffinity(0)) - 1)
    command = [sys.executable, "-m", "drakit", "run", "--state-dir", str(tmp_path), "--cpus", count]
    holder = subprocess.Popen(
        [*command, "--", "cat"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert holder.stderr
    assert "on CPU" in holder.stderr.readline()
    waiter = subprocess.Popen([*command, "--wait", "--", "true"], stderr=subprocess.PIPE, text=True)
    assert waiter.stderr
    assert "waiting" in waiter.stderr.readline()
    holder.communicate("", timeout=60)
    waiter.communicate(timeout=60)
    assert (holder.returncode, waiter.returncode) == (0, 0)


def test_cpus_of_a_kubernetes_driver_on_this_machine_are_not_given_away(tmp_path: Path) -> None:
    mine = CpuSet(os.sched_getaffinity(0))
    held = CpuSet([mine.min()])
    prepared = PreparedDevice(request="r", pool="p", device="d", exclusive={"cpu": held})
    entry = PreparedClaim("u", "n", "c", (prepared,), boot_id=boot_id())
    claims = tmp_path / "kubelet/plugins/dra.cpu/claims"
    claims.mkdir(parents=True)
    (claims / "u.json").write_bytes(checkpoint.encode(entry))
    command = [
        "--group-by",
        "machine",
        "--cpus",
        str(len(mine) - 1),
        "--kubelet-root-dir",
        str(tmp_path / "kubelet"),
    ]
    # The last CPU stays with everybody else, so one less than there are is one too many here.
    done = drakit(tmp_path / "s", "run", *command, "--", "true")
    assert done.returncode == 1, done.stderr
    command[-1] = str(tmp_path)
    assert drakit(tmp_path / "s", "run", *command, "--", "true").returncode == 0
    (claims / "v.json").write_bytes(b"?")
    command[-1] = str(tmp_path / "kubelet")
    done = drakit(tmp_path / "s", "run", *command, "--", "true")
    assert done.returncode == 2
    assert "v.json" in done.stderr


def test_a_running_driver_on_this_machine_causes_a_warning(tmp_path: Path) -> None:
    options = HostOptions(kubelet_root_dir=str(tmp_path))
    (tmp_path / "plugins/dra.cpu/claims").mkdir(parents=True)
    with exclude_other_drivers(options, "dra.cpu", ["dra.cpumem"]):
        command = ("run", "--cpus", "1", "--kubelet-root-dir", str(tmp_path))
        told = drakit(tmp_path / "s", *command, "--", "true")
        quiet = drakit(tmp_path / "s", *command, "--quiet", "--", "true")
    assert "warning: the driver dra.cpu serves" in told.stderr
    assert quiet.stderr == ""
