"""A node on disk: a machine, a checkpoint, and the cgroups and processes of its pods."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from drakit.core.cpuset import CpuSet
from drakit.drivers.cpumem.audit.observed import CgroupScanner
from drakit.drivers.cpumem.audit.verdict import Verdict, audit
from drakit.drivers.cpumem.driver import CpuMemDriver, cpumem_driver
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.kit.claims import cdi_names as names
from drakit.kit.driver import PreparedClaim, PreparedClaims, PreparedDevice
from drakit.machine.model import HugepagePool, Machine
from drakit.testing.synthetic import build

MI, GI = 1 << 20, 1 << 30
POD = "11111111-2222-3333-4444-555555555555"
OTHER = "66666666-7777-8888-9999-000000000000"
SLICE = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{}.slice"
POD_PATH = SLICE.format(POD.replace("-", "_"))
OTHER_PATH = SLICE.format(OTHER.replace("-", "_"))


def machine() -> Machine:
    made = build(sockets=2, cores=2, threads=1)
    pools = (HugepagePool(2 * MI, 64, 64), HugepagePool(64 << 10, 64, 64))
    nodes = tuple(replace(n, memory_bytes=8 * GI, hugepages=pools) for n in made.numa_nodes)
    return replace(made, numa_nodes=nodes)


def claim(uid: str = "claim-a", consumer: str = POD) -> PreparedClaim:
    """CPUs 2-3, 256 Mi and 32 Mi of 2 Mi pages on node 1."""
    prepared = PreparedDevice(
        request="all",
        pool="n",
        device="numa1",
        exclusive={"cpu": CpuSet.parse("2-3")},
        amounts={"numa1/memory": 256 * MI, "numa1/hugepages2Mi": 32 * MI},
    )
    return PreparedClaim(uid=uid, namespace="default", name=uid, devices=(prepared,), consumers=(consumer,))


@dataclass
class Node:
    """Directories below *place*: ``cgroup``, ``proc``."""

    place: Path
    config: CpuMemConfig = field(default_factory=lambda: CpuMemConfig(memory_qos="claims"))
    entries: tuple[PreparedClaim, ...] = ()
    _pids: int = 100

    @property
    def driver(self) -> CpuMemDriver:
        return cpumem_driver(self.config, machine())

    def write(self, path: str, **files: str) -> None:
        directory = self.place / "cgroup" / path
        directory.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (directory / name.replace("__", ".")).write_text(f"{value}\n")

    def file(self, path: str, name: str) -> Path:
        return self.place / "cgroup" / path / name

    def container(
        self, pod_path: str, digit: str, *claims: PreparedClaim, comm: str = "app", **files: str
    ) -> str:
        """A container of a pod; *files* with ``__`` for the dots of their names."""
        path = f"{pod_path}/cri-containerd-{digit * 64}.scope"
        self._pids += 1
        self.write(path, cgroup__procs=str(self._pids), **files)
        proc = self.place / "proc" / str(self._pids)
        proc.mkdir(parents=True)
        marks = [f"{names.marker_variable(p)}={KIND}" for c in claims for p in names.requests_of(c)]
        (proc / "environ").write_text("\0".join(["PATH=/bin", *marks, ""]))
        (proc / "comm").write_text(f"{comm}\n")
        return path

    def scanner(self) -> CgroupScanner:
        return CgroupScanner(str(self.place / "cgroup"), str(self.place / "proc"), KIND, self.entries)

    def audit(self) -> list[Verdict]:
        scanner = self.scanner()
        driver = self.driver
        return audit(driver, driver.memory_policy, PreparedClaims(self.entries), scanner.pods(), scanner.read)


KIND = "dra.k8s.io/cpumem"
LIMIT = str(32 * MI)
MEMORY = str(256 * MI)


def as_it_must_be(place: Path) -> Node:
    """One pod with a claim, one without, both as the driver makes them."""
    entry = claim()
    node = Node(place, entries=(entry,))
    node.write("", cgroup__controllers="cpuset memory hugetlb")
    pages = {"hugetlb__2MB__max": LIMIT, "hugetlb__2MB__rsvd__max": LIMIT}
    most = {"hugetlb__2MB__max": "max", "hugetlb__2MB__rsvd__max": "max"}
    for path in ("kubepods.slice", "kubepods.slice/kubepods-besteffort.slice"):
        node.write(path, memory__min=MEMORY, **most)
    node.write(POD_PATH, memory__min=MEMORY, **pages)
    node.write(OTHER_PATH, memory__min="0")
    node.container(POD_PATH, "f", comm="pause", cpuset__cpus="")
    node.container(
        POD_PATH,
        "a",
        entry,
        cpuset__cpus="2-3",
        cpuset__cpus__effective="2-3",
        cpuset__mems="1",
        memory__min=MEMORY,
        memory__max="max",
        **pages,
    )
    node.container(OTHER_PATH, "b", cpuset__cpus="0-1", cpuset__cpus__effective="0-1")
    return node
