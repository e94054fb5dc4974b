"""Node tier: our NRI plugin and CDI writer with a real container runtime and a real kernel.

The plugin runs on this machine and uses the forwarded NRI socket of the guest; the CDI files are written
in the guest, by our writer, while the runtime watches the directory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from grpclib.exceptions import GRPCError

from drakit.wire.nri.plugin import UpdateRejectedError
from drakit.wire.nri.values import Adjustment, ContainerUpdate, Resources, State
from tests.e2e.bed.cri import Cri, cri_of
from tests.e2e.bed.deploy import PACKAGES_IN_GUEST, install_packages
from tests.e2e.bed.node import Node
from tests.e2e.bed.pins import Pins
from tests.e2e.nri import PluginThread, RecordingPlugin, connected, cpus, wait_until

KIND = "dra.cpu/claim"
UID = "3f0c1a52-8f5e-4c7a-9f5e-0a1b2c3d4e5f"
_WRITE = f"""
import sys
sys.path.insert(0, {PACKAGES_IN_GUEST!r})
from drakit.wire.cdi.directory import CdiDirectory
from drakit.wire.cdi.spec import ContainerEdits, claim_spec
directory = CdiDirectory("/var/run/cdi", kind)
spec = claim_spec(kind, uid, {{name: ContainerEdits(env=tuple(env)) for name, env in requests.items()}})
directory.write(uid, spec)
result = list(spec.qualified_names())
"""
_REMOVE = f"""
import sys
sys.path.insert(0, {PACKAGES_IN_GUEST!r})
from drakit.wire.cdi.directory import CdiDirectory
result = CdiDirectory("/var/run/cdi", kind).remove(uid)
"""


@pytest.fixture
def recorder() -> RecordingPlugin:
    return RecordingPlugin()


@pytest.fixture
def connection(runtime: Node, recorder: RecordingPlugin) -> Iterator[PluginThread]:
    """Our plugin, synchronized with the runtime."""
    with connected(runtime, recorder) as made:
        wait_until("our plugin is synchronized", lambda: recorder.synchronized, runtime)
        yield made


@pytest.fixture(scope="module")
def writer(runtime: Node, packages: Path) -> Node:
    """The guest with drakit installed, so that it can write CDI files."""
    install_packages(runtime, packages)
    return runtime


def test_the_runtime_reports_its_features(
    connection: PluginThread, recorder: RecordingPlugin, pins: Pins
) -> None:
    (info,) = recorder.runtimes
    assert info.name == ("cri-o" if pins.is_crio else "containerd")
    new = not pins.old_nri  # containerd 1.7 has NRI 0.6.1, CRI-O 1.36 has 0.11
    assert (info.nri >= (0, 12, 1)) is new
    assert info.features.unsolicited_updates is new
    assert info.features.reports_cdi_devices is new
    assert info.request_timeout >= 1


def test_a_container_is_pinned_from_the_start_and_all_its_events_are_sent(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: RecordingPlugin
) -> None:
    recorder.answers["main"] = Adjustment(resources=Resources(cpus="2-3", mems="0"))
    pod = cri.run_pod()
    container = cri.run_container(pod)
    assert runtime.effective_cpus(container) == {2, 3}
    assert runtime.effective_mems(container) == {0}
    (pid,) = runtime.pids(container)
    assert runtime.allowed_cpus(pid) == {2, 3}
    status, text = cri.exec(container, "grep", "Cpus_allowed_list", "/proc/self/status")
    assert (status, text.split()[-1]) == (0, "2-3")
    cri.stop(container)
    cri.remove(container)
    wait_until("the removal is told", lambda: ("removed", "main") in recorder.events, runtime)
    kinds = [kind for kind, name in recorder.events if name == "main"]
    assert kinds == ["create", "starting", "started", "stop", "removed"]


def test_cdi_devices_of_our_writer_resolve_and_name_the_claim(
    writer: Node, cri: Cri, connection: PluginThread, recorder: RecordingPlugin, pins: Pins
) -> None:
    (device,) = writer.python(_WRITE, kind=KIND, uid=UID, requests={"cpus": [f"DRA_CPUSET_{UID}=2-3"]})
    pod = cri.run_pod()
    container = create_when_noticed(writer, lambda: cri.run_container(pod, devices=[device]))
    # Not through a shell: shells ignore variables with a "-" in their names, as in UIDs.
    assert f"DRA_CPUSET_{UID}=2-3" in cri.exec(container, "env")[1].splitlines()
    told = recorder.seen[container]
    assert told.cdi_devices == (() if pins.old_nri else (device,))
    assert told.variable(f"DRA_CPUSET_{UID}") == "2-3"
    assert writer.python(_REMOVE, kind=KIND, uid=UID) is True
    with pytest.raises(GRPCError, match="unresolvable"):
        fail_when_noticed(writer, lambda: cri.create(pod, "again", devices=[device]))
    assert cri.state(container) == "CONTAINER_RUNNING"


def create_when_noticed(node: Node, create: Callable[[], str]) -> str:
    """The runtime refreshes its CDI cache shortly after the file is created."""

    def attempt() -> str:
        try:
            return create()
        except GRPCError as error:
            if "unresolvable" not in str(error):
                raise
            return ""

    made: str = node.wait("the runtime noticed the CDI file", attempt)
    return made


def fail_when_noticed(node: Node, create: Callable[[], str]) -> None:
    problem: list[GRPCError] = []

    def attempt() -> bool:
        try:
            create()
        except GRPCError as caught:
            problem.append(caught)
        return bool(problem)

    node.wait("the runtime noticed that the CDI file is gone", attempt)
    raise problem[0]


def test_a_claim_written_again_and_again_is_always_the_latest(
    writer: Node, cri: Cri, connection: PluginThread
) -> None:
    pod = cri.run_pod()
    for number in range(5):
        (device,) = writer.python(_WRITE, kind=KIND, uid=UID, requests={"cpus": [f"GENERATION={number}"]})

        def run(number: int = number, device: str = device) -> str:
            container = cri.create(pod, f"c{number}", devices=[device])
            env = cri_env(connection, container)
            if env != str(number):
                cri.remove(container)
                return ""
            return container

        create_when_noticed(writer, run)
    writer.python(_REMOVE, kind=KIND, uid=UID)


def cri_env(connection: PluginThread, container: str) -> str | None:
    handler = connection._handler
    assert isinstance(handler, RecordingPlugin)
    return handler.seen[container].variable("GENERATION")


def test_a_neighbor_moves_in_the_same_answer(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: RecordingPlugin
) -> None:
    pod = cri.run_pod()
    recorder.answers["shared"] = cpus("0-7")
    shared = cri.run_container(pod, "shared")
    away = ContainerUpdate(container_id=shared, resources=Resources(cpus="0-3"))
    recorder.answers["exclusive"] = Adjustment(resources=Resources(cpus="4-7"), updates=(away,))
    exclusive = cri.run_container(pod, "exclusive")
    assert runtime.effective_cpus(shared) == {0, 1, 2, 3}
    assert runtime.effective_cpus(exclusive) == {4, 5, 6, 7}


def test_a_resize_by_another_client_does_not_unpin(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: RecordingPlugin
) -> None:
    recorder.answers["main"] = cpus("2-3")
    container = cri.run_container(cri.run_pod())
    recorder.update_answers["main"] = Resources(cpus="2-3")
    cri.update(container, cpuset_cpus="0-7", cpu_shares=512)
    assert runtime.effective_cpus(container) == {2, 3}
    assert runtime.cgroup_file(container, "cpu.weight").strip() != "100"


def test_updates_are_pushed_to_running_containers(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: RecordingPlugin, pins: Pins
) -> None:
    recorder.answers["main"] = cpus("2-3")
    container = cri.run_container(cri.run_pod())
    if pins.old_nri:
        version = r"NRI 0\.11\.0" if pins.is_crio else r"NRI 0\.6\.1"
        with pytest.raises(UpdateRejectedError, match=version):
            connection.push([ContainerUpdate(container_id=container, resources=Resources(cpus="5-6"))])
        assert runtime.effective_cpus(container) == {2, 3}
        return
    connection.push(
        [
            ContainerUpdate(container_id=container, resources=Resources(cpus="5-6")),
            ContainerUpdate(container_id="gone", resources=Resources(cpus="1")),
        ]
    )
    assert runtime.effective_cpus(container) == {5, 6}


def test_a_rejection_reaches_the_kubelet_and_has_no_other_effect(
    cri: Cri, connection: PluginThread, recorder: RecordingPlugin
) -> None:
    recorder.rejected["bad"] = "claim default/x holds no CPUs on this node"
    pod = cri.run_pod()
    with pytest.raises(GRPCError, match="claim default/x holds no CPUs on this node"):
        cri.create(pod, "bad")
    cri.run_container(pod, "good")
    assert recorder.ends == []
    assert len(recorder.synchronized) == 1


def test_a_handler_that_hangs_rejects_in_time_and_stays_connected(
    cri: Cri, connection: PluginThread, recorder: RecordingPlugin
) -> None:
    recorder.hanging.add("stuck")
    pod = cri.run_pod()
    with pytest.raises(GRPCError, match="not decided before the runtime's deadline"):
        cri.create(pod, "stuck")
    cri.run_container(pod, "good")
    assert recorder.ends == []


def test_answers_of_any_size_arrive_and_the_longest_is_rejected_not_fatal(
    cri: Cri, connection: PluginThread, recorder: RecordingPlugin
) -> None:
    """A first mux frame of more than 4096 bytes would make a Go peer drop the plugin."""
    pod = cri.run_pod()
    for size in (3900, 4000, 4050, 4096, 4200, 60_000, 1_000_000):
        name = f"size-{size}"
        annotations = {
            f"bed.test/{place}": "x" * min(50_000, size - place) for place in range(0, size, 50_000)
        }
        recorder.answers[name] = Adjustment(resources=Resources(cpus="1"), annotations=annotations)
        cri.create(pod, name)
    recorder.answers["too-long"] = Adjustment(annotations={"bed.test/long": "x" * (5 << 20)})
    with pytest.raises(GRPCError, match="longer than ttrpc allows"):
        cri.create(pod, "too-long")
    assert recorder.ends == []


def test_a_reconnected_plugin_corrects_missed_changes(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: RecordingPlugin
) -> None:
    pod = cri.run_pod()
    connection.stop()
    missed = cri.run_container(pod, "missed")
    assert runtime.effective_cpus(missed) == frozenset(range(8))
    recorder.on_synchronize["missed"] = Resources(cpus="6-7")
    connection.start()
    wait_until("it is synchronized again", lambda: len(recorder.synchronized) == 2, runtime)
    assert [each.name for each in recorder.synchronized[1] if each.id == missed] == ["missed"]
    wait_until("the missed container is corrected", lambda: runtime.effective_cpus(missed) == {6, 7}, runtime)


def test_a_plugin_reconnects_to_a_restarted_runtime_and_is_synchronized(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: RecordingPlugin
) -> None:
    recorder.answers["main"] = cpus("2-3")
    container = cri.run_container(cri.run_pod())
    for restart in (lambda: runtime.restart_service("runtime"), lambda: crash(runtime)):
        before = len(recorder.synchronized)
        restart()
        wait_until("it is joined again", lambda n=before: len(recorder.synchronized) > n, runtime)
        (known,) = [each for each in recorder.synchronized[-1] if each.id == container]
        assert known.state is State.RUNNING
        assert known.resources.cpus == "2-3"
        assert runtime.effective_cpus(container) == {2, 3}
    assert recorder.ends
    with cri_of(runtime) as again:
        recorder.answers["later"] = cpus("4")
        later = again.run_container(again.run_pod(), "later")
        assert runtime.effective_cpus(later) == {4}


def crash(runtime: Node) -> None:
    runtime.kill_service("runtime")
    runtime.start_service("runtime")
    runtime.wait_for_runtime()


def fill(cri: Cri, recorder: RecordingPlugin, count: int) -> list[str]:
    """*count* created containers, ten to a pod, each pinned to one CPU."""
    made = []
    for place in range(count):
        if place % 10 == 0:
            pod = cri.run_pod()
        recorder.answers[f"c{place}"] = cpus(str(place % 8))
        made.append(cri.create(pod, f"c{place}", environment={"PADDING": "x" * 2000}))
    return made


@pytest.mark.full
@pytest.mark.parametrize("count", [30, 200, 500])
def test_a_full_node_is_synchronized_and_corrected_within_the_deadline(
    runtime: Node, cri: Cri, connection: PluginThread, recorder: RecordingPlugin, count: int
) -> None:
    made = fill(cri, recorder, count)
    assert recorder.ends == []
    connection.stop()
    recorder.on_synchronize = {f"c{place}": Resources(cpus="7") for place in range(count)}
    before = len(recorder.synchronized)
    begin = time.monotonic()
    connection.start()
    wait_until("it is synchronized again", lambda: len(recorder.synchronized) > before, runtime)
    print(f"{count} containers synchronized {time.monotonic() - begin:.2f} s after the start")
    assert {each.id for each in recorder.synchronized[-1]} >= set(made)
    # A start that meets the updates keeps the old limits (the runtime host corrects that by the
    # kernel's files); once events arrive, they are all applied.
    pod = cri.run_pod()

    def asked() -> bool:
        cri.create(pod, f"probe-{len(recorder.seen)}-{time.monotonic_ns()}")
        return any(name.startswith("probe") for _, name in recorder.events)

    wait_until("events arrive", asked, runtime)
    cri.start(made[3])
    assert runtime.effective_cpus(made[3]) == {7}
    assert recorder.ends == []
