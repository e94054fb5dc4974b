"""Node tier: assumptions of ``drakit.testing.runtime``, verified with a real container runtime.

``docs/developers/fakes.md`` lists every assumption with its test; those about CRI-O are in ``test_crio.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from grpclib.exceptions import GRPCError

from drakit.wire.nri.event_table import HANDLED_EVENTS
from drakit.wire.nri.values import Adjustment, ContainerUpdate, NriContainer, PodSandbox, Resources, State
from tests.e2e.bed.cri import Cri, cri_of, cri_of_second_client
from tests.e2e.bed.node import Node
from tests.e2e.bed.pins import Pins
from tests.e2e.nri import PluginThread, RecordingPlugin, connected, cpus, restart_runtime, wait_until

ALL = frozenset(range(8))
_SPEC = {
    "cdiVersion": "0.6.0",
    "kind": "fakes.test/thing",
    "devices": [{"name": "one", "containerEdits": {"env": ["THING=one", "MORE=2"]}}],
}


class Observer(RecordingPlugin):
    """Plugin that also records pods, reads the node when a container starts, and can block or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.updates_itself: set[str] = set()
        self.meeting: asyncio.Event | None = None
        """Set if two creations overlap; each waits one second for another one."""
        self._within = 0
        self.on_start: Callable[[str], object] | None = None
        self.seen_at_start: dict[str, object] = {}
        self.pods: dict[str, PodSandbox] = {}
        self.stopped: dict[str, NriContainer] = {}
        self.resized: list[tuple[str, str]] = []

    async def create(self, pod: PodSandbox, container: NriContainer) -> Adjustment:
        if self.meeting is not None:
            await self._meet(self.meeting)
        answer = await super().create(pod, container)
        self.pods[pod.id] = pod
        if container.name in self.updates_itself:
            own = ContainerUpdate(container_id=container.id, resources=Resources(cpus="1"))
            return Adjustment(updates=(own,))
        return answer

    async def _meet(self, meeting: asyncio.Event) -> None:
        self._within += 1
        if self._within > 1:
            meeting.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(meeting.wait(), 1.0)
        self._within -= 1

    async def update(
        self, pod: PodSandbox, container: NriContainer, resources: Resources
    ) -> Sequence[ContainerUpdate]:
        self.resized.append((container.resources.cpus, resources.cpus))
        return await super().update(pod, container, resources)

    async def starting(self, pod: PodSandbox, container: NriContainer) -> None:
        if self.on_start is not None:
            self.seen_at_start[container.name] = await asyncio.to_thread(self.on_start, container.id)
        await super().starting(pod, container)

    async def stop(self, pod: PodSandbox, container: NriContainer) -> Sequence[ContainerUpdate]:
        self.stopped[container.name] = container
        return await super().stop(pod, container)

    async def pod_started(self, pod: PodSandbox) -> None:
        self.events.append(("pod started", pod.name))

    async def pod_stopped(self, pod: PodSandbox) -> None:
        self.events.append(("pod stopped", pod.name))

    async def pod_removed(self, pod: PodSandbox) -> None:
        self.events.append(("pod removed", pod.name))

    def about(self, name: str) -> list[str]:
        """The events of one container or pod, in order."""
        return [kind for kind, whose in self.events if whose == name]


@pytest.fixture
def recorder() -> Observer:
    return Observer()


@pytest.fixture
def connection(runtime: Node, recorder: Observer) -> Iterator[PluginThread]:
    """Our synchronized plugin, with the events of pods."""
    with connected(runtime, recorder, events=HANDLED_EVENTS) as made:
        wait_until("our plugin is synchronized", lambda: recorder.synchronized, runtime)
        yield made


# The life of pods and containers ---------------------------------------------------------------


def test_events_come_in_this_order_and_with_these_values(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Observer
) -> None:
    """The cgroup exists at the start; a stopped container is reported after its end."""
    recorder.on_start = runtime.effective_cpus
    recorder.answers["main"] = cpus("2-3")
    pod = cri.run_pod()
    container = cri.create(pod)
    assert recorder.seen[container].state is State.UNKNOWN
    cri.start(container)
    assert recorder.seen_at_start["main"] == {2, 3}
    told = recorder.pods[pod.id]
    assert (told.name, told.namespace, told.uid) == (pod.name, "default", pod.uid)
    assert container in recorder.seen[container].cgroups_path
    (pid,) = runtime.pids(container)
    cgroup = runtime.container_cgroup(container)
    cri.stop(container)
    wait_until("the stop is reported", lambda: "main" in recorder.stopped, runtime)
    assert not runtime.exists(f"/proc/{pid}")
    wait_until("its cgroup is gone", lambda: not runtime.exists(cgroup), runtime)
    cri.remove_pod(pod)
    wait_until("the removal is reported", lambda: "pod removed" in recorder.about(pod.name), runtime)
    both = [kind for kind, whose in recorder.events if whose in ("main", pod.name)]
    first, last = ["pod started", "create", "starting", "started", "stop"], "pod removed"
    assert both[:5] == first
    assert sorted(both[5:]) == ["pod removed", "pod stopped", "removed"]
    assert both[-1] == last


