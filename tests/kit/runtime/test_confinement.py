"""A cgroup above a container that withholds its CPUs is reported: the kernel then runs it on others."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from drakit.core.cpuset import CpuSet
from drakit.kit.host import Host
from tests.kit.test_host import pair, serving, world

ALL = CpuSet.range(0, 8)


@dataclass(frozen=True)
class Kernel:
    """The cgroup files of a simulated node, with the rule by which the kernel combines them."""

    root: Path
    host: Host
    owner: str
    sharer: str

    def allow(self, cgroup: str, cpus: str) -> None:
        """Limit a cgroup, and let everything below follow."""
        (self.root / cgroup / "cpuset.cpus").write_text(cpus + "\n")
        self.settle(ALL)

    def settle(self, online: CpuSet) -> None:
        """Write ``cpuset.cpus.effective`` everywhere: what of a wish is left, or else what is above."""
        self._write(self.root, online)

    def _write(self, directory: Path, available: CpuSet) -> None:
        (directory / "cpuset.cpus.effective").write_text(f"{available}\n")
        for below in filter(Path.is_dir, directory.iterdir()):
            file = below / "cpuset.cpus"
            wish = CpuSet.parse(file.read_text()) if file.exists() else CpuSet()
            self._write(below, (wish & available) or available)

    def cpus(self, container: str) -> CpuSet:
        return CpuSet.parse((self.root / container / "cpuset.cpus.effective").read_text())

    def counted(self, result: str) -> float:
        return self.host.metrics.drift.labels(result).value


@asynccontextmanager
async def kernel() -> AsyncIterator[Kernel]:
    """A pod that owns 2-3 and one that shares the rest, below ``kubepods``."""
    async with world() as node, serving(node, verify_seconds=0.0) as host:
        node.allocate("c", [pair(1)], consumers=["p"])
        owner = await node.run_pod("p", {"main": ["c"]})
        sharer = await node.run_pod("q", {"main": []})
        paths = [pod.containers["main"].value.cgroups_path.strip("/") for pod in (owner, sharer)]
        made = Kernel(Path(node.cgroup_root), host, *paths)
        made.settle(ALL)
        yield made


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


async def test_a_claimed_container_moved_to_other_cpus_is_reported_once_and_counted_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with kernel() as node:
        await node.host.verify()
        assert _warnings(caplog) == []
        node.allow("kubepods", "4-7")
        assert node.cpus(node.owner) == CpuSet.range(4, 8)
        await node.host.verify()
        await node.host.verify()
        (warning,) = _warnings(caplog)
        assert "cpus=2-3 effective_cpus=4-7 cgroup=kubepods allowed_cpus=4-7" in warning
        assert node.counted("reported") == 2
        assert node.counted("corrected") == 0

        node.allow("kubepods", "0-7")
        caplog.set_level(logging.INFO)
        await node.host.verify()
        assert any("no longer confined" in each.getMessage() for each in caplog.records)
        assert node.counted("reported") == 2


async def test_a_claimed_container_that_lacks_a_cpu_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with kernel() as node:
        pod = str(Path(node.owner).parent)
        node.allow(pod, "1-2")
        await node.host.verify()
        (warning,) = _warnings(caplog)
        assert f"cpus=2-3 effective_cpus=2 cgroup={pod} allowed_cpus=1-2" in warning


async def test_a_shared_container_on_claimed_cpus_is_reported_and_one_with_fewer_cpus_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with kernel() as node:
        pod = str(Path(node.sharer).parent)
        node.allow(pod, "4-5")
        await node.host.verify()
        assert _warnings(caplog) == []
        node.allow(pod, "2-3")
        assert node.cpus(node.sharer) == CpuSet.range(2, 4)
        await node.host.verify()
        (warning,) = _warnings(caplog)
        assert " effective_cpus=2-3 " in warning


async def test_an_offline_cpu_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with kernel() as node:
        node.allow(str(Path(node.owner).parent), "1-3")
        node.settle(ALL - CpuSet([3]))
        assert node.cpus(node.owner) == CpuSet([2])
        await node.host.verify()
        assert _warnings(caplog) == []
        assert node.counted("reported") == 0
