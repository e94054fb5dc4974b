"""Benchmark of one node at its limits: thousands of containers and claims.

    python -m benchmarks.scale
    PYTHONPATH=/path/to/other/src python -m benchmarks.scale     # the same for another version

Every figure is a median and a maximum of several runs in one process. A loop with a fixed amount of
work is also timed ("calibration"), to compare two runs on a machine whose speed changes.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

from drakit.core.cpuset import CpuSet
from drakit.core.objects import DeviceRequestAllocationResult, ResourceClaim, from_builtins, to_builtins
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.driver import cpu_driver
from drakit.kit.claims import cdi_names as names
from drakit.kit.claims.cdi_specs import ClaimSpecs
from drakit.kit.claims.checkpoint import Checkpoint
from drakit.kit.claims.metadata import MetadataFiles
from drakit.kit.claims.preparer import Preparer
from drakit.kit.driver import Driver, Offer, PreparedClaim, PreparedClaims, PreparedDevice
from drakit.kit.runtime.enforcer import Enforcer
from drakit.testing.node import SimulatedNode
from drakit.testing.plugins import ConnectedPlugins
from drakit.testing.synthetic import build
from drakit.wire.kubelet import ClaimRef
from drakit.wire.nri.values import NriContainer, PodSandbox, State

KIND = "dra.k8s.io/cpu"
SIZES = ((500, 250), (1000, 500), (2000, 1000))
RUNS = 20


def calibration() -> float:
    """Milliseconds for a fixed amount of work."""
    begin = time.perf_counter()
    total = 0
    for number in range(2_000_000):
        total += number & 7
    return (time.perf_counter() - begin) * 1e3


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of *work*."""
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3


def report(name: str, samples: list[float]) -> None:
    """Print a figure."""
    print(f"  {name:52} {statistics.median(samples):9.2f} ms   max {max(samples):9.2f}", flush=True)


def claim_uid(number: int) -> str:
    return f"c1a10000-0000-4000-8000-{number:012x}"


def node(
    driver: Driver, count: int, claims: int, *, cdi: bool
) -> tuple[Enforcer, list[PodSandbox], list[NriContainer], list[PreparedClaims]]:
    """An enforcer, the containers of its runtime, and its prepared claims."""
    entries, pods, containers = [], [], []
    for number in range(count):
        uid, env, devices = f"uid-{number}", (), ()
        pods.append(PodSandbox(id=f"s{number}", name=f"p{number}", namespace="d", uid=uid))
        if number < claims:
            prepared = PreparedDevice(
                request="r", pool="n", device=f"cpudev{number:03d}", exclusive={"cpu": CpuSet([number])}
            )
            entry = PreparedClaim(
                uid=claim_uid(number), namespace="d", name=f"c{number}", consumers=(uid,), devices=(prepared,)
            )
            entries.append(entry)
            (part,) = names.requests_of(entry)
            env = (f"{names.marker_variable(part)}={KIND}",)
            devices = (names.qualified_name(KIND, part),) if cdi else ()
        containers.append(
            NriContainer(
                id=f"k{number}",
                pod_id=f"s{number}",
                name="main",
                env=env,
                cdi_devices=devices,
                state=State.RUNNING,
                cgroups_path=f"/kubepods/pod{uid}/k{number}",
            )
        )
    box = [PreparedClaims(entries)]
    return Enforcer(lambda: driver, lambda: box[0], trust_cdi=cdi), pods, containers, box


def events(driver: Driver, count: int, claims: int, *, cdi: bool) -> None:
    """The cost of the runtime's events."""
    enforcer, pods, containers, box = node(driver, count, claims, cdi=cdi)
    print(f" {count} containers, {claims} claims, {'CDI names' if cdi else 'markers'}")

    def synchronize() -> None:
        enforcer.replace_all(pods, containers)
        enforcer.collect_updates()

    report("synchronize", [timed(synchronize) for _ in range(5)])
    create, stop, after = [], [], []
    for number in range(RUNS):
        pod = PodSandbox(id=f"new{number}", name="new", namespace="d", uid=f"new{number}")
        made = NriContainer(id=f"new{number}", pod_id=pod.id, name="m")
        create.append(timed(lambda pod=pod, made=made: enforcer.create(pod, made)))  # type: ignore[misc]
        stop.append(timed(lambda made=made: enforcer.stopped(made.id)))  # type: ignore[misc]
    for number in range(RUNS):
        entries = [each for each in box[0] if each.uid != claim_uid(claims)]
        extra = PreparedClaim(
            uid=claim_uid(claims),
            namespace="d",
            name="extra",
            devices=(PreparedDevice(request="r", pool="n", device="x", exclusive={"cpu": CpuSet([1020])}),),
        )
        box[0] = PreparedClaims([*entries, extra] if number % 2 else entries)
        pod = PodSandbox(id=f"late{number}", name="late", namespace="d", uid=f"late{number}")
        made = NriContainer(id=f"late{number}", pod_id=pod.id, name="m")
        after.append(timed(lambda pod=pod, made=made: enforcer.create(pod, made)))  # type: ignore[misc]
        enforcer.stopped(made.id)
    report("create, nothing else changed", create)
    report("stop", stop)
    report("create, and all others change with it", after)