@pytest.mark.containerd
def test_a_rejected_creation_is_followed_by_a_stop_and_a_removal(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Observer
) -> None:
    recorder.rejected["bad"] = "it must not be created"
    pod = cri.run_pod()
    with pytest.raises(GRPCError, match="it must not be created"):
        cri.create(pod, "bad")
    cri.remove(cri.create(pod, "good"))
    wait_until("the removal is reported", lambda: "removed" in recorder.about("good"), runtime)
    assert recorder.about("bad") == ["create", "stop", "removed"]


@pytest.mark.containerd
def test_an_error_at_its_start_prevents_a_container_from_running(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Observer
) -> None:
    recorder.rejected_starts.add("main")
    container = cri.create(cri.run_pod())
    with pytest.raises(GRPCError, match="it must not start"):
        cri.start(container)
    assert cri.state(container) != "CONTAINER_RUNNING"
    assert recorder.ends == []


@pytest.mark.containerd
def test_a_pods_annotations_are_not_copied_to_its_containers(
    cri: Cri, connection: PluginThread, recorder: Observer
) -> None:
    pod = cri.run_pod(annotations={"drakit.dev/wanted": "1"})
    container = cri.create(pod)
    assert recorder.pods[pod.id].annotations["drakit.dev/wanted"] == "1"
    assert "drakit.dev/wanted" not in recorder.seen[container].annotations


def test_a_cdi_device_replaces_a_variable_of_the_pod(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Observer
) -> None:
    """At the same position, before plugins are called; new variables follow those of the pod."""
    runtime.put("/var/run/cdi/fakes.json", json.dumps(_SPEC))

    def made() -> str:
        try:
            return cri.create(
                pod, environment={"THING": "pod", "OTHER": "1"}, devices=["fakes.test/thing=one"]
            )
        except GRPCError as error:
            if "unresolvable" not in str(error):
                raise
            return ""

    pod = cri.run_pod()
    container = runtime.wait("the runtime noticed the CDI file", made)
    runtime.run("rm /var/run/cdi/fakes.json")
    ours = [each for each in recorder.seen[container].env if each[:5] in ("THING", "OTHER", "MORE=")]
    assert ours == ["THING=one", "OTHER=1", "MORE=2"]


def test_events_of_two_containers_follow_one_another(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Observer
) -> None:
    """While a plugin handles one container, it gets no event of another one."""
    pods = [cri.run_pod(), cri.run_pod()]
    first = recorder.meeting = asyncio.Event()
    with cri_of_second_client(runtime) as other, ThreadPoolExecutor(2) as threads:
        begun = [
            threads.submit(client.create, pod, f"meeting-{place}")
            for place, (client, pod) in enumerate(zip((cri, other), pods, strict=True))
        ]
        for each in begun:
            each.result()
    assert recorder.about("meeting-0") == recorder.about("meeting-1") == ["create"]
    assert not first.is_set(), "two events at once"


# What plugins may ask for ------------------------------------------------------------------------


def test_limits_that_the_kernel_rejects(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Observer, pins: Pins
) -> None:
    """For the container itself the start fails; for a neighbor the failure is only logged."""
    pod = cri.run_pod()
    recorder.answers["shared"] = cpus("0-3")
    shared = cri.run_container(pod, "shared")
    recorder.answers["beyond"] = cpus("100")
    beyond = cri.create(pod, "beyond")
    with pytest.raises(GRPCError, match="cpuset"):
        cri.start(beyond)
    impossible = ContainerUpdate(container_id=shared, resources=Resources(cpus="100"))
    recorder.answers["other"] = Adjustment(updates=(impossible,))
    other = cri.run_container(pod, "other")
    assert cri.state(other) == "CONTAINER_RUNNING"
    assert runtime.effective_cpus(shared) == {0, 1, 2, 3}
    if not pins.old_nri:
        with pytest.raises(Exception, match="update of some containers failed"):
            connection.push([impossible])
        assert runtime.effective_cpus(shared) == {0, 1, 2, 3}
    assert recorder.ends == []


