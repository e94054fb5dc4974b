"""Pods for tests of the planner, one by one and at random."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from hypothesis import strategies as st

from drakit.cgroups.paths import PodCgroup, QosClass, pod_cgroup
from drakit.drivers.cpumem.qos.planner import ContainerFacts, PodFacts
from drakit.drivers.cpumem.qos.shares import MemoryShare
from drakit.drivers.models.memory_policy import MemoryQosPolicy

KI, MI, GI = 1 << 10, 1 << 20, 1 << 30
G, B, E = QosClass.GUARANTEED, QosClass.BURSTABLE, QosClass.BEST_EFFORT


def place(uid: str, qos_class: QosClass = G, root: str = "/kubepods") -> PodCgroup:
    """Where the pod *uid* is, with the cgroupfs driver."""
    middle = "" if qos_class is G else f"/{qos_class.value.lower()}"
    found = pod_cgroup(f"{root}{middle}/pod{uid}", uid)
    assert found is not None
    return found


def share(key: str, memory: int = 0, pages: Mapping[str, int] | None = None) -> MemoryShare:
    """A share of a claim."""
    return MemoryShare(key, memory, dict(pages or {}))


_amounts = st.integers(0, 64).map(lambda n: n * 2 * MI)
_pages = st.dictionaries(st.sampled_from(["2MB", "1GB", "64KB"]), _amounts, max_size=2)


@st.composite
def pod_facts(draw: st.DrawFn) -> PodFacts:
    """A pod as the kubelet and the scheduler could have made it."""
    uid = str(draw(st.uuids()))
    where = place(uid, draw(st.sampled_from(QosClass)), draw(st.sampled_from(["/kubepods", "/k/x"])))
    shares = [
        MemoryShare(f"{uid}/{number}", draw(_amounts), draw(_pages))
        for number in range(draw(st.integers(0, 3)))
    ]
    containers = []
    for number in range(draw(st.integers(0, 3))):
        request = draw(st.one_of(st.none(), st.integers(0, 4 * GI)))
        containers.append(
            ContainerFacts(
                shares=tuple(each for each in shares if draw(st.booleans())),
                request=request,
                limit=draw(st.one_of(st.none(), st.integers(request or 0, 8 * GI))),
                classic_pages=draw(_pages),
                path=f"{where.pod}/{number}",
            )
        )
    known = all(container.request is not None for container in containers)
    total = sum(container.request or 0 for container in containers)
    return PodFacts(
        place=where,
        shares=tuple(shares),
        containers=tuple(containers),
        request=total + draw(st.integers(0, MI)) if known else None,
        pod_limit=draw(st.one_of(st.none(), st.integers(total, 16 * GI))) if known else None,
        classic_pages={
            size: sum(container.classic_pages.get(size, 0) for container in containers)
            for size in {each for container in containers for each in container.classic_pages}
        },
    )


def policies() -> st.SearchStrategy[MemoryQosPolicy]:
    """Any policy."""
    return st.builds(
        MemoryQosPolicy,
        mode=st.sampled_from(["off", "claims", "all"]),
        protection=st.sampled_from(["tiered", "soft"]),
        throttling_factor=st.one_of(st.none(), st.floats(0.01, 1.0)),
        page_limits=st.booleans(),
        hugetlb_charged=st.booleans(),
        allocatable=st.one_of(st.none(), st.integers(GI, 64 * GI)),
        page_size=st.sampled_from([4096, 65536]),
    )


def nodes() -> st.SearchStrategy[list[PodFacts]]:
    """All pods of a node."""
    return st.lists(pod_facts(), max_size=5, unique_by=lambda pod: pod.place.pod)


def new_uid() -> str:
    """A pod's UID."""
    return str(uuid.uuid4())
