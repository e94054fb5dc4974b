"""Records what the fakes of :mod:`drakit.testing` see: calls, containers, cpusets, checkpoints.

The fakes are wrapped from outside. What is written down is what a kubelet, a runtime and a reader of
the kernel's files know; only the CPUs of an answer come from the claim's checkpoint file, as the answer
of a grouped device does not have them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from drakit.testing.kubelet import FakeKubelet
from drakit.testing.runtime import FakeContainer, FakeRuntime
from drakit.wire.nri.values import State

from .checker import Report
from .recorder import Recorder, Sampler, checkpoints

_LOOK_SECONDS = 0.005


class NodeRecording:
    """Follows one simulated node."""

    def __init__(self, recorder: Recorder, directory: str, kind: str = "cpu") -> None:
        """*directory* is where the driver's checkpoints are, *kind* what is exclusive in them."""
        self.recorder, self._directory, self._kind = recorder, directory, kind
        self.sampler = Sampler(recorder.path)
        self._claim_of: dict[str, str] = {}
        self._runtime: FakeRuntime | None = None

    # -- the kubelet -------------------------------------------------------------------------------

    def follow_kubelet(self, kubelet: FakeKubelet) -> None:
        """Record its calls from now on."""
        plain: Callable[..., Awaitable[Any]] = kubelet._call

        async def recorded(endpoint: Any, method: str, infos: Any, failure: Any) -> Any:
            verb = method.removeprefix("Node").removesuffix("Resources").lower()
            call = self.recorder.called(verb, [info.uid for info in infos])
            response = await plain(endpoint, method, infos, failure)  # without one, none is recorded
            held = checkpoints(self._directory, self._kind)
            answers = {}
            for uid, entry in response.claims.items():
                answers[uid] = {"error": entry.error} if entry.error else {}
                if verb == "prepare" and not entry.error:
                    self._claim_of.update(
                        (each, uid) for device in entry.devices for each in device.cdi_device_ids
                    )
                    if uid in held:
                        answers[uid] = {"cpus": held[uid][1] or ""}
            self.recorder.answered(call, answers)
            return response

        kubelet._call = recorded  # type: ignore[method-assign]

    # -- the runtime -------------------------------------------------------------------------------

    def follow_runtime(self, runtime: FakeRuntime) -> None:
        """Record its containers from now on."""
        self._runtime = runtime
        create, start, stop = runtime.create, runtime.start, runtime.stop

        async def created(pod_id: str, name: str, **options: Any) -> Any:
            asked = self.recorder.now()
            container = await create(pod_id, name, **options)
            devices = options.get("cdi_devices", ())
            claims = sorted({self._claim_of[d] for d in devices if d in self._claim_of})
            pod = runtime.pods[pod_id].name
            facts = {"container": container.id, "pod": pod, "claims": claims, "asked": asked}
            self.recorder.note("container", **facts)
            return container

        async def started(id_: str) -> None:
            await start(id_)
            self.recorder.note("started", container=id_)

        async def stopped(id_: str) -> None:
            with self.recorder.stopping(id_):
                await stop(id_)

        runtime.create = created  # type: ignore[method-assign]
        runtime.start = started  # type: ignore[method-assign]
        runtime.stop = stopped  # type: ignore[method-assign]

    # -- looking -----------------------------------------------------------------------------------

    def look(self) -> None:
        """Read every running container's cpuset and the checkpoint directory once."""
        now = self.sampler.now
        if self._runtime is not None:
            found = {}
            for container in list(self._runtime.containers.values()):
                if container.state is State.RUNNING:
                    began = now()
                    cpus = _allowed(container)
                    found[container.id] = began, now(), cpus
            self.sampler.looked(found)
        began = now()
        self.sampler.held(began, checkpoints(self._directory, self._kind))

    @contextlib.asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Look over and over, until the end of the block."""

        async def look_on() -> None:
            while True:
                self.look()
                await asyncio.sleep(_LOOK_SECONDS)

        task = asyncio.create_task(look_on())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # -- the end -----------------------------------------------------------------------------------

    def rebooted(self) -> None:
        """What follows happens in another boot."""
        self.recorder.rebooted()
        self.sampler.rebooted()

    def judge(self) -> Report:
        """The record is complete: what does it say?"""
        self.recorder.end()
        self.sampler.end()
        return self.recorder.judge()


def _allowed(container: FakeContainer) -> str:
    """The container's ``cpuset.cpus``. No file of the kernel is ever empty between two writes."""
    path = os.path.join(container._directory or "", "cpuset.cpus")
    while True:
        try:
            with open(path, encoding="ascii") as file:
                text = file.read()
        except FileNotFoundError:
            return container.cpus
        if text:
            return text.partition("\n")[0]