def test_plugins_are_called_by_index_and_must_not_conflict(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Observer
) -> None:
    later = Observer()
    with connected(runtime, later, name="later", index="60"):
        wait_until("the second plugin is synchronized", lambda: later.synchronized, runtime)
        pod = cri.run_pod()
        recorder.answers["main"] = Adjustment(resources=Resources(cpus="2-3"))
        later.answers["main"] = Adjustment(resources=Resources(mems="0"))
        container = cri.run_container(pod)
        assert recorder.seen[container].resources.cpus == ""
        assert later.seen[container].resources.cpus == "2-3"
        assert runtime.effective_cpus(container) == {2, 3}
        assert runtime.effective_mems(container) == {0}
        recorder.answers["both"] = later.answers["both"] = cpus("4")
        with pytest.raises(GRPCError, match="both tried to set"):
            cri.create(pod, "both")
        moved = ContainerUpdate(container_id=container, resources=Resources(cpus="5"))
        recorder.answers["move"] = later.answers["move"] = Adjustment(updates=(moved,))
        with pytest.raises(GRPCError, match="both tried to set"):
            cri.create(pod, "move")
        assert runtime.effective_cpus(container) == {2, 3}


def test_an_update_of_the_container_being_created_is_an_error(
    cri: Cri, connection: PluginThread, recorder: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Our plugin would not send it; this tests the runtime.
    monkeypatch.setattr("drakit.wire.nri.connection.check_updates", lambda *args: None)
    recorder.updates_itself.add("main")
    with pytest.raises(GRPCError, match="update"):
        cri.create(cri.run_pod())
    assert recorder.ends == []


def test_an_update_by_the_kubelet_is_shown_with_the_old_and_the_new_limits(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Observer
) -> None:
    """Without updates by the plugin the kubelet's values are applied."""
    recorder.answers["main"] = cpus("2-3")
    container = cri.run_container(cri.run_pod())
    cri.update(container, cpuset_cpus="4-5")
    assert recorder.resized == [("2-3", "4-5")]
    assert runtime.effective_cpus(container) == {4, 5}


# Plugins that come, hang and go ------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["index", "events", "name"])
def test_a_registration_that_the_runtime_rejects(
    runtime: Node,
    connection: PluginThread,
    recorder: Observer,
    pins: Pins,
    wrong: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An index that is not two digits, an event that the release does not know, a name with a space."""
    if wrong == "name" and pins.old_nri:
        pytest.skip("NRI checks names from 0.12 on")
    changes = {"name": "other", **({"index": "5"} if wrong == "index" else {})}
    if wrong == "name":
        changes["name"] = "an other"
    if wrong == "events":
        monkeypatch.setattr("drakit.wire.nri.connection.event_mask", lambda *_: 1 << 20)
    other = Observer()
    with connected(runtime, other, **changes):
        wait_until("its rejection", lambda: other.ends, runtime)
    assert other.synchronized == []
    assert recorder.ends == []


def test_a_restarted_runtime_reports_what_can_still_run_and_forgets_pods(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: Observer, pins: Pins
) -> None:
    """containerd reports updated limits, CRI-O those of the creation (``forgets_updates``)."""
    pod = cri.run_pod()
    recorder.answers["moved"] = cpus("2-3")
    moved = cri.run_container(pod, "moved")
    away = ContainerUpdate(container_id=moved, resources=Resources(cpus="4-5"))
    recorder.answers["created"] = Adjustment(resources=Resources(cpus="1"), updates=(away,))
    cri.create(pod, "created")
    cri.stop(cri.run_container(pod, "ended"))
    assert runtime.effective_cpus(moved) == {4, 5}
    reported = {each.name: each for each in restart_runtime(runtime, recorder)}
    assert reported.keys() & {"moved", "created", "ended"} == {"moved", "created"}
    states = {name: reported[name].state for name in ("moved", "created")}
    assert states == {"moved": State.RUNNING, "created": State.CREATED}
    assert reported["moved"].resources.cpus == ("2-3" if pins.is_crio else "4-5")
    assert runtime.effective_cpus(moved) == {4, 5}
    with cri_of(runtime) as again:
        again.remove_pod(pod)
        later = again.run_pod()
        again.remove_pod(later)
    wait_until("the later pod's end", lambda: "pod removed" in recorder.about(later.name), runtime)
    if not pins.is_crio:
        assert recorder.about(pod.name) == ["pod started"], "its end is not reported any more"
