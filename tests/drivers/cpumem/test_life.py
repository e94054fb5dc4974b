"""The real program on a simulated node: kubelet, runtime and API server around it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from drakit.core.cpuset import CpuSet
from drakit.core.objects import DeviceRequestAllocationResult
from drakit.core.quantity import Quantity
from drakit.drivers.cpu.program import program as cpu_program
from drakit.drivers.cpumem.discovery import CpuMemDiscovery
from drakit.drivers.cpumem.program import program as cpumem_program
from drakit.kit.claims.checkpoint import read_claims
from drakit.kit.claims.exclusion import exclude_other_drivers
from drakit.kit.config import settings as configuration
from drakit.kit.host import Host
from drakit.kit.program import Program, _act, _parser
from drakit.testing.kubelet import PrepareError
from drakit.testing.node import SimulatedNode
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree
from drakit.wire.nri.values import Resources
from tests.drivers.cpumem.amounts import GI, MI, pool

DRIVER = "dra.cpumem"
PATIENCE = 120.0
MACHINE = build(
    sockets=2,
    cores=4,
    threads=2,
    memory_per_node=8 * GI,
    hugepages=[pool("2Mi", 512), pool("1Gi", 1)],
    memory_only_nodes=1,
)


@contextlib.asynccontextmanager
async def world() -> AsyncIterator[SimulatedNode]:
    with tempfile.TemporaryDirectory(prefix="dk", dir="/tmp") as directory:
        write_tree(MACHINE, os.path.join(directory, "machine"))
        async with SimulatedNode(directory, online_cpus=str(MACHINE.online)) as node:
            yield node


def config_of(node: SimulatedNode, program: Program[Any], *flags: str) -> configuration.Loaded[Any]:
    arguments = [*node.arguments(), "--sysfs-root", os.path.join(node.directory, "machine"), *flags]
    parser: argparse.ArgumentParser = _parser(program)
    return configuration.load(program.config, parser, arguments, {}, prefix=program.prefix)


@contextlib.asynccontextmanager
async def serving(node: SimulatedNode, *flags: str) -> AsyncIterator[Host]:
    """The driver with everything its command would give it, in this process."""
    config = config_of(node, cpumem_program(), *flags).config
    discover = CpuMemDiscovery()
    reconciler = discover.reconciler(config, node.name)
    await reconciler.establish(read_claims(config.checkpoint_dir(DRIVER)))
    host = node.host(
        lambda: discover(config, node.name), config, cpumem_program().gauges, reconciler=reconciler
    )
    task = asyncio.create_task(host.run())
    try:
        await eventually(lambda: task.done() or set(host.conditions().values()) == {None})
        if task.done():
            task.result()
        yield host
    finally:
        host.stop()
        await asyncio.wait_for(task, PATIENCE)


async def eventually(look: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not look():
            await asyncio.sleep(0.01)


def result(device: str, request: str = "r", **amounts: str) -> DeviceRequestAllocationResult:
    return DeviceRequestAllocationResult(
        request=request,
        driver=DRIVER,
        pool="node-1",
        device=device,
        share_id=f"share-{device}-{request}",
        consumed_capacity={f"{DRIVER}/{key}": Quantity(value) for key, value in amounts.items()},
    )


def written(node: SimulatedNode, pod: str, container: str, file: str) -> str:
    path = Path(node.cgroup_root, f"kubepods/poduid-of-{pod}", container, file)
    return path.read_text(encoding="ascii").strip()


async def test_a_claim_s_whole_life():
    async with world() as node, serving(node) as host:
        node.allocate(
            "mine", [result("numa1", cpu="2", memory="256Mi", hugepages2Mi="32Mi")], consumers=["pod"]
        )
        beside = await node.runtime.run_pod("beside", uid="uid-of-beside")
        other = await node.runtime.run(beside.id, "main")
        running = await node.run_pod("pod", {"main": ["mine"]})
        main = running.containers["main"]
        cpus = CpuSet.parse(main.cpus)
        assert len(cpus) == 2
        assert cpus <= MACHINE.node_cpus[1]
        assert main.resources.mems == "1"
        assert main.resources.hugepage_limits == {"2MB": 32 * MI}
        for file in ("hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"):
            assert written(node, "pod", main.id, file) == str(32 * MI)
        assert f"DRA_CPUSET={cpus}" in main.value.env
        assert "DRA_MEMS=1" in main.value.env
        await eventually(lambda: CpuSet.parse(other.cpus) == MACHINE.online - cpus)
        restarted = await node.restart_container(running, "main")
        assert restarted.resources == main.resources
        text = host.metrics.exposition().decode()
        assert 'dra_cpumem_claimed{kind="memory",numa_node="1"}' in text
        await node.delete_pod(running)
        assert len(host.checkpoint.prepared_claims) == 0
        await eventually(lambda: CpuSet.parse(other.cpus) == MACHINE.online)


async def test_vector_5_classic_pages_in_the_runtime():
    async with world() as node, serving(node):
        node.allocate("mine", [result("numa0", memory="1Gi")], consumers=["pod"])
        claimed = await node.run_pod("pod", {"main": ["mine"]})
        devices = node.kubelet.cdi_devices(claimed.uid)["main"]
        classic = Resources(hugepage_limits={"2MB": 256 * MI, "1GB": 0})
        both = await node.runtime.run(claimed.sandbox_id, "classic", cdi_devices=devices, resources=classic)
        assert both.resources.hugepage_limits == {"2MB": 256 * MI, "1GB": 0}
        assert both.resources.mems == "0"
        assert not [file for file in both.resources.unified if file.startswith("hugetlb")]


async def test_vector_7_a_restart_finds_its_claims_and_says_the_same():
    async with world() as node:
        node.allocate("mine", [result("numa0", cpu="2", memory="1Gi")], consumers=["pod"])
        async with serving(node) as host:
            running = await node.run_pod("pod", {"main": ["mine"]})
            before = [each["spec"] for each in node.api.objects("resourceslices")]
            assert before
            devices = [device for pool in host.offer.pools for device in pool.devices]
        async with serving(node) as host:
            assert [device for pool in host.offer.pools for device in pool.devices] == devices
            assert [each["spec"] for each in node.api.objects("resourceslices")] == before
            assert host.checkpoint.prepared_claims.amount("numa0/memory") == GI
            assert running.containers["main"].resources.mems == "0"
            await node.delete_pod(running)


async def test_vector_11_a_claim_for_nothing_is_rejected_by_prepare():
    async with world() as node, serving(node):
        node.allocate("nothing", [result("numa0", cpu="0", memory="0")], consumers=["pod"])
        with pytest.raises(PrepareError, match=r"asks for nothing; .* dra\.cpumem/hugepages1Gi"):
            await node.run_pod("pod", {"main": ["nothing"]})


async def test_the_cpu_driver_and_this_one_do_not_serve_together():
    """The command ends, and names the other."""
    async with world() as node:
        first = config_of(node, cpu_program()).config
        with exclude_other_drivers(first, "dra.cpu", ("dra.cpumem",)):
            loaded = config_of(node, cpumem_program())
            with pytest.raises(ValueError, match=r"the driver dra\.cpu serves on this node"):
                await asyncio.to_thread(_act, cpumem_program(), loaded, node.name)
