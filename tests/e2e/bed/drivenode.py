"""Driver on a node without a kubelet: the test acts as the kubelet through CRI and DRA's gRPC API.

The driver is a process in the guest and uses the guest's runtime and kernel. Its API server is the fake
on this machine: these tests are about containers.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpclib.client import Channel, UnaryUnaryMethod

from drakit.testing.apiserver import FakeApiServer
from drakit.wire.kubelet import dra_v1_pb2 as dra

from .cri import Cri, Pod, cri_of
from .deploy import PACKAGES_IN_GUEST
from .node import GuestProcess, Node
from .pins import HERE
from .waiting import NotYetError, wait_for

_ROOT = "/var/lib/kubelet"
_SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
_MUTANTS = "/opt/mutants"
_CALL_LIMIT = 60.0


class ClaimRejectedError(Exception):
    """The driver rejected a claim; the text is the message of the pod's event."""


@dataclass(frozen=True)
class Claim:
    """An allocated ResourceClaim."""

    name: str
    uid: str


class DriverProcess:
    """The CPU driver as a process in the guest, optionally changed by a module of ``mutants``."""

    def __init__(self, node: Node, kubeconfig: str, mutant: str = "", **settings: str) -> None:
        self._node, self.mutant = node, mutant
        self._flags = [
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={node.name}",
            "--bind-address=",
            *(f"--{name.replace('_', '-')}={value}" for name, value in settings.items()),
        ]
        self.process: GuestProcess

    def start(self) -> None:
        """Start it and wait until it accepts claims: registration is its last step."""
        changes = f"import {self.mutant}\n" if self.mutant else ""
        program = f"{changes}import sys\nfrom drakit.drivers.cpu.program import main\nsys.exit(main())"
        self._node.run("rm -f /var/lib/kubelet/plugins_registry/*")
        self.process = self._node.spawn(
            f"driver-{self.mutant or 'unchanged'}",
            ["python3", "-c", program, *self._flags],
            {"PYTHONPATH": f"{PACKAGES_IN_GUEST}:{_MUTANTS}"},
        )

        def registers() -> bool:
            if not self.process.alive():
                raise RuntimeError(f"the driver ended: {self.process.log()[-2000:]}")
            if self._node.run(f"ls {_ROOT}/plugins_registry 2> /dev/null || true").strip():
                return True
            raise NotYetError(self.process.log()[-300:])

        wait_for("the driver to register", registers, limit=180, alive=self._node.check)

    def kill(self) -> None:
        """``kill -9`` it; only the test starts it again."""
        self.process.kill()


