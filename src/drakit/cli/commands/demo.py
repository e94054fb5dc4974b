"""``drakit demo``: the whole system in a minute, on any machine, without privileges.

Three acts: this machine drawn; a command run on a claim here, with the kernel's own word for it; and
a simulated two-socket node on which the real driver process serves pods, against the shipped doubles
of kubelet, container runtime and API server. Everything shown is checked as it goes: the exit code
is 0 only if every promise held.
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

from drakit.cli.demo_node import Broken, DemoNode
from drakit.core.cpuset import CpuSet
from drakit.draw.machine_map import draw
from drakit.draw.machine_words import summary
from drakit.draw.terminal import BOLD, DIM, Terminal
from drakit.machine.discover import discover

EXAMPLES: Final = """\
examples:
  drakit demo              with a pause after each step
  drakit demo --no-pause   straight through (the default when not in a terminal)

Nothing outside a temporary directory is touched. The exit code is 0 if every check held.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EXAMPLES
    parser.add_argument("--no-pause", action="store_true", help="do not wait between the steps")


def run(options: argparse.Namespace) -> int:
    """Play the three acts; 0 if every check held, else 1."""
    stage = Stage(Terminal.of(sys.stdout), paused=sys.stdin.isatty() and not options.no_pause)
    begin = time.monotonic()
    try:
        _this_machine(stage)
        _local_claim(stage)
        asyncio.run(_simulated_node(stage))
    except Broken as error:
        stage.say(f"\nA promise was broken: {error}", BOLD)
        return 1
    stage.say(f"\nAll {stage.checks} checks held, in {time.monotonic() - begin:.0f} s.", BOLD)
    stage.say("Next: README.md – install a driver, or build your own on the kit.")
    return 0


class Stage:
    """Where the demo prints, pauses and counts its checks."""

    def __init__(self, terminal: Terminal, *, paused: bool) -> None:
        self.terminal = terminal
        self.checks = 0
        self._paused = paused

    def say(self, text: str, style: str = "") -> None:
        """Print one text."""
        print(self.terminal.paint(text, style), flush=True)

    def act(self, title: str) -> None:
        """A headline."""
        rule = "═" if self.terminal.unicode else "="
        self.say(
            f"\n{rule * 3} {title} {rule * max(3, self.terminal.width - len(title) - 5)}", BOLD
        )

    def step(self, text: str) -> None:
        """What happens next."""
        self.say(f"\n{'▸' if self.terminal.unicode else '>'} {text}", BOLD)

    def check(self, what: str, holds: bool) -> None:
        """Show a fact that was looked at; raises :class:`Broken` when it does not hold."""
        self.checks += 1
        if not holds:
            raise Broken(what)
        self.say(f"  {'✓' if self.terminal.unicode else 'ok:'} {what}")

    def show(self, picture: str) -> None:
        """A drawing."""
        print(picture, end="" if picture.endswith("\n") else "\n", flush=True)

    def pause(self) -> None:
        """Wait for the reader, if there is one."""
        if self._paused:
            print(self.terminal.paint("  (Enter goes on)", DIM), end="", flush=True)
            sys.stdin.readline()


def _this_machine(stage: Stage) -> None:
    stage.act("1  This machine")
    machine = discover("/")
    terminal = stage.terminal
    stage.say(" · ".join(summary(machine)))
    stage.show(draw(machine, width=terminal.width, color=terminal.color, unicode=terminal.unicode))
    placed = CpuSet(cpu.id for cpu in machine.cpus if cpu.core is not None)
    stage.check("every online CPU has its place", machine.online <= placed)
    stage.pause()


def _local_claim(stage: Stage) -> None:
    stage.act("2  A command on a claim, here, without a cluster")
    if len(os.sched_getaffinity(0)) < 2:
        stage.say(
            "This machine has one CPU for us; a claim would leave none for the rest: skipped."
        )
        return
    with tempfile.TemporaryDirectory(prefix="drakit-demo-") as state:
        command = [sys.executable, "-m", "drakit", "run", "--cpus", "1", f"--state-dir={state}"]
        stage.step("drakit run --cpus 1 -- grep Cpus_allowed_list /proc/self/status")
        done = subprocess.run(
            [*command, "--", "grep", "Cpus_allowed_list", "/proc/self/status"],
            capture_output=True,
            text=True,
            check=False,
        )
        stage.say("  " + (done.stderr + done.stdout).strip().replace("\n", "\n  "), DIM)
        allowed = CpuSet.parse(done.stdout.partition(":")[2]) if done.stdout else CpuSet()
        stage.check(f"the kernel confines it to one CPU ({allowed})", len(allowed) == 1)
        listing = subprocess.run(
            [sys.executable, "-m", "drakit", "ps", "--output", "json", f"--state-dir={state}"],
            capture_output=True,
            text=True,
            check=False,
        )
        stage.check("it was given back when the command ended", '"claims": []' in listing.stdout)
    stage.pause()


