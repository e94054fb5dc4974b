"""Cluster that keeps running for a developer: ``make cluster``, ``make cluster-down``.

The cluster belongs to a background process (the keeper), just as a test cluster belongs to pytest;
when the keeper ends, the cluster is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .cache import cache_root
from .cluster import Cluster
from .guestagent import GuestAgent
from .host import what_can_run
from .pins import REPOSITORY, load_pins
from .processes import Run
from .shapes import load_shapes
from .waiting import NotYetError, wait_for

_START_LIMIT = 900.0
_SHELL_LIMIT = 3600.0


def _state_file() -> Path:
    return cache_root() / "cluster.json"


def _state() -> dict[str, Any] | None:
    """The keeper's description of its cluster; ``None`` without a running keeper."""
    try:
        state: dict[str, Any] = json.loads(_state_file().read_text())
        command = Path(f"/proc/{state['pid']}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    return state if b"tests.e2e.bed.keeper" in command else None


def up(shape: str) -> int:
    """Start a keeper in the background and wait until its cluster is ready."""
    state = _state()
    if state is not None:
        print("a cluster is already up")
        return _describe(state)
    ability = what_can_run()
    if not ability.cluster:
        print(f"no cluster can run here: {ability.why_not()}")
        return 1
    log = cache_root() / "cluster.log"
    _state_file().unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.e2e.bed.keeper", "keep", "--shape", shape]
    with log.open("wb") as output:
        keeper = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    print(f"starting a cluster with one {shape} node; log: {log}", flush=True)
    shown = 0

    def there() -> dict[str, Any]:
        nonlocal shown
        text = log.read_text(errors="replace")
        print(text[shown:], end="", flush=True)
        shown = len(text)
        if keeper.poll() is not None:
            raise RuntimeError(f"the cluster did not come up; see {log}")
        state = _state()
        if state is None:
            raise NotYetError("not yet")
        return state

    return _describe(wait_for("the cluster", there, limit=_START_LIMIT))


def _describe(state: dict[str, Any]) -> int:
    print(f"\nkubeconfig:   export KUBECONFIG={state['kubeconfig']}")
    for name in state["nodes"]:
        print(f"node {name}:  .venv/bin/python -m tests.e2e.bed.keeper shell {name} [COMMAND]")
    print("tear it down: make cluster-down")
    return 0


def down() -> int:
    """Stop the keeper and wait until everything is removed."""
    state = _state()
    if state is None:
        print("no cluster is up")
        return 0
    os.kill(state["pid"], signal.SIGTERM)
    keeper = Path(f"/proc/{state['pid']}")
    wait_for("the cluster to end", lambda: not keeper.exists(), limit=120)
    print("the cluster is gone")
    return 0


def keep(shape: str) -> int:
    """Run the keeper: start a cluster, write its address to a file, wait for SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with Run.begin() as run:
        cluster = Cluster(run, load_pins())
        cluster.add_node("node-1", load_shapes()[shape])
        state = {
            "pid": os.getpid(),
            "kubeconfig": str(cluster.plane.admin_kubeconfig()),
            "nodes": {node.name: node.address() for node in cluster.nodes},
        }
        partial = _state_file().with_suffix(".partial")
        partial.touch(0o600)
        partial.write_text(json.dumps(state))
        partial.rename(_state_file())
        try:
            while True:
                cluster.check()
                time.sleep(2)
        finally:
            _state_file().unlink(missing_ok=True)


def shell(name: str, command: list[str]) -> int:
    """Run a command in a node, or read commands line by line."""
    state = _state()
    if state is None or name not in state["nodes"]:
        print(f"no node {name} is up; make cluster starts one")
        return 1
    agent = GuestAgent(**state["nodes"][name])
    if command:
        return _run_in(agent, " ".join(command))
    print(f"each line runs in a fresh shell in {name}; Ctrl-D ends")
    while True:
        try:
            line = input(f"{name}# ")
        except EOFError:
            return 0
        _run_in(agent, line)


def _run_in(agent: GuestAgent, line: str) -> int:
    done = agent.run(["sh", "-c", line], _SHELL_LIMIT)
    sys.stdout.write(done.out)
    sys.stderr.write(done.err)
    return done.status


def main() -> int:
    """``keeper up|down|keep|shell``."""
    parser = argparse.ArgumentParser(prog="tests.e2e.bed.keeper", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("up", "keep"):
        shape = os.environ.get("DRAKIT_E2E_SHAPE", "smt2")
        verbs.add_parser(verb).add_argument("--shape", default=shape, choices=load_shapes())
    verbs.add_parser("down")
    inside = verbs.add_parser("shell")
    inside.add_argument("node")
    inside.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.verb == "up":
        return up(options.shape)
    if options.verb == "keep":
        return keep(options.shape)
    if options.verb == "shell":
        return shell(options.node, options.command)
    return down()


if __name__ == "__main__":
    sys.exit(main())
