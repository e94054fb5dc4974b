"""Any sequence of what happens on a node: nothing is lost, nothing is held twice.

Pods come, share claims, go, or vanish; kubelet and driver restart, a second instance runs beside the
first, the machine reboots, the API server goes away. After every step checkpoint, CDI specs and what the
kubelet believes must agree; and another program finds nothing wrong in the record of all calls.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile

import pytest

from drakit.kit.claims.cdi_specs import ClaimSpecs
from drakit.kit.claims.checkpoint import Checkpoint
from drakit.kit.claims.metadata import MetadataFiles
from drakit.kit.claims.preparer import Preparer
from drakit.testing.kubelet import ContainerClaim, FakeKubelet, FakePod, PodClaim, PrepareError
from drakit.wire.cdi.spec import decode_spec
from drakit.wire.kubelet import KubeletPlugin
from tests.history.fakes import NodeRecording
from tests.history.recorder import Recorder
from tests.kit.claimworld import DRIVER, Claims, FakeNode, NumberDriver, resource_claim

STEPS = 40
NUMBERS = 5


class Instance:
    """One process of the driver."""

    def __init__(self, life, uid):
        self.checkpoint = Checkpoint(os.path.join(life.root, "claims"), boot=life.boot)
        driver = NumberDriver(NUMBERS)
        self.preparer = Preparer(
            FakeNode(driver),
            checkpoint=self.checkpoint,
            source=life.claims,
            cdi=ClaimSpecs(life.cdi, driver.cdi_kind),
            metadata=MetadataFiles(life.root, DRIVER),
        )
        self.plugin = KubeletPlugin(DRIVER, self.preparer, kubelet_root=life.root, instance_uid=uid)

    async def start(self):
        self.checkpoint.load()
        await self.preparer.restore()
        await self.plugin.start_service()
        await self.plugin.register()


class Life:
    def __init__(self, root, seed):
        self.root = root
        self.rng = random.Random(seed)
        self.cdi = os.path.join(root, "cdi")
        self.boot = "boot-0"
        self.claims = Claims()
        self.kubelet = FakeKubelet(root)
        self.history = NodeRecording(
            Recorder(os.path.join(root, "record.jsonl")), os.path.join(root, "claims"), "number"
        )
        self.history.follow_kubelet(self.kubelet)
        self.instances = []
        self.running = {}  # pod UID to its pod
        self.pending = {}
        self.numbers = {}  # claim UID to the number its first pod was given
        self.count = 0
        self.done = []

    def name(self, what):
        self.count += 1
        return f"{what}-{self.count}"

    async def add_instance(self):
        instance = Instance(self, self.name("instance"))
        await instance.start()
        self.instances.append(instance)
        await self.kubelet.registered(DRIVER, len(self.instances))

    # -- what can happen ---------------------------------------------------------------------------

    async def pod_comes(self):
        name = self.name("claim")
        pod = self.pod(self.name("pod"), name)
        self.claims.add(resource_claim(name, pods=(pod.uid,)))
        await self.try_to_run(pod)

    async def pod_joins(self):
        if not self.running:
            return
        first = self.rng.choice(sorted(self.running.values(), key=lambda pod: pod.name))
        claim = first.claims[0].claim
        document = self.claims.documents["default", claim]
        pod = self.pod(self.name("pod"), claim)
        pods = (*(c.uid for c in document.status.reserved_for), pod.uid)
        self.claims.add(resource_claim(claim, pods=pods))
        await self.try_to_run(pod)

    async def pod_ends(self):
        if self.running:
            uid = self.rng.choice(sorted(self.running))
            await self.kubelet.stop_pod(uid)
            del self.running[uid]

    async def pod_vanishes(self):
        if self.running:
            uid = self.rng.choice(sorted(self.running))
            self.kubelet.forget_pod(uid)
            del self.running[uid]

    async def kubelet_reconciles(self):
        await self.kubelet.reconcile()
        for uid, pod in sorted(self.pending.items()):
            del self.pending[uid]
            await self.try_to_run(pod, again=True)

    async def kubelet_restarts(self):
        await self.kubelet.restart()
        await self.kubelet.registered(DRIVER, len(self.instances))

    async def driver_restarts(self):
        instance = self.instances.pop(self.rng.randrange(len(self.instances)))
        await instance.plugin.close()
        await self.add_instance()

    async def second_instance(self):
        if len(self.instances) < 2:
            await self.add_instance()
        else:
            await self.instances.pop(0).plugin.close()
            await self.kubelet.registered(DRIVER, 1)

    async def cdi_directory_is_emptied(self):
        shutil.rmtree(self.cdi, ignore_errors=True)
        await self.driver_restarts()

    async def api_server_goes_or_comes(self):
        self.claims.away = not self.claims.away

    async def machine_reboots(self):
        for instance in self.instances:
            await instance.plugin.close()
        self.boot = self.name("boot")
        self.instances.clear()
        await self.kubelet.reboot(lambda: shutil.rmtree(self.cdi, ignore_errors=True))
        self.history.rebooted()
        await self.add_instance()
        for pod in list(self.running.values()):
            del self.running[pod.uid]
            await self.try_to_run(pod, again=True)

    async def close(self):
        for instance in self.instances:
            await instance.plugin.close()

    # -- helpers -----------------------------------------------------------------------------------

    def pod(self, name, claim):
        return FakePod(name, claims=(PodClaim("n", claim),), containers={"main": (ContainerClaim("n"),)})

    async def try_to_run(self, pod, *, again=False):
        document = self.claims.documents["default", pod.claims[0].claim]
        try:
            if again:
                await self.kubelet.sync_pod(pod.uid, [document])
            else:
                await self.kubelet.run_pod(pod, [document])
        except PrepareError as reason:
            known = ("no number is free", "does not answer")
            assert any(text in str(reason) for text in known), reason
            self.pending[pod.uid] = pod
        else:
            self.running[pod.uid] = pod

    def check(self):
        self.history.look()
        truth = Checkpoint(os.path.join(self.root, "claims"), boot=self.boot)
        truth.load()
        held = {entry.uid: entry.exclusive("number") for entry in truth.prepared_claims}
        numbers = [number for each in held.values() for number in each]
        assert len(numbers) == len(set(numbers)), "held twice"
        assert truth.unreadable == {}
        for uid in held:
            assert self.kubelet.knows(uid), "held for a claim nobody will unprepare"
        specs = {}
        for name in os.listdir(self.cdi) if os.path.isdir(self.cdi) else ():
            with open(os.path.join(self.cdi, name), "rb") as file:
                for device in decode_spec(file.read()).devices:
                    specs[f"example.com/number={device.name}"] = device.container_edits.env
        for pod in self.running.values():
            uid = f"uid-{pod.claims[0].claim}"
            assert uid in held, "lost"
            (number,) = held[uid]
            assert self.numbers.setdefault(uid, number) == number, "changed under a pod"
            devices = self.kubelet.cdi_devices(pod.uid)["main"]
            assert [f"NUMBER_{uid}={number}" in specs[device] for device in devices] == [True]


@pytest.mark.parametrize("seed", range(4))
async def test_a_life(seed, scale):
    for more in range(scale):
        place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="k", dir=place) as root:
            await live(Life(root, seed + 1000 * more))


async def live(life):
    often = [life.pod_comes, life.pod_ends, life.pod_joins, life.pod_vanishes]
    steps = often * 3 + [
        life.kubelet_reconciles,
        life.kubelet_reconciles,
        life.kubelet_restarts,
        life.driver_restarts,
        life.second_instance,
        life.cdi_directory_is_emptied,
        life.api_server_goes_or_comes,
        life.machine_reboots,
    ]
    async with life.kubelet, contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(life.close)
        await life.add_instance()
        for _ in range(STEPS):
            step = life.rng.choice(steps)
            if life.claims.away and life.rng.random() < 0.5:
                step = life.api_server_goes_or_comes
            life.done.append(step.__name__)
            await step()
            life.check()
        life.claims.away = False
        for uid in list(life.running):
            await life.kubelet.stop_pod(uid)
        life.running.clear()
        for uid in life.pending:
            life.kubelet.forget_pod(uid)
        await life.kubelet.reconcile()
        life.check()
        assert not os.path.isdir(life.cdi) or os.listdir(life.cdi) == []
    report = life.history.judge()
    report.check()
    assert report.seen["calls"] == len(life.kubelet.calls) > 0
    assert report.seen["listings"] > 0