class DrivenNode:
    """A node, its runtime and its driver, with the operations of a kubelet."""

    def __init__(self, node: Node, cri: Cri, api: FakeApiServer, driver: DriverProcess) -> None:
        self.node, self.driver = node, driver
        self._cri, self._api = cri, api
        self._prepared: list[Claim] = []

    # Claims -----------------------------------------------------------------------------

    def claim(self, pod: Pod, count: int, numa: int, *others: Pod) -> Claim:
        """A claim for CPUs of one NUMA node, allocated and reserved for pods, not yet prepared."""
        name = f"claim-{uuid.uuid4().hex[:8]}"
        result = {
            "request": "cpus",
            "driver": "dra.cpu",
            "pool": self.node.name,
            "device": f"cpudevnuma{numa:03d}",
            "shareID": str(uuid.uuid4()),
            "consumedCapacity": {"dra.cpu/cpu": str(count)},
        }
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [
                {"resource": "pods", "name": each.name, "uid": each.uid} for each in (pod, *others)
            ],
        }
        spec: dict[str, Any] = {"devices": {"requests": []}}
        where: Any = {"namespace": "default"}
        document = {"metadata": {"name": name, **where}, "spec": spec}
        made = self._api.add("resourceclaims", document, **where)
        change = {"status": status}
        self._api.change("resourceclaims", name, change, subresource="status", **where)
        return Claim(name, made["metadata"]["uid"])

    def prepare(self, claim: Claim) -> list[str]:
        """NodePrepareResources: the CDI devices for the containers that use the claim."""
        request = dra.NodePrepareResourcesRequest(claims=[self._named(claim)])
        answer = self._call("NodePrepareResources", request, dra.NodePrepareResourcesResponse)
        prepared = answer.claims[claim.uid]
        if prepared.error:
            raise ClaimRejectedError(prepared.error)
        self._prepared.append(claim)
        return [name for device in prepared.devices for name in device.cdi_device_ids]

    def unprepare(self, claim: Claim) -> None:
        """NodeUnprepareResources."""
        request = dra.NodeUnprepareResourcesRequest(claims=[self._named(claim)])
        answer = self._call("NodeUnprepareResources", request, dra.NodeUnprepareResourcesResponse)
        if answer.claims[claim.uid].error:
            raise ClaimRejectedError(answer.claims[claim.uid].error)

    # Containers -------------------------------------------------------------------------

    def pod(self) -> Pod:
        """A sandbox."""
        return self._cri.run_pod()

    def run(self, pod: Pod, devices: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> str:
        """Start a container in a pod; a rejection by the runtime raises ``GRPCError``."""
        return self._cri.run_container(pod, devices=devices, environment=environment)

    def owner(self, count: int, numa: int, **environment: str) -> tuple[str, Claim]:
        """Start a pod with a container and its own claim; return the container and the claim."""
        pod = self.pod()
        claim = self.claim(pod, count, numa)
        return self.run(pod, self.prepare(claim), environment), claim

    def end(self, container: str, claim: Claim) -> None:
        """Terminate a pod like the kubelet: first the container, then the claim."""
        self._cri.stop(container)
        self.unprepare(claim)

    def clear(self) -> None:
        """Remove all pods and claims."""
        self._cri.remove_all_pods()
        while self._prepared:
            self.unprepare(self._prepared.pop())

    def cpus(self, container: str) -> frozenset[int]:
        """The CPUs on which the kernel allows a container to run."""
        return self.node.effective_cpus(container)

    def soon(self, condition: Callable[[], bool], limit: float = 0.0) -> bool:
        """Whether the condition becomes true in time; broken drivers have a shorter timeout."""
        limit = limit or (5.0 if self.driver.mutant else 15.0)
        try:
            return wait_for("it", condition, limit=limit, alive=self.node.check)
        except TimeoutError:
            return False

    def _named(self, claim: Claim) -> Any:
        return dra.Claim(namespace="default", name=claim.name, uid=claim.uid)

    def _call(self, method: str, request: Any, answer: Any) -> Any:
        async def call(path: Path) -> Any:
            channel = Channel(path=str(path))
            try:
                made = UnaryUnaryMethod(channel, f"{_SERVICE}/{method}", type(request), answer)
                return await made(request, timeout=_CALL_LIMIT)
            finally:
                channel.close()
                for _ in range(3):  # a transport closes its socket in a later turn of the loop
                    await asyncio.sleep(0)

        with self.node.forward(f"{_ROOT}/plugins/dra.cpu/dra.sock") as path:
            return asyncio.run(call(path))


@contextmanager
def driven(node: Node, mutant: str = "", **settings: str) -> Iterator[DrivenNode]:
    """Run a driver on the node; afterwards, the driver and its state are removed."""
    node.run(f"rm -rf {shlex.quote(_ROOT)} && mkdir -p {_ROOT}/plugins_registry {_ROOT}/plugins")
    node.put_tree(HERE / "mutants", _MUTANTS)
    with FakeApiServer().in_thread() as api, cri_of(node) as cri:
        api.add("nodes", {"metadata": {"name": node.name}})
        kubeconfig = json.loads(api.kubeconfig())
        cluster = kubeconfig["clusters"][0]["cluster"]
        cluster["server"] = cluster["server"].replace("127.0.0.1", node.network.host)
        node.put("/etc/driver/kubeconfig", json.dumps(kubeconfig), 0o600)
        process = DriverProcess(node, "/etc/driver/kubeconfig", mutant, **settings)
        process.start()
        try:
            yield DrivenNode(node, cri, api, process)
        finally:
            # Immediately: a mutant does not need a graceful shutdown.
            process.kill()
