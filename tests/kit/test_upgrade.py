"""Upgrade and downgrade with live claims: an older drakit, this one, the older one again.

The older one is a commit of this very repository, taken out of its history and run as a process of its
own on the same simulated node. Whoever prepared a claim, the other one keeps it: the same CPUs, the same
cpuset of the running container, the container can restart, the claim can be unprepared.
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from drakit.core.cpuset import CpuSet
from drakit.testing.node import RunningPod
from tests.history.node import CPU, CPUMEM, NEW_SOURCES, Kind, RecordedNode, recorded_node
from tests.history.recorder import checkpoints

OLD_COMMIT = "ab36130"
REPOSITORY = Path(__file__).parents[2]
Step = Callable[[RecordedNode, str], Awaitable[None]]


@pytest.fixture(scope="session")
def old_sources(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The older drakit, out of the repository's history."""
    there = subprocess.run(
        ["git", "-C", str(REPOSITORY), "cat-file", "-e", f"{OLD_COMMIT}^{{commit}}"], capture_output=True
    )
    if there.returncode:
        pytest.skip(f"this clone has no history: commit {OLD_COMMIT} is missing (fetch it in full)")
    command = ["git", "-C", str(REPOSITORY), "archive", OLD_COMMIT, "src/drakit"]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    directory = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(directory, filter="data")
    return str(directory / "src")


async def restarted(world: RecordedNode, sources: str) -> None:
    await world.restart_driver(sources)


async def killed(world: RecordedNode, sources: str) -> None:
    await world.restart_driver(sources, signal.SIGKILL)


async def rolled(world: RecordedNode, sources: str) -> None:
    await world.roll(sources)


class Life:
    """Pods whose containers must stay where they are, whoever serves."""

    def __init__(self, world: RecordedNode) -> None:
        self.world = world
        self.pods: dict[str, RunningPod] = {}
        self.cpus: dict[str, CpuSet] = {}

    async def start(self, name: str, device: int, cpus: int = 2) -> None:
        """A pod with a claim; its CPUs are nobody else's."""
        pod = self.pods[name] = await self.world.claimed_pod(name, device, cpus)
        self.cpus[name] = CpuSet.parse(pod.containers["main"].cpus)
        assert len(self.cpus[name]) == cpus
        self.check()

    async def restart(self, name: str) -> None:
        """The pod's container ends and is created again."""
        made = await self.world.node.restart_container(self.pods[name], "main")
        pod = self.pods[name]
        self.pods[name] = RunningPod(pod.pod, pod.sandbox_id, {"main": made})
        self.check()

    async def end(self, name: str) -> None:
        """The pod ends and gives everything back."""
        await self.world.node.delete_pod(self.pods.pop(name))
        del self.cpus[name]
        self.check()

    def check(self) -> None:
        """Containers, checkpoints and this memory agree; nothing is held twice."""
        seen = {n: CpuSet.parse(pod.containers["main"].cpus) for n, pod in self.pods.items()}
        assert seen == self.cpus
        held = checkpoints(self.world.claims_directory).values()
        assert sorted(str(CpuSet.parse(cpus or "")) for _, cpus in held) == sorted(
            map(str, self.cpus.values())
        )
        assert sum(map(len, seen.values())) == len(CpuSet.union(seen.values()))


@pytest.mark.parametrize("change", [restarted, killed, rolled])
@pytest.mark.parametrize("kind", [CPU, CPUMEM], ids=lambda kind: kind.name)
async def test_claims_survive_an_upgrade_and_a_downgrade(
    kind: Kind, change: Step, old_sources: str, tmp_path: Path
):
    async with recorded_node(kind, tmp_path / "record.jsonl") as world:
        await world.start_driver(old_sources)
        life = Life(world)
        shared = await world.node.run_pod("shared")
        for number in (0, 1):
            await life.start(f"old{number}", number)
            await life.start(f"old-too{number}", number, cpus=1)

        await change(world, NEW_SOURCES)
        life.check()
        await life.restart("old0")
        await life.end("old1")
        for number in (0, 1):
            await life.start(f"new{number}", number)

        await change(world, old_sources)
        life.check()
        await life.restart("new0")
        await life.end("new1")
        await life.end("old0")
        await life.start("last", 1, cpus=3)

        for name in list(life.pods):
            await life.end(name)
        await world.node.delete_pod(shared)
        assert not checkpoints(world.claims_directory)
    report = world.history.judge()
    report.check()
    assert report.seen["containers"] == 10


@pytest.mark.parametrize("newest", ["old", "new"])
async def test_claims_prepared_while_both_serve_are_kept(newest: str, old_sources: str, tmp_path: Path):
    """The kubelet asks the newest instance, the other one still shapes containers."""
    first, second = old_sources, NEW_SOURCES
    if newest == "old":
        first, second = second, first
    async with recorded_node(CPU, tmp_path / "record.jsonl") as world:
        await world.start_driver(first)
        life = Life(world)
        await life.start("before", 0)
        await world.start_driver(second)
        await life.start("beside", 0)
        await life.end("before")
        await life.start("beside-too", 0)
        with world.away():
            connections = world.node.runtime.connections
            await world.end_oldest()
            await world.connected_again(connections)
        life.check()
        await life.restart("beside")
        await life.start("after", 0)
        for name in list(life.pods):
            await life.end(name)
    world.history.judge().check()


async def test_the_checkpoints_are_in_the_first_format(tmp_path: Path):
    """What an older version is to read again after a downgrade."""
    async with recorded_node(CPU, tmp_path / "record.jsonl") as world:
        await world.start_driver()
        await world.claimed_pod("pod")
        (file,) = Path(world.claims_directory).glob("*.json")
        assert json.loads(file.read_bytes())["format"] == 1
