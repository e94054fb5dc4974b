"""Node tier: the test acts as the kubelet for a real container runtime, without Kubernetes."""

from __future__ import annotations

import json

import pytest
from grpclib.exceptions import GRPCError

from tests.e2e.bed.cri import Cri, cri_of
from tests.e2e.bed.node import Node

# The runtime alone, without drakit: to distinguish its errors from ours.
pytestmark = pytest.mark.full
_SPEC = {
    "cdiVersion": "0.6.0",
    "kind": "bed.test/thing",
    "devices": [{"name": "one", "containerEdits": {"env": ["THING=one"]}}],
}


def test_a_container_is_created_started_executed_in_stopped_and_removed(cri: Cri) -> None:
    pod = cri.run_pod()
    container = cri.create(pod)
    assert cri.state(container) == "CONTAINER_CREATED"
    cri.start(container)
    assert cri.state(container) == "CONTAINER_RUNNING"
    assert cri.exec(container, "echo", "hello") == (0, "hello\n")
    cri.stop(container)
    assert cri.state(container) == "CONTAINER_EXITED"
    cri.remove(container)
    assert container not in cri.containers()


def test_a_resize_reaches_the_cgroup_of_the_kernel(runtime: Node, cri: Cri) -> None:
    container = cri.run_container(cri.run_pod())
    assert runtime.effective_cpus(container) == frozenset(range(runtime.shape.cpu_count))
    cri.update(container, cpuset_cpus="2-3", cpuset_mems="0")
    assert runtime.effective_cpus(container) == {2, 3}
    assert runtime.effective_mems(container) == {0}
    (pid,) = runtime.pids(container)
    assert runtime.allowed_cpus(pid) == {2, 3}


def test_a_cdi_device_edits_the_container_and_an_unknown_one_is_rejected(runtime: Node, cri: Cri) -> None:
    runtime.put("/var/run/cdi/bed.json", json.dumps(_SPEC))
    pod = cri.run_pod()
    container = cri.run_container(pod, devices=["bed.test/thing=one"])
    assert cri.exec(container, "sh", "-c", "echo $THING") == (0, "one\n")
    with pytest.raises(GRPCError, match=r"bed\.test/thing=two"):
        cri.create(pod, "second", devices=["bed.test/thing=two"])


def test_containers_survive_a_restart_and_a_crash_of_the_runtime(runtime: Node, cri: Cri) -> None:
    container = cri.run_container(cri.run_pod())
    pids = runtime.pids(container)
    runtime.restart_service("runtime")
    runtime.kill_service("runtime")
    runtime.start_service("runtime")
    runtime.wait_for_runtime()
    with cri_of(runtime) as again:
        assert again.state(container) == "CONTAINER_RUNNING"
        assert runtime.pids(container) == pids


def test_nri_listens_where_plugins_look_for_it(runtime: Node) -> None:
    assert runtime.exists("/var/run/nri/nri.sock")