async def _simulated_node(stage: Stage) -> None:
    stage.act("3  A node with 64 CPUs (simulated), served by the real driver")
    stage.say(
        "The machine, the kubelet, the container runtime and the API server are doubles shipped with\n"
        "drakit; dra-driver-cpu is the real program, and the scheduler is drakit's model of it."
    )
    with tempfile.TemporaryDirectory(prefix="dk", dir="/tmp") as directory:
        async with DemoNode(directory, stage) as node:
            for act in _STORY:
                await act(node, stage)
                node.check_everything()
                stage.show(node.picture())
                stage.pause()
            await node.stop_driver()


async def _shared_pods(node: DemoNode, stage: Stage) -> None:
    stage.step("CPUs 0-1 are reserved for the system. Two ordinary pods arrive.")
    await node.start_pod("web")
    await node.start_pod("logs")
    stage.check(
        f"they share all other CPUs ({node.cpus_of('web')})", len(node.cpus_of("web")) == 62
    )


async def _latency(node: DemoNode, stage: Stage) -> None:
    stage.step("Pod 'trading' claims 8 CPUs of one NUMA node, whole cores.")
    await node.start_claimed("trading", 8, policy={"wholeCores": True})
    cpus = node.cpus_of("trading")
    stage.check(f"it runs on {cpus}: 8 CPUs", len(cpus) == 8)
    stage.check(
        "four whole cores of one NUMA node", node.whole_cores(cpus) and node.numa_nodes(cpus) == 1
    )
    stage.check(
        f"the ordinary pods made room first: {node.cpus_of('web')}",
        cpus.isdisjoint(node.cpus_of("web")),
    )


async def _database(node: DemoNode, stage: Stage) -> None:
    stage.step("Pod 'database' claims 16 CPUs; the memory of its containers is bound, too.")
    await node.start_claimed("database", 16)
    cpus = node.cpus_of("database")
    stage.check(f"it runs on {cpus}, memory node {node.mems_of('database')}", len(cpus) == 16)
    stage.check("nobody shares a CPU with 'trading'", cpus.isdisjoint(node.cpus_of("trading")))


async def _too_much(node: DemoNode, stage: Stage) -> None:
    stage.step("Pod 'greedy' claims 40 CPUs of one NUMA node. It does not fit; drakit says why.")
    explanation = node.explain("greedy", 40)
    for line in explanation:
        stage.say(f"    {line}")
    stage.check("the explanation names what is short and what would help", len(explanation) >= 2)


async def _killed(node: DemoNode, stage: Stage) -> None:
    stage.step("The driver is killed (kill -9). A pod starts while it is away; then it comes back.")
    await node.kill_driver()
    await node.start_pod("meanwhile")
    stage.say(
        f"    'meanwhile' runs unconfined: cpuset {str(node.cpus_of('meanwhile')) or '(any)'}", DIM
    )
    await node.start_driver()
    await node.until(lambda: node.confined("meanwhile"), "'meanwhile' is confined")
    stage.check(
        f"'meanwhile' was found and confined to {node.cpus_of('meanwhile')}",
        node.confined("meanwhile"),
    )
    stage.check(
        "'trading' and 'database' kept their CPUs",
        len(node.cpus_of("trading") | node.cpus_of("database")) == 24,
    )


async def _grow(node: DemoNode, stage: Stage) -> None:
    stage.step("Pod 'trading' ends.")
    freed = node.cpus_of("trading")
    await node.end_pod("trading")
    await node.until(lambda: freed <= node.cpus_of("web"), "the shared pool has grown back")
    stage.check(
        f"the shared pool has its CPUs back: {node.cpus_of('web')}", freed <= node.cpus_of("web")
    )


_STORY: Final[tuple[Callable[[DemoNode, Stage], Awaitable[None]], ...]] = (
    _shared_pods,
    _latency,
    _database,
    _too_much,
    _killed,
    _grow,
)
