"""``drakit demo``: the whole system in a minute, on any machine, without privileges.

It draws this machine, runs a command with a claim, and simulates a two-socket node: the real driver
process serves pods, with the fakes of kubelet, container runtime and API server from
:mod:`drakit.testing`. Every step is checked: the exit code is 0 only if all checks passed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Final

from drakit.cli.demo_node import DemoError, DemoNode, demo_node
from drakit.core.cpuset import CpuSet
from drakit.draw.layout import wrap
from drakit.draw.machine_map import draw
from drakit.draw.machine_words import summary
from drakit.draw.terminal import BOLD, DIM, Terminal
from drakit.machine.discover import discover

EXAMPLES: Final = """\
examples:
  drakit demo              with a pause after each step
  drakit demo --no-pause   without pauses (the default outside a terminal)

Nothing outside a temporary directory is changed. The exit code is 0 if all checks passed.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EXAMPLES
    parser.add_argument("--no-pause", action="store_true", help="do not pause between the steps")


def run(options: argparse.Namespace) -> int:
    """Run the three parts; returns 1 if a check failed."""
    stage = Stage(Terminal.of(sys.stdout), paused=sys.stdin.isatty() and not options.no_pause)
    begin = time.monotonic()
    try:
        _this_machine(stage)
        _local_claim(stage)
        asyncio.run(_simulated_node(stage))
    except DemoError as error:
        stage.print(f"\nA check failed: {error}", BOLD)
        return 1
    stage.print(f"\nAll {stage.checks} checks passed in {time.monotonic() - begin:.0f} s.", BOLD)
    stage.print("Next: README.md explains how to install a driver or write your own.")
    return 0


class Stage:
    """Output of the demo: prints, pauses, and counts its checks."""

    def __init__(self, terminal: Terminal, *, paused: bool) -> None:
        self.terminal = terminal
        self.checks = 0
        self._paused = paused

    def print(self, text: str, style: str = "") -> None:
        """Print a text."""
        print(self.terminal.paint(text, style), flush=True)

    def act(self, title: str) -> None:
        """Print the title of a part."""
        rule = "═" if self.terminal.unicode else "="
        self.print(f"\n{rule * 3} {title} {rule * max(3, self.terminal.width - len(title) - 5)}", BOLD)

    def step(self, text: str) -> None:
        """Print the title of a step."""
        self.print(f"\n{'▸' if self.terminal.unicode else '>'} {text}", BOLD)

    def check(self, what: str, holds: bool) -> None:
        """Print a fact; raises :class:`DemoError` if it does not hold."""
        self.checks += 1
        if not holds:
            raise DemoError(what)
        self.print(f"  {'✓' if self.terminal.unicode else 'ok:'} {what}")

    def show(self, picture: str) -> None:
        """Print a drawing."""
        print(picture, end="" if picture.endswith("\n") else "\n", flush=True)

    def pause(self) -> None:
        """Wait for Enter, if pauses are on."""
        if self._paused:
            print(self.terminal.paint("  (press Enter to continue)", DIM), end="", flush=True)
            sys.stdin.readline()


def _this_machine(stage: Stage) -> None:
    stage.act("1  This machine")
    machine = discover("/")
    stage.print(" · ".join(summary(machine)))
    stage.show(draw(machine, terminal=stage.terminal))
    placed = CpuSet(cpu.id for cpu in machine.cpus if cpu.core is not None)
    stage.check("every online CPU belongs to a core", machine.online <= placed)
    stage.pause()


def _local_claim(stage: Stage) -> None:
    stage.act("2  A command with a claim on this machine, without a cluster")
    if len(os.sched_getaffinity(0)) < 2:
        stage.print("Skipped: this process can use only one CPU, and a claim would leave no other.")
        return
    with tempfile.TemporaryDirectory(prefix="drakit-demo-") as state:
        grep = ["--", "grep", "Cpus_allowed_list", "/proc/self/status"]
        stage.step(" ".join(["drakit run --cpus 1", *grep]))
        done = _drakit("run", "--cpus", "1", f"--state-dir={state}", *grep)
        stage.print("  " + (done.stderr + done.stdout).strip().replace("\n", "\n  "), DIM)
        allowed = CpuSet.parse(done.stdout.partition(":")[2]) if done.stdout else CpuSet()
        stage.check(f"the kernel confines it to one CPU ({allowed})", len(allowed) == 1)
        listing = _drakit("ps", "--output", "json", f"--state-dir={state}")
        stage.check("the claim was released when it ended", '"claims": []' in listing.stdout)
    stage.pause()


