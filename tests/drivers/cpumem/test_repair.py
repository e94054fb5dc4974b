"""A foreign value in any file that the driver owns is found and put right, at every level."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drakit.cgroups.tree import CgroupTree
from drakit.cgroups.values import same_value
from drakit.core.cpuset import CpuSet
from drakit.drivers.cpumem.driver import cpumem_driver
from drakit.drivers.cpumem.qos.reconciler import QosReconciler
from drakit.drivers.cpumem.qos.record import CgroupRecord, FileKey
from drakit.drivers.cpumem.qos.writer import CgroupWriter
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.drivers.models.memory_policy import MemoryQosPolicy
from drakit.kit.claims import cdi_names as names
from drakit.kit.driver import Driver, PreparedClaim, PreparedClaims, PreparedDevice
from drakit.kit.reconciler import PodView
from drakit.kit.runtime.drift import files_of, find_drift, write_directly
from drakit.kit.runtime.enforcer import Enforcer
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.machine.model import CgroupMode, Cgroups
from drakit.testing.node import SimulatedNode
from drakit.testing.runtime_releases import CONTAINERD_2_0, CONTAINERD_2_4, FakeRuntimeRelease
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree
from drakit.wire.nri.values import NriContainer, PodSandbox, Resources, State
from tests.drivers.cpumem.amounts import GI, MI, pool
from tests.drivers.cpumem.qos.cgrouptree import Tree
from tests.drivers.cpumem.test_life import MACHINE, eventually, result, serving

ALL: Final = frozenset({"cpuset", "cpu", "memory", "hugetlb"})
HIERARCHIES: Final = {
    "v2": Cgroups(CgroupMode.V2, controllers=ALL),
    "v2, pages charged": Cgroups(CgroupMode.V2, controllers=ALL, memory_hugetlb_accounting=True),
    "v1": Cgroups(CgroupMode.V1),
}
OF_CONTAINERS: Final = {
    "v2": {
        "cpuset.cpus",
        "cpuset.mems",
        "cpu.max",
        "memory.min",
        "memory.high",
        "hugetlb.2MB.max",
        "hugetlb.2MB.rsvd.max",
        "hugetlb.1GB.max",
        "hugetlb.1GB.rsvd.max",
    },
    "v1": {
        "cpuset.cpus",
        "cpuset.mems",
        "cpu.cfs_quota_us",
        "hugetlb.2MB.limit_in_bytes",
        "hugetlb.1GB.limit_in_bytes",
    },
}
OF_CONTAINERS["v2, pages charged"] = OF_CONTAINERS["v2"] | {"memory.max"}
"""Every file of a container that has everything the driver can set. A further one belongs here."""
POD: Final = "/kubepods/besteffort/podp"
PATH: Final = "kubepods/besteffort/podp/c"


class Node:
    """One container with claims of everything, and its cgroup as a runtime would have made it."""

    def __init__(self, root: Path, hierarchy: str) -> None:
        cgroups = HIERARCHIES[hierarchy]
        machine = replace(
            build(sockets=2, memory_per_node=8 * GI, hugepages=[pool("2Mi", 512), pool("1Gi", 4)]),
            cgroups=cgroups,
        )
        driver = cpumem_driver(
            CpuMemConfig(reserved_memory=""),
            machine,
            policy=MemoryQosPolicy(throttling_factor=0.9, hugetlb_charged=cgroups.memory_hugetlb_accounting),
        )
        amounts = {"numa1/memory": GI, "numa1/hugepages2Mi": 64 * MI, "numa1/hugepages1Gi": GI}
        prepared = PreparedDevice(
            request="r",
            pool="n",
            device="numa1",
            exclusive={"cpu": CpuSet([8, 9]), "memory-node": CpuSet([1])},
            amounts=amounts,
        )
        entry = PreparedClaim(uid="u", namespace="ns", name="c", devices=(prepared,), consumers=("p",))
        prepared_claims = PreparedClaims([entry])
        self.enforcer = Enforcer(lambda: driver, lambda: prepared_claims)
        device = names.qualified_name(driver.cdi_kind, names.requests_of(entry)[0])
        self.enforcer.replace_all(
            [PodSandbox(id="s", uid="p", name="p", namespace="ns", cgroup_parent=POD)],
            [
                NriContainer(
                    id="c",
                    pod_id="s",
                    name="main",
                    state=State.RUNNING,
                    cdi_devices=(device,),
                    cgroups_path=f"/{PATH}",
                    resources=Resources(memory_limit=4 * GI),
                )
            ],
        )
        self.enforcer.collect_updates()
        unified = cgroups.mode is CgroupMode.V2
        if unified:
            root.mkdir(exist_ok=True)
            (root / "cgroup.controllers").write_text(" ".join(sorted(ALL)))
        desired = self.enforcer.desired(self.enforcer.containers["c"])
        self.files = {f: str(value) for f, value in files_of(desired, unified=unified).items()}
        self.root, self.unified = root, unified
        for file, value in self.files.items():
            self.set(file, value)
        self.tree = CgroupTree(str(root))
        self.metrics = HostMetrics("dra.test")

    def set(self, file: str, value: str) -> None:
        controller = "" if self.unified else file.partition(".")[0]
        place = self.root / controller / PATH
        place.mkdir(parents=True, exist_ok=True)
        (place / file).write_text(f"{value}\n")

    def verify(self) -> list[str]:
        """One pass as for a runtime that takes no pushed updates; the files that differed."""
        drifts = find_drift(self.enforcer, self.tree)
        assert write_directly(drifts, self.tree, self.metrics) == []
        return [drift.file for drift in drifts]


@contextlib.contextmanager
def node_of(hierarchy: str) -> Iterator[Node]:
    with tempfile.TemporaryDirectory() as directory:
        yield Node(Path(directory), hierarchy)


def foreign_values(file: str) -> st.SearchStrategy[str]:
    if file.startswith("cpuset."):
        return st.sampled_from(["", "0", "1", "0-1", "2-15", "0-9", "8", "garbage"])
    if file.startswith("cpu."):
        return st.sampled_from(["", "50000 100000", "50000", "1000"])
    return st.sampled_from(["", "0", "max"]) | st.integers(0, 1 << 40).map(str)


@pytest.mark.parametrize("hierarchy", list(HIERARCHIES))
def test_all_files_of_a_container_are_compared(hierarchy: str) -> None:
    with node_of(hierarchy) as node:
        assert set(node.files) == OF_CONTAINERS[hierarchy]
        assert node.verify() == []


@pytest.mark.parametrize("hierarchy", list(HIERARCHIES))
def test_the_page_tells_who_repairs_each_file_of_a_container(hierarchy: str) -> None:
    page = Path(__file__).parents[3].joinpath("docs/memory-qos.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"(?m)(?:^\|.*\n)+", page[page.index("| file (cgroup v1) |") :])[:1]
    of_containers = [row for row in table.splitlines() if "containers" in row.split("|")[2]]
    for file in OF_CONTAINERS[hierarchy]:
        name = re.sub(r"\d+[MG]B", "<size>", file)
        assert any(f"`{name}`" in row for row in of_containers), name


@pytest.mark.parametrize(
    ("hierarchy", "file"), [(each, file) for each, files in OF_CONTAINERS.items() for file in sorted(files)]
)
@settings(max_examples=15)
@given(data=st.data())
def test_a_foreign_value_in_a_container_s_file_is_put_right_in_one_pass(
    hierarchy: str, file: str, data: st.DataObject
) -> None:
    with node_of(hierarchy) as node:
        meant = node.files[file]
        value = data.draw(foreign_values(file).filter(lambda v: not same_value(file, v, meant)))
        node.set(file, value)
        assert node.verify() == [file]
        found = node.tree.look(PATH, file)
        assert found is not None
        assert same_value(file, found, meant)
        assert node.metrics.drift.labels("corrected").value == 1
        assert node.verify() == []


@pytest.mark.parametrize("hierarchy", list(HIERARCHIES))
@pytest.mark.parametrize("more", [1, 4095])
def test_what_the_kernel_rounds_is_no_drift(hierarchy: str, more: int) -> None:
    """Page by page: the kernel keeps less than was asked for, and that is not somebody's doing."""
    with node_of(hierarchy) as node:
        for file, value in node.files.items():
            if file.startswith("memory."):
                whole = (int(value) + more) // 4096 * 4096
                assert same_value(file, str(whole), str(int(value) + more))
            if file == "cpu.max":
                node.set(file, "max 100000")
        assert node.verify() == []


