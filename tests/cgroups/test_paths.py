"""Cgroup paths of pods and containers in all layouts of the kubelet and the runtimes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.cgroups.paths import PodCgroup, QosClass, expand_slice, parent_path, pod_cgroup, relative_path

UID = "0f1e2d3c-aaaa-bbbb-cccc-0123456789ab"
UID_ = UID.replace("-", "_")
G, B, E = QosClass.GUARANTEED, QosClass.BURSTABLE, QosClass.BEST_EFFORT


@pytest.mark.parametrize(
    ("reported", "place"),
    [
        (f"/kubepods/pod{UID}", PodCgroup(f"kubepods/pod{UID}", G, None, "kubepods")),
        (
            f"/kubepods/burstable/pod{UID}",
            PodCgroup(f"kubepods/burstable/pod{UID}", B, "kubepods/burstable", "kubepods"),
        ),
        (
            f"/kubepods/besteffort/pod{UID}",
            PodCgroup(f"kubepods/besteffort/pod{UID}", E, "kubepods/besteffort", "kubepods"),
        ),
        (
            f"/kubepods.slice/kubepods-pod{UID_}.slice",
            PodCgroup(f"kubepods.slice/kubepods-pod{UID_}.slice", G, None, "kubepods.slice"),
        ),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice",
            PodCgroup(
                f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice",
                B,
                "kubepods.slice/kubepods-burstable.slice",
                "kubepods.slice",
            ),
        ),
        (
            f"/my/root/kubepods/besteffort/pod{UID}",
            PodCgroup(
                f"my/root/kubepods/besteffort/pod{UID}",
                E,
                "my/root/kubepods/besteffort",
                "my/root/kubepods",
                ("my", "my/root"),
            ),
        ),
    ],
    ids=["fs-guaranteed", "fs-burstable", "fs-besteffort", "sd-guaranteed", "sd-burstable", "root"],
)
def test_the_layouts_of_both_cgroup_drivers(reported: str, place: PodCgroup) -> None:
    assert pod_cgroup(reported, UID) == place


@pytest.mark.parametrize("qos_class", QosClass)
def test_vector_10_cri_o_reports_the_last_slice_only(qos_class: QosClass) -> None:
    middle = {G: "", B: "-burstable", E: "-besteffort"}[qos_class]
    short = f"kubepods{middle}-pod{UID_}.slice"
    between = f"kubepods{middle}.slice/" if middle else ""
    found = pod_cgroup(short, UID)
    assert found == pod_cgroup(f"/kubepods.slice/{between}{short}", UID)
    assert found is not None
    assert found.qos_class is qos_class


def test_vector_10_the_root_of_kind() -> None:
    stem = "/kubelet.slice/kubelet-kubepods.slice"
    found = pod_cgroup(f"{stem}/kubelet-kubepods-pod{UID_}.slice", UID)
    assert found is not None
    assert (found.root, found.above) == (stem[1:], ("kubelet.slice",))
    short = pod_cgroup(f"kubelet-kubepods-besteffort-pod{UID_}.slice", UID)
    assert short is not None
    assert (short.root, short.above, short.qos_class) == (stem[1:], ("kubelet.slice",), E)


@pytest.mark.parametrize(
    "reported",
    [
        "",
        "/",
        "/kubepods",
        "/kubepods/burstable",
        f"/pod{UID}",
        f"/burstable/pod{UID}",
        f"/kubepods/../pod{UID}",
        "/kubepods/pod11111111-aaaa-bbbb-cccc-0123456789ab",
        "/system.slice/podman.service",
    ],
)
def test_other_cgroups_are_not_the_pods(reported: str) -> None:
    assert pod_cgroup(reported, UID) is None


def test_a_pod_without_uid_has_no_cgroup() -> None:
    assert pod_cgroup(f"/kubepods/pod{UID}", "") is None


@given(
    above=st.lists(st.sampled_from(["a", "b_c", "kubepods", "burst"]), max_size=3),
    qos_class=st.sampled_from(QosClass),
    systemd=st.booleans(),
    uid=st.one_of(st.uuids().map(str), st.text("0123456789abcdef", min_size=32, max_size=32)),
)
def test_every_path_the_kubelet_creates_is_parsed(
    above: list[str], qos_class: QosClass, systemd: bool, uid: str
) -> None:
    parts = [*above, "kubepods", *([] if qos_class is G else [qos_class.value.lower()])]
    if systemd:
        stems = [*parts, "pod" + uid.replace("-", "_")]
        paths = ["-".join(stems[: n + 1]) + ".slice" for n in range(len(stems))]
    else:
        paths = [*parts, "pod" + uid]
    place = pod_cgroup("/" + "/".join(paths), uid)
    assert place is not None
    assert place.qos_class is qos_class
    assert place.pod == "/".join(paths)
    assert place.root == "/".join(paths[: len(above) + 1])
    assert len(place.above) == len(above)
    for upper, lower in zip(place.chain, place.chain[1:], strict=False):
        assert lower.startswith(upper + "/")


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
def test_the_path_of_a_container(reported: str, path: str | None) -> None:
    assert relative_path(reported) == path


def test_the_path_of_a_pod() -> None:
    assert parent_path("/kubepods/podx") == "kubepods/podx"
    assert parent_path("kubepods-besteffort-podx.slice") == (
        "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podx.slice"
    )
    assert parent_path("") is None
    assert expand_slice("-.slice") == ""


@given(st.text(max_size=40))
def test_no_reported_path_leads_outside(text: str) -> None:
    path = relative_path(text)
    assert path is None or (not path.startswith("/") and ".." not in path.split("/"))
