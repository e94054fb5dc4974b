"""What pods request, as the scheduler and the kubelet count it."""

from __future__ import annotations

from typing import Any, Self

import pytest

from drakit.drivers.cpumem.qos.podspec import ApiPodSpecs, PodRequests, requests_of
from drakit.wire.kube import KubeError
from tests.drivers.cpumem.qos.pods import GI, MI


def container(name: str, request: Any = None, limit: Any = None, **more: Any) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if request is not None:
        resources["requests"] = {"memory": request, "cpu": "1"}
    if limit is not None:
        resources["limits"] = {"memory": limit}
    return {"name": name, "resources": resources, **more}


def pod(uid: str = "u", **spec: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"uid": uid, "name": "p"}, "spec": spec}


@pytest.mark.parametrize(
    ("spec", "request_"),
    [
        ({"containers": [container("a", "1Gi"), container("b", "1Mi")]}, GI + MI),
        ({"containers": [container("a", None, "1Gi"), container("b")]}, GI),
        (
            {
                "containers": [container("a", "1Mi")],
                "initContainers": [container("i", "1Gi"), container("j", "2Mi")],
            },
            GI,
        ),
        (
            {
                "containers": [container("a", "1Mi")],
                "initContainers": [
                    container("first", "8Mi"),
                    container("side", "4Mi", restartPolicy="Always"),
                    container("last", "6Mi"),
                ],
            },
            10 * MI,
        ),
        (
            {
                "containers": [container("a", "9Mi")],
                "initContainers": [container("side", "4Mi", restartPolicy="Always")],
            },
            13 * MI,
        ),
        ({"containers": [container("a", 1048576)], "overhead": {"memory": "2Mi"}}, 3 * MI),
    ],
)
def test_the_pods_request(spec: dict[str, Any], request_: int) -> None:
    uid, found = requests_of(pod(**spec))
    assert (uid, found.request, found.pod_limit) == ("u", request_, None)


def test_the_pods_own_resources_win() -> None:
    own = {"requests": {"memory": "4Gi"}, "limits": {"memory": "8Gi"}}
    spec = {"containers": [container("a", "1Gi")], "resources": own, "overhead": {"memory": "1Mi"}}
    assert requests_of(pod(**spec)) == ("u", PodRequests(4 * GI + MI, 8 * GI, {"a": GI}))
    only_cpu = {"containers": [container("a", "1Gi")], "resources": {"requests": {"cpu": 1}}}
    assert requests_of(pod(**only_cpu))[1] == PodRequests(GI, None, {"a": GI})


def test_a_static_pod_has_the_uid_the_runtime_knows() -> None:
    document = pod(containers=[])
    document["metadata"]["annotations"] = {"kubernetes.io/config.hash": "abc"}
    assert requests_of(document)[0] == "abc"


@pytest.mark.parametrize(
    "document",
    [
        {"spec": {"containers": 3}},
        {"spec": {"containers": [{"resources": {"requests": {"memory": "much"}}}]}},
    ],
)
def test_an_invalid_pod_is_rejected(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a valid pod"):
        requests_of(document)


class FakeClient:
    """As much of a client as is asked for."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.broken = False
        self.open = 0

    async def list(self, resource: Any, selection: Any) -> Any:
        self.calls.append(selection.fields)
        if self.broken:
            raise KubeError("the server is away")

        class Item:
            def __init__(self, raw: dict[str, Any]) -> None:
                self.raw = raw

        class Listing:
            items = tuple(Item(each) for each in self.pods)

        return Listing()

    async def __aenter__(self) -> Self:
        self.open += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.open -= 1


async def test_pods_are_read_when_one_is_new_or_time_is_up() -> None:
    client, now = FakeClient(), [0.0]
    client.pods = [pod("a", containers=[container("c", "1Mi")]), {"spec": 3}]
    specs = ApiPodSpecs(lambda: client, "node-1", clock=lambda: now[0])  # type: ignore[arg-type, return-value]
    assert await specs(["a"]) == {"a": PodRequests(MI, None, {"c": MI})}
    assert await specs(["a"]) == {"a": PodRequests(MI, None, {"c": MI})}
    assert client.calls == ["spec.nodeName=node-1"]
    client.pods.append(pod("b", containers=[]))
    assert (await specs(["a", "b", "gone"])).keys() == {"a", "b"}
    await specs(["a", "b", "gone"])
    assert len(client.calls) == 2  # who is not there is not asked for at every look
    now[0] += 60
    client.broken = True
    assert (await specs(["a"])).keys() == {"a"}
    assert (await specs(["a"])).keys() == {"a"}
    assert len(client.calls) == 3
    now[0] += 10
    await specs(["a"])
    assert len(client.calls) == 4
    assert client.open == 0
