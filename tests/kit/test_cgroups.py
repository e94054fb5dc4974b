"""Container cgroups are found in every layout, and no path leads outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.kit.cgroups import CgroupTree, expand_slice, parent_path, relative_path


@pytest.mark.parametrize(
    ("reported", "path"),
    [
        ("/kubepods/burstable/podabc/0123", "kubepods/burstable/podabc/0123"),
        (
            "kubepods-burstable-podabc_d.slice:cri-containerd:0123",
            (
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podabc_d.slice/"
                "cri-containerd-0123.scope"
            ),
        ),
        ("kubepods-podx.slice:crio:9", "kubepods.slice/kubepods-podx.slice/crio-9.scope"),
        (
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podx.slice:cri-containerd:9",
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podx.slice/cri-containerd-9.scope",
        ),
        ("", None),
        ("/", None),
        ("/a/../../etc", None),
        ("../x:p:9", None),
        ("a//b", None),
    ],
)
def test_where_a_container_is(reported: str, path: str | None) -> None:
    assert relative_path(reported) == path


def test_where_a_pod_is() -> None:
    assert parent_path("/kubepods/podx") == "kubepods/podx"
    assert parent_path("kubepods-besteffort-podx.slice") == (
        "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podx.slice"
    )
    assert parent_path("") is None
    assert expand_slice("-.slice") == ""


@given(st.text(max_size=40))
def test_no_report_leads_outside(text: str) -> None:
    path = relative_path(text)
    assert path is None or (not path.startswith("/") and ".." not in path.split("/"))


@pytest.mark.parametrize("unified", [True, False])
def test_reading_and_writing(tmp_path: Path, unified: bool) -> None:
    base = tmp_path if unified else tmp_path / "cpuset"
    if unified:
        (tmp_path / "cgroup.controllers").write_text("cpuset\n")
    group = base / "kubepods" / "c"
    group.mkdir(parents=True)
    (group / "cpuset.cpus").write_text("2-3\n")
    (group / "cpuset.mems").write_text("\n")
    (group / ("cpuset.cpus.effective" if unified else "cpuset.effective_cpus")).write_text("2\n")
    tree = CgroupTree(str(tmp_path))
    found = tree.cpuset("kubepods/c")
    assert found is not None
    assert (found.cpus, found.effective_cpus, found.mems) == (CpuSet([2, 3]), CpuSet([2]), None)
    tree.write("cpuset", "kubepods/c", "cpuset.cpus", "5")
    assert tree.read("cpuset", "kubepods/c", "cpuset.cpus") in ("5", "5-3")
    assert tree.cpuset("kubepods/gone") is None
    with pytest.raises(FileNotFoundError):
        tree.write("cpuset", "kubepods/gone", "cpuset.cpus", "1")
    (group / "cpuset.cpus").write_text("garbage")
    again = tree.cpuset("kubepods/c")
    assert again is not None
    assert again.cpus is None


@pytest.mark.parametrize(
    "pod",
    [
        "kubepods/besteffort/pod0a-1b",
        "kubepods/pod0a-1b",
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a_1b.slice",
        "kubepods.slice/kubepods-pod0a_1b.slice",
        "kubelet/kubepods/burstable/pod0a-1b",
    ],
)
@pytest.mark.parametrize("unified", [True, False])
def test_the_containers_of_a_pod_are_found_in_every_layout(
    tmp_path: Path, pod: str, unified: bool
) -> None:
    top = tmp_path if unified else tmp_path / "cpuset"
    for name in ("one", "two"):
        (top / pod / name).mkdir(parents=True)
    (top / "kubepods/podother/three").mkdir(parents=True)
    events = "populated 1\nfrozen 0\n"
    (top / pod / "one" / ("cgroup.events" if unified else "cgroup.procs")).write_text(events)
    if unified:
        (tmp_path / "cgroup.controllers").write_text("cpuset\n")
        (top / pod / "two" / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    tree = CgroupTree(str(tmp_path))
    assert tree.containers_of("0a-1b") == [f"{pod}/one", f"{pod}/two"]
    assert [tree.populated(path) for path in tree.containers_of("0a-1b")] == [True, False]
    assert tree.containers_of("9") == tree.containers_of("") == tree.containers_of("../x") == []
