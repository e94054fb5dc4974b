"""A storm on a simulated node with the real programs as processes, judged from its record alone.

Pods come and go several at once, are deleted by force with their containers still running, restart;
driver, kubelet and runtime die and come back, and drivers are replaced by rolling updates.
"""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest

from drakit.testing.kubelet import PrepareError, UnprepareError
from drakit.testing.node import RunningPod
from drakit.testing.runtime import FakeRuntimeError
from drakit.testing.runtime_releases import CONTAINERD_1_7, CONTAINERD_2_4, FakeRuntimeRelease

from .node import CPU, CPUMEM, Kind, RecordedNode, recorded_node

ROUNDS = 12


class Storm:
    """What can happen, in the order the dice say."""

    def __init__(self, world: RecordedNode, seed: int) -> None:
        self.world, self.node = world, world.node
        self.dice = random.Random(seed)
        self.running: dict[str, RunningPod] = {}
        self.orphans: list[RunningPod] = []
        self.count = 0
        self.reconciling = asyncio.Lock()

    async def rage(self, rounds: int) -> None:
        """So many rounds: a few things at once, now and then a disturbance; then all pods end."""
        pods = [self.claimed, self.claimed, self.shared, self.ends, self.forced, self.restarts]
        disturbances = [self.driver_dies, self.rolls, self.kubelet_restarts, self.runtime_restarts]
        for _ in range(rounds):
            chosen = self.dice.choices(pods, k=self.dice.randint(2, 4))
            await asyncio.gather(*(each() for each in chosen))
            if self.dice.random() < 0.35:
                disturb = self.dice.choice(disturbances)
                await asyncio.gather(disturb(), self.orphans_end())
        await self.calm()

    async def calm(self) -> None:
        """Everything ends."""
        while self.running:
            await self.ends()
        await self.orphans_end()
        await self.reconcile()

    # -- pods --------------------------------------------------------------------------------------

    def name(self) -> str:
        self.count += 1
        return f"p{self.count}"

    async def claimed(self) -> None:
        name = self.name()
        device, cpus = self.dice.randint(0, 1), self.dice.randint(1, 3)
        try:
            self.running[name] = await self.world.claimed_pod(name, device, cpus)
        except (PrepareError, FakeRuntimeError):
            await self.gives_up(name)

    async def shared(self) -> None:
        name = self.name()
        try:
            self.running[name] = await self.node.run_pod(name)
        except FakeRuntimeError:
            await self.gives_up(name)

    async def gives_up(self, name: str) -> None:
        """A pod that could not start is deleted by force, with whatever there is of it."""
        for sandbox in [p.id for p in self.node.runtime.pods.values() if p.name == name]:
            await self.node.runtime.remove_pod(sandbox)
        if f"uid-of-{name}" in self.node.kubelet._pods:
            self.node.kubelet.forget_pod(f"uid-of-{name}")

    def one(self) -> RunningPod | None:
        return self.running.pop(self.dice.choice(sorted(self.running))) if self.running else None

    async def ends(self) -> None:
        pod = self.one()
        if pod is not None:
            try:
                await self.node.delete_pod(pod)
            except UnprepareError:
                await self.gives_up(pod.pod.name)

    async def forced(self) -> None:
        """The kubelet forgets the pod and unprepares its claims, while its container runs on."""
        pod = self.one()
        if pod is not None:
            self.node.kubelet.forget_pod(pod.uid)
            self.orphans.append(pod)
            await self.reconcile()

    async def reconcile(self) -> None:
        async with self.reconciling:  # the kubelet has one loop for it
            await self.node.kubelet.reconcile()

    async def orphans_end(self) -> None:
        while self.orphans:
            await self.node.runtime.remove_pod(self.orphans.pop().sandbox_id)

    async def restarts(self) -> None:
        pod = self.one()
        if pod is None:
            return
        try:
            made = await self.node.restart_container(pod, "main")
        except (FakeRuntimeError, KeyError):
            self.node.kubelet.forget_pod(pod.uid)
            self.orphans.append(pod)
        else:
            self.running[pod.pod.name] = RunningPod(pod.pod, pod.sandbox_id, {"main": made})

    # -- disturbances ------------------------------------------------------------------------------

    async def driver_dies(self) -> None:
        await asyncio.gather(self.world.restart_driver(number=signal.SIGKILL), self.shared())

    async def rolls(self) -> None:
        await asyncio.gather(self.world.roll(), self.claimed(), self.ends())

    async def kubelet_restarts(self) -> None:
        await self.node.kubelet.restart()
        await self.node.kubelet.registered(self.world.kind.name, len(self.world.drivers))

    async def runtime_restarts(self) -> None:
        with self.world.away():
            await self.node.runtime.restart()
            await self.node.runtime.plugin_ready()


@pytest.mark.parametrize(
    ("kind", "release", "seed"),
    [(CPU, CONTAINERD_2_4, 1), (CPU, CONTAINERD_1_7, 2), (CPUMEM, CONTAINERD_2_4, 3)],
    ids=["cpu", "cpu-marker", "cpumem"],
)
async def test_no_storm_breaks_exclusivity(
    kind: Kind, release: FakeRuntimeRelease, seed: int, scale: int, tmp_path: Path
):
    for more in range(scale):
        record = tmp_path / f"record-{more}.jsonl"
        async with recorded_node(kind, record, release) as world:
            await world.start_driver()
            storm = Storm(world, seed + 1000 * more)
            await storm.rage(ROUNDS)
        report = world.history.judge()
        report.check()
        assert report.seen["calls"] == len(world.node.kubelet.calls) > ROUNDS
        assert report.seen["readings"] > ROUNDS
        assert report.seen["ownerships"] > 0


_JUMPING_CLOCK = """
import random, time
_day, _day_ns, _dice = time.time, time.time_ns, random.Random(1)
def _jump():
    return _dice.choice((-86400, -1, 0, 1, 86400))
time.time = lambda: _day() + _jump()
time.time_ns = lambda: _day_ns() + _jump() * 10**9
"""
"""Whenever the driver asks for the time of day, it has been set since."""


async def test_a_clock_that_jumps_changes_nothing(tmp_path: Path):
    record = tmp_path / "record.jsonl"
    async with recorded_node(CPU, record, before=_JUMPING_CLOCK) as world:
        await world.start_driver()
        await Storm(world, 4).rage(ROUNDS)
    report = world.history.judge()
    report.check()
    assert report.seen["ownerships"] > 0


MUTANTS = {
    "gives_back_too_early": "intruder",
    "ignores_what_it_missed": "intruder",
    "loses_state": "vanished",
    "pins_all_to_the_same_cpus": "intruder",
    "pins_the_wrong_cpu": "misplaced",
}
"""Those of the end-to-end tests that need nothing but a storm to show."""


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_a_storm_with_a_broken_driver_is_found_out(mutant: str, tmp_path: Path):
    directory = Path(__file__).parents[1] / "e2e/mutants"
    before = f"sys.path.append({str(directory)!r})\nimport {mutant}"
    found: set[str] = set()
    for seed in range(1, 6):  # what the dice say is luck; an honest driver would survive them all
        record = tmp_path / f"record-{seed}.jsonl"
        async with recorded_node(CPU, record, before=before) as world:
            await world.start_driver()
            await Storm(world, seed).rage(ROUNDS)
        found |= world.history.judge().kinds()
        if MUTANTS[mutant] in found:
            return
    pytest.fail(f"five storms do not notice a driver that {mutant}, only {found or 'nothing'}")