@pytest.mark.parametrize("hierarchy", list(HIERARCHIES))
def test_a_controller_that_is_not_enabled_is_passed_over(hierarchy: str) -> None:
    with node_of(hierarchy) as node:
        for file in node.files:
            controller = "" if node.unified else file.partition(".")[0]
            (node.root / controller / PATH / file).unlink()
        assert node.verify() == []


def test_a_resize_by_the_kubelet_is_no_drift_and_its_limit_is_kept() -> None:
    """The limit that is meant follows the kubelet's; ours is on top of it."""
    with node_of("v2, pages charged") as node:
        known = node.enforcer.containers["c"]
        updates = node.enforcer.update(known.pod, known.reported, Resources(memory_limit=6 * GI))
        limit = updates[0].resources.memory_limit
        assert limit == 6 * GI + GI + 64 * MI
        node.set("memory.max", str(limit))
        node.set("memory.high", updates[0].resources.unified["memory.high"])
        assert node.verify() == []


# -- pods, QoS classes and kubepods ----------------------------------------------------------------

PLACES: Final = {
    "guaranteed": "kubelet/kubepods/podguaranteed",
    "burstable": "kubelet/kubepods/burstable/podburstable",
    "besteffort": "kubelet/kubepods/besteffort/podbesteffort",
}


