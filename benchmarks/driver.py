"""Benchmark of a DRA driver with the fakes; any driver, given as a command line.

    python -m benchmarks.driver                                   # dra-driver-cpu of this tree
    python -m benchmarks.driver -- my-driver --kubeconfig {kubeconfig} --kubelet-root-dir {kubelet_root} …

Placeholders in a command: {kubeconfig} {kubelet_root} {nri_socket} {cdi_dir} {cgroup_root} {node}
{sysfs_root}. Several commands, separated by ``---``, are measured alternately in one run, so that their
ratios are meaningful on a noisy machine.

Measured: exec → registered with the kubelet → slices written; idle memory (resident, proportional,
anonymous); idle CPU; prepare with one claim and with fifty at once; the response to container
creation with 500 containers on the node.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field

from drakit.core.objects import DeviceRequestAllocationResult, ResourceSlice, from_builtins
from drakit.core.quantity import Quantity
from drakit.testing.node import SimulatedNode
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree

OURS = [
    sys.executable, "-c", "from drakit.drivers.cpu.program import main; raise SystemExit(main())",
    "--kubeconfig={kubeconfig}", "--kubelet-root-dir={kubelet_root}", "--nri-socket={nri_socket}",
    "--cdi-dir={cdi_dir}", "--cgroup-root={cgroup_root}", "--hostname-override={node}",
    "--sysfs-root={sysfs_root}", "--bind-address=127.0.0.1:0", "--log-level=warning",
]  # fmt: skip
AT_ONCE = 50
CONTAINERS = 500
REST_SECONDS = 5.0


@dataclass
class Readings:
    """Results of one run; times in milliseconds, memory in megabytes."""

    values: dict[str, float] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        self.values[name] = value


def memory(pid: int) -> dict[str, float]:
    """Resident, proportional and anonymous memory of a process, from the kernel."""
    wanted = {"Rss": "resident MB", "Pss": "proportional MB", "Anonymous": "anonymous MB"}
    found = {}
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        for line in file:
            key, _, rest = line.partition(":")
            if key in wanted:
                found[wanted[key]] = int(rest.split()[0]) / 1024
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(samples: list[float], share: float) -> float:
    """The value below which *share* of the samples lie."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def measure(command: list[str], scratch: str) -> Readings:
    """Start the driver on a new simulated node and measure it."""
    readings = Readings()
    root = os.path.join(scratch, "m")
    write_tree(build(sockets=2, nodes=2, llcs=2, cores=16, threads=2), root)
    async with SimulatedNode(scratch, online_cpus="0-255", request_timeout=10) as node:
        node.arguments()
        places = {
            "kubeconfig": os.path.join(scratch, "kubeconfig.json"), "kubelet_root": node.kubelet_root,
            "nri_socket": node.nri_socket, "cdi_dir": node.cdi_dir, "cgroup_root": node.cgroup_root,
            "node": node.name, "sysfs_root": root,
        }  # fmt: skip
        filled = [word.format(**places) if "{" in word else word for word in command]
        begin = time.perf_counter()
        driver = await asyncio.create_subprocess_exec(*filled, stderr=asyncio.subprocess.DEVNULL)
        try:
            name = await start(node, readings, begin)
            await at_rest(driver.pid, readings, "at rest: ")
            await prepares(node, name, readings)
            await creations(node, readings)
            await at_rest(driver.pid, readings, f"with {CONTAINERS} containers: ")
        finally:
            driver.terminate()
            await asyncio.wait_for(driver.wait(), 20)
    return readings


async def start(node: SimulatedNode, readings: Readings, begin: float) -> str:
    async with asyncio.timeout(60):
        while not node.kubelet.plugins.endpoints:
            await asyncio.sleep(0.002)
        readings.note("exec → registered ms", 1000 * (time.perf_counter() - begin))
        name = node.kubelet.plugins.endpoints[0].driver
        while not node.api.objects("resourceslices"):
            await asyncio.sleep(0.002)
    readings.note("exec → slices written ms", 1000 * (time.perf_counter() - begin))
    await node.runtime.plugin_ready()
    return name


async def at_rest(pid: int, readings: Readings, when: str) -> None:
    await asyncio.sleep(1.0)
    before = cpu_seconds(pid)
    await asyncio.sleep(REST_SECONDS)
    readings.note(f"{when}CPU %", 100 * (cpu_seconds(pid) - before) / REST_SECONDS)
    for key, value in memory(pid).items():
        readings.note(f"{when}{key}", value)