class Claims:
    """Claims of one CPU each."""

    async def get(self, namespace: str, name: str) -> ResourceClaim:
        number = int(name[1:])
        result = DeviceRequestAllocationResult(
            request="r", driver="dra.cpu", pool="node-1", device=f"cpudev{number:03d}"
        )
        document = {
            "metadata": {"name": name, "namespace": namespace, "uid": claim_uid(number)},
            "status": {"allocation": {"devices": {"results": [to_builtins(result)]}}},
        }
        return from_builtins(document, ResourceClaim)


@dataclass
class ReadyNode:
    """The rest of a driver as the preparer needs it; does nothing."""

    driver: Driver
    offer: Offer
    not_ready: str | None = None

    def user_of(self, uid: str) -> str | None:
        return None

    async def provision(self, claim: PreparedClaim, prepared_claims: PreparedClaims) -> None:
        pass

    def claims_changed(self, prepared_claims: PreparedClaims, *, update_containers: bool) -> None:
        pass

    async def evict_others(self, claim: PreparedClaim) -> None:
        pass


async def prepares(driver: Driver) -> None:
    """The cost of prepare on a file system in memory, where a sync is free."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        checkpoint = Checkpoint(f"{directory}/claims", boot="b")
        checkpoint.load()
        preparer = Preparer(
            ReadyNode(driver, driver.offer().named("node-1")),
            checkpoint=checkpoint,
            source=Claims(),
            cdi=ClaimSpecs(f"{directory}/cdi", KIND),
            metadata=MetadataFiles(f"{directory}/plugin", "dra.cpu"),
        )
        samples: list[float] = []
        print(" prepare, one CPU each, by claims in the checkpoint")
        for number in range(1001):
            begin = time.perf_counter()
            await preparer.prepare(ClaimRef("ns", f"c{number}", claim_uid(number)))
            samples.append((time.perf_counter() - begin) * 1e3)
            if number in (10, 100, 500, 1000):
                report(f"{number} claims", samples[-10:])


async def pushes(count: int, delay: float) -> None:
    """A claimed pod on CPUs that *count* containers are about to get, on a slow runtime."""
    unsolicited = ConnectedPlugins._unsolicited

    async def slow(self: ConnectedPlugins, payload: bytes) -> bytes:
        await asyncio.sleep(delay)
        return await unsolicited(self, payload)

    ConnectedPlugins._unsolicited = slow  # type: ignore[method-assign]
    machine = build(sockets=1, cores=4, threads=2)
    result = DeviceRequestAllocationResult(request="r", driver="dra.cpu", pool="node-1", device="cpudev002")
    try:
        with tempfile.TemporaryDirectory(prefix="dk") as directory:
            async with SimulatedNode(directory, online_cpus="0-7") as simulated:
                config = CpuConfig(**simulated.settings(), cpu_device_mode="individual")
                host = simulated.host(lambda: cpu_driver(config, machine), config)
                serving = asyncio.create_task(host.run())
                await simulated.kubelet.registered("dra.cpu", seconds=60)
                await host.publisher.published.wait()
                for name in ("a", "b"):
                    simulated.allocate(name, [result], consumers=[f"p{name}"])
                first = await simulated.run_pod("pa", {"main": ["a"]})
                shared = []
                for number in range(count):
                    pod = await simulated.runtime.run_pod(f"s{number}")
                    shared.append(await simulated.runtime.run(pod.id, "main"))
                await simulated.delete_pod(first)
                begin = time.perf_counter()
                second = await simulated.run_pod("pb", {"main": ["b"]})
                waited = time.perf_counter() - begin
                worst = 0
                while time.perf_counter() - begin < waited + 2 * count * delay / 8 + 1:
                    own = CpuSet.parse(second.containers["main"].cpus)
                    worst = max(worst, sum(bool(CpuSet.parse(k.cpus) & own) for k in shared))
                    await asyncio.sleep(0.05)
                host.stop()
                await serving
    finally:
        ConnectedPlugins._unsolicited = unsolicited  # type: ignore[method-assign]
    print(f" {count} shared containers, {delay * 1e3:g} ms per update")
    print(f"  {'claimed pod running after':52} {waited * 1e3:9.2f} ms")
    print(f"  {'shared containers seen on its CPUs':52} {worst:9d}")


def main() -> None:
    """Print all figures."""
    logging.disable(logging.CRITICAL)
    driver = cpu_driver(CpuConfig(cpu_device_mode="individual"), build(sockets=2, cores=256, threads=2))
    print(f" calibration {calibration():.1f} ms")
    for cdi in (True, False):
        for count, claims in SIZES:
            events(driver, count, claims, cdi=cdi)
            gc.collect()
    asyncio.run(prepares(driver))
    asyncio.run(pushes(300, 0.04))
    print(f" calibration {calibration():.1f} ms")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f" peak resident memory of this benchmark {peak:.0f} MB")


if __name__ == "__main__":
    main()