def _drakit(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drakit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


async def _simulated_node(stage: Stage) -> None:
    stage.act("3  A node with 64 CPUs (simulated), served by the real driver")
    stage.print(
        "The machine, the kubelet, the container runtime and the API server are fakes of drakit.testing;\n"
        "dra-driver-cpu is the real program, and the scheduler is drakit's model of kube-scheduler."
    )
    with tempfile.TemporaryDirectory(prefix="dk", dir="/tmp") as directory:
        async with demo_node(directory) as node:
            for act in _STORY:
                await act(node, stage)
                what = "no CPU has two owners, and pods without claims use only shared CPUs"
                stage.check(what, node.all_confined())
                stage.show(node.picture(stage.terminal))
                stage.pause()
            stage.check("the driver stops cleanly on SIGTERM", await node.stop_driver() == 0)


async def _shared_pods(node: DemoNode, stage: Stage) -> None:
    stage.step("CPUs 0-1 are reserved for the system. Two pods without claims start.")
    await node.start_pod("web")
    await node.start_pod("logs")
    stage.check(f"they share all other CPUs ({node.cpus_of('web')})", len(node.cpus_of("web")) == 62)


async def _latency(node: DemoNode, stage: Stage) -> None:
    stage.step("Pod 'trading' claims 8 CPUs of one NUMA node, whole cores.")
    await node.start_claimed("trading", 8, policy={"wholeCores": True})
    cpus = node.cpus_of("trading")
    stage.check(f"it runs on {cpus}: 8 CPUs", len(cpus) == 8)
    machine = node.machine
    whole = all(machine.by_id[cpu].siblings <= cpus for cpu in cpus)
    stage.check("four whole cores of one NUMA node", whole and len(machine.nodes_of(cpus)) == 1)
    stage.check(
        f"the other pods made room first: {node.cpus_of('web')}", cpus.isdisjoint(node.cpus_of("web"))
    )


async def _database(node: DemoNode, stage: Stage) -> None:
    stage.step("Pod 'database' claims 16 CPUs; its memory is bound to the same NUMA node.")
    await node.start_claimed("database", 16)
    cpus = node.cpus_of("database")
    stage.check(f"it runs on {cpus}, memory node {node.mems_of('database')}", len(cpus) == 16)
    stage.check("it shares no CPU with 'trading'", cpus.isdisjoint(node.cpus_of("trading")))


async def _too_much(node: DemoNode, stage: Stage) -> None:
    stage.step("Pod 'greedy' claims 40 CPUs of one NUMA node. It does not fit; drakit explains why.")
    explanation = node.explain("greedy", 40)
    for line in explanation:
        for part in wrap(line, stage.terminal.width - 4):
            stage.print(f"    {part}")
    stage.check("the explanation states what is missing and what would help", len(explanation) >= 2)


async def _killed(node: DemoNode, stage: Stage) -> None:
    stage.step("The driver is killed (kill -9). A pod starts meanwhile; then the driver restarts.")
    await node.kill_driver()
    await node.start_pod("meanwhile")
    stage.print(f"    'meanwhile' runs unconfined: cpuset {str(node.cpus_of('meanwhile')) or '(any)'}", DIM)
    await node.start_driver()
    await node.until(lambda: node.confined("meanwhile"), "'meanwhile' is confined")
    stage.check(
        f"'meanwhile' was found and confined to {node.cpus_of('meanwhile')}", node.confined("meanwhile")
    )
    stage.check(
        "'trading' and 'database' kept their CPUs",
        len(node.cpus_of("trading") | node.cpus_of("database")) == 24,
    )


async def _grow(node: DemoNode, stage: Stage) -> None:
    stage.step("Pod 'trading' ends.")
    freed = node.cpus_of("trading")
    await node.end_pod("trading")
    await node.until(lambda: freed <= node.cpus_of("web"), "the shared pool has grown")
    stage.check(f"the shared pool has its CPUs back: {node.cpus_of('web')}", freed <= node.cpus_of("web"))


_STORY: Final[tuple[Callable[[DemoNode, Stage], Awaitable[None]], ...]] = (
    _shared_pods,
    _latency,
    _database,
    _too_much,
    _killed,
    _grow,
)