def free_devices(node: SimulatedNode, name: str) -> list[DeviceRequestAllocationResult]:
    """One allocation result per possible claim: devices, or single units of shared devices."""
    results = []
    for document in node.api.objects("resourceslices", fields=f"spec.driver={name}"):
        spec = from_builtins(document, ResourceSlice).spec
        for device in spec.devices:
            shares = 1
            consumed: dict[str, Quantity] = {}
            if device.allow_multiple_allocations:
                consumed = dict.fromkeys(device.capacity, Quantity(1))
                shares = max(1, min(c.value.ceil() for c in device.capacity.values()) - 2)
            for share in range(shares):
                results.append(
                    DeviceRequestAllocationResult(
                        request="r", driver=name, pool=spec.pool.name, device=device.name,
                        share_id=f"share-{share}" if consumed else None, consumed_capacity=consumed,
                    )
                )  # fmt: skip
    return results


async def prepares(node: SimulatedNode, name: str, readings: Readings) -> None:
    results = free_devices(node, name)[: 2 * AT_ONCE]
    kubelet = node.kubelet
    alone = []
    from drakit.testing.kubelet import ContainerClaim, FakePod, PodClaim

    def pod(number: int) -> FakePod:
        claim = f"claim-{number}"
        return FakePod(
            f"p{number}", claims=(PodClaim(claim, claim),), containers={"main": (ContainerClaim(claim),)}
        )

    half = len(results) // 2
    for number, result in enumerate(results):
        node.allocate(f"claim-{number}", [result], consumers=[f"p{number}"])
    for number in range(half):
        begin = time.perf_counter()
        await kubelet.run_pod(pod(number))
        alone.append(1000 * (time.perf_counter() - begin))
    readings.note("prepare, one at a time, p50 ms", statistics.median(alone))
    readings.note("prepare, one at a time, p99 ms", percentile(alone, 0.99))
    together: list[float] = []

    async def one(number: int) -> None:
        begin = time.perf_counter()
        await kubelet.run_pod(pod(number))
        together.append(1000 * (time.perf_counter() - begin))

    await asyncio.gather(*(one(number) for number in range(half, len(results))))
    readings.note(f"prepare, {len(together)} at once, p50 ms", statistics.median(together))
    readings.note(f"prepare, {len(together)} at once, p99 ms", percentile(together, 0.99))
    for number in range(len(results)):
        await kubelet.stop_pod(f"uid-of-p{number}")


async def creations(node: SimulatedNode, readings: Readings) -> None:
    samples = []
    for number in range(CONTAINERS):
        sandbox = await node.runtime.run_pod(f"c{number}")
        begin = time.perf_counter()
        await node.runtime.create(sandbox.id, "main")
        samples.append(1000 * (time.perf_counter() - begin))
    last = samples[-100:]
    readings.note("container creation, last 100 of 500, p50 ms", statistics.median(last))
    readings.note("container creation, last 100 of 500, p99 ms", percentile(last, 0.99))


def commands(arguments: list[str]) -> list[list[str]]:
    """Split the command lines at ``---``; dra-driver-cpu by default."""
    words = arguments[1:] if arguments[:1] == ["--"] else arguments
    found: list[list[str]] = [[]]
    for word in words:
        if word == "---":
            found.append([])
        else:
            found[-1].append(word)
    given = [each for each in found if each]
    return given or [OURS]


def main(arguments: list[str] | None = None) -> int:
    """Measure and print a table; with several commands, ratios to the first."""
    lines = commands(sys.argv[1:] if arguments is None else arguments)
    rounds = 1 if len(lines) == 1 else 3
    found: list[list[Readings]] = [[] for _ in lines]
    for _ in range(rounds):
        for number, command in enumerate(lines):
            with tempfile.TemporaryDirectory(prefix="dk", dir="/tmp") as scratch:
                found[number].append(asyncio.run(measure(command, scratch)))
    names = list(found[0][0].values)
    for number, command in enumerate(lines):
        print(f"[{number + 1}] {' '.join(command)[:150]}")
    for name in names:
        row = [statistics.median([r.values[name] for r in runs]) for runs in found]
        ratios = "".join(f"  ×{value / row[0]:.2f}" if row[0] else "" for value in row[1:])
        print(f"{name:<52}" + "".join(f"{value:>10.2f}" for value in row) + ratios)
    return 0


if __name__ == "__main__":
    sys.exit(main())