class _Pods:
    """A pod of each QoS class with a claim, and the reconciler that keeps their cgroups."""

    def __init__(self, root: Path) -> None:
        self.tree = Tree(str(root / "cgroup"))
        self.record = CgroupRecord(str(root / "qos.json"), "boot")
        self.now = 1000.0
        writer = CgroupWriter(self.tree.root, self.record, clock=lambda: self.now)
        self.reconciler = QosReconciler(
            self.tree.root, writer, lambda _: MemoryQosPolicy(), clock=lambda: self.now
        )
        self.pods, entries = [], []
        for number, (uid, path) in enumerate(PLACES.items()):
            self.tree.make(path)
            self.pods.append(PodView(uid, uid, "ns", f"/{path}"))
            amounts = {"numa0/memory": (number + 1) * GI, "numa0/hugepages2Mi": 64 * MI}
            prepared = PreparedDevice(request="r", pool="n", device="numa0", amounts=amounts)
            entries.append(
                PreparedClaim(uid=uid, namespace="ns", name=uid, devices=(prepared,), consumers=(uid,))
            )
        self.tree.set("kubelet/kubepods", "hugetlb.2MB.max", str(2 * MI))
        self.tree.set("kubelet/kubepods", "hugetlb.2MB.rsvd.max", str(2 * MI))
        self.prepared_claims = PreparedClaims(entries)

    async def settle(self) -> None:
        await self.reconciler.reconcile(_DRIVER, self.pods, self.prepared_claims)


class _Named:
    name = "dra.cpumem"


_DRIVER: Driver = _Named()  # type: ignore[assignment]


def owned(record: CgroupRecord) -> dict[FileKey, str]:
    return {kept.key: kept.value for kept in record}


async def test_every_level_above_containers_is_kept(tmp_path: Path) -> None:
    pods = _Pods(tmp_path)
    await pods.settle()
    levels: dict[str, set[str]] = {}
    for key in owned(pods.record):
        levels.setdefault(key.path, set()).add(key.file)
    pages = {"hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"}
    assert levels == {
        "kubelet": {"memory.min", "memory.low"},
        "kubelet/kubepods": {"memory.min", "memory.low", *pages},
        "kubelet/kubepods/burstable": {"memory.low"},
        "kubelet/kubepods/besteffort": {"memory.min"},
        PLACES["guaranteed"]: {"memory.min", *pages},
        PLACES["burstable"]: {"memory.low", *pages},
        PLACES["besteffort"]: {"memory.min", *pages},
    }


@pytest.mark.parametrize("value", ["0", "4096", str(2 * MI)])
async def test_a_foreign_value_above_containers_is_put_right_in_one_pass(tmp_path: Path, value: str) -> None:
    pods = _Pods(tmp_path)
    await pods.settle()
    meant = owned(pods.record)
    assert len(meant) == 17
    for key, right in meant.items():
        pods.now += 1000  # nobody came or went lately, and no earlier repair is held against us
        pods.tree.set(key.path, key.file, value)
        await pods.settle()
        assert pods.tree.get(key.path, key.file) == right, key
        assert owned(pods.record) == meant


# -- through the host ------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def node_with(release: FakeRuntimeRelease) -> AsyncIterator[SimulatedNode]:
    with tempfile.TemporaryDirectory(prefix="dk", dir="/tmp") as directory:
        write_tree(MACHINE, os.path.join(directory, "machine"))
        online = str(MACHINE.online)
        async with SimulatedNode(directory, release=release, online_cpus=online) as node:
            yield node


@pytest.mark.parametrize("release", [CONTAINERD_2_4, CONTAINERD_2_0], ids=str)
async def test_the_host_repairs_every_file_of_pod_and_container(release: FakeRuntimeRelease) -> None:
    """With a runtime that takes pushed updates, and with one whose containers are written directly."""
    pod = "kubepods/poduid-of-pod"
    async with node_with(release) as node, serving(node, "--verify-seconds", "0") as host:
        tree = Tree(node.cgroup_root)
        tree.make(pod)
        amounts = {"cpu": "2", "memory": "256Mi", "hugepages2Mi": "32Mi"}
        node.allocate("mine", [result("numa1", **amounts)], consumers=["pod"])
        running = await node.run_pod("pod", {"main": ["mine"]})
        main = running.containers["main"]
        path = f"{pod}/{main.id}"
        await eventually(lambda: tree.get(pod, "memory.min") == str(256 * MI))
        known = host.runtime.enforcer.containers[main.id]
        await eventually(lambda: known.ran)
        tree.set(path, "cpu.max", "max 100000")
        desired = host.runtime.enforcer.desired(known)
        right = {(path, f): str(v) for f, v in files_of(desired, unified=True).items()}
        assert {file for _, file in right} == {
            "cpuset.cpus",
            "cpuset.mems",
            "cpu.max",
            "memory.min",
            "hugetlb.2MB.max",
            "hugetlb.2MB.rsvd.max",
        }
        record = json.loads(Path(node.kubelet_root, "plugins/dra.cpumem/qos.json").read_bytes())
        right |= {(each["path"], each["file"]): each["value"] for each in record["files"]}
        assert {where for where, _ in right} == {path, pod, "kubepods"}
        for (where, file), meant in sorted(right.items()):
            foreign = "0" if file.startswith("cpuset.") else "4096"
            tree.set(where, file, foreign)
            await host.verify()
            assert host.reconciler_runner is not None
            await host.reconciler_runner.reconcile()
            assert same_value(file, tree.get(where, file), meant), (where, file)
