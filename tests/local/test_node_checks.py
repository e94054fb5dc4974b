"""What ``drakit doctor`` says about the runtime, the cgroup driver and SELinux, from files alone."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drakit.cli import main
from drakit.kit.config.options import HostOptions
from drakit.kit.preflight import CheckResult
from drakit.local.node_checks import about_crio, about_runtime, about_selinux, read_crio
from drakit.machine.model import CgroupMode, Cgroups
from drakit.testing.synthetic import Surroundings, build
from drakit.testing.sysfs_writer import write_tree


class Node:
    """A root directory with the files of a node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "cgroup").mkdir()

    def put(self, path: str, text: str = "") -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def options(self, **changes: object) -> HostOptions:
        settings = {"sysfs_root": str(self.root), "cgroup_root": str(self.root / "cgroup")}
        return HostOptions(**{**settings, **changes})  # type: ignore[arg-type]


@pytest.fixture(name="node")
def _node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory() as directory:
        yield Node(Path(directory))


def problems(found: list[CheckResult]) -> list[str]:
    return [each.problem for each in found if each.problem]


def notes(found: list[CheckResult]) -> list[str]:
    return [each.note for each in found if each.note]


def test_a_node_without_any_of_these_files_has_no_results(node: Node) -> None:
    assert list(about_runtime(node.options())) == []


# -- CRI-O -----------------------------------------------------------------------------------------


def test_crio_is_known_by_any_of_its_files(node: Node) -> None:
    assert read_crio(str(node.root)) is None
    node.put("var/run/crio/crio.sock")
    crio = read_crio(str(node.root))
    assert crio is not None
    assert (crio.release, crio.nri, crio.cgroup_manager) == ("", True, "systemd")


def test_drop_ins_are_read_in_order_over_the_main_file(node: Node) -> None:
    node.put("etc/crio/crio.conf", '[crio.runtime]\ncgroup_manager = "systemd"\n')
    node.put("etc/crio/crio.conf.d/00-default", "[crio.nri]\nenable_nri = false\n")
    node.put(
        "etc/crio/crio.conf.d/10-ours.conf",
        '[crio.nri]\nenable_nri = true\n[crio.runtime]\ncgroup_manager = "cgroupfs"\n',
    )
    node.put("var/run/crio/version", '"1.37.0-dev+abc"')
    found, *_ = about_crio(node.options())
    assert found.detail == "CRI-O 1.37.0, cgroup_manager cgroupfs"


@pytest.mark.parametrize("release", ["1.33.0", "1.36.3", "1.37.0", ""])
def test_updates_cannot_be_pushed_to_any_known_release_of_crio(node: Node, release: str) -> None:
    node.put("var/run/crio/version", f'"{release}"')
    (note,) = notes(list(about_crio(node.options())))
    assert "updates of running containers cannot be pushed" in note
    assert "direct cgroup writes (within 30 s) and with the next event" in note
    (note,) = notes(list(about_crio(node.options(verify_seconds=0))))
    assert "with the next event only" in note
    (note,) = notes(list(about_crio(node.options(cgroup_root=""))))
    assert "with the next event only" in note


def test_nri_must_be_on_in_crio_unless_the_driver_does_not_use_it(node: Node) -> None:
    node.put("etc/crio/crio.conf", "[crio.nri]\nenable_nri = false\n")
    found = list(about_crio(node.options()))
    (problem,) = problems(found)
    assert "enable_nri is false" in problem
    assert "restart CRI-O" in found[-1].remedy
    assert problems(list(about_crio(node.options(nri="off")))) == []


def test_socket_and_cdi_directory_must_be_the_same(node: Node) -> None:
    node.put("var/run/crio/version", "1.37.1")
    node.put(
        "etc/crio/crio.conf",
        '[crio.nri]\nnri_listen = "/run/other.sock"\n[crio.runtime]\ncdi_spec_dirs = ["/opt/cdi"]\n',
    )
    found = list(about_crio(node.options()))
    listening, pushing = notes(found)
    assert listening == (
        "CRI-O's nri_listen is /run/other.sock, the driver's nriSocket /var/run/nri/nri.sock"
    )
    assert "cannot be pushed" in pushing
    assert problems(found) == ["CRI-O reads CDI specs in /opt/cdi, not in /var/run/cdi"]
    same = node.options(nri_socket="/var/run/other.sock", cdi_dir="/opt/cdi/")
    assert not problems(list(about_crio(same)))
    assert notes(list(about_crio(same))) == [pushing]


@pytest.mark.parametrize("text", ["[crio", "crio = 1\n", "\xff\xfe", "[crio]\nnri = 3\n"])
def test_a_damaged_file_of_crio_is_a_note(node: Node, text: str) -> None:
    (node.root / "etc/crio").mkdir(parents=True)
    (node.root / "etc/crio/crio.conf").write_bytes(text.encode("latin-1"))
    found = list(about_crio(node.options()))
    assert found[0].detail.startswith("CRI-O of unknown release")
    assert not problems(found)


# -- cgroup driver ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pods", "init", "verify", "level", "text"),
    [
        ("kubepods.slice", "systemd", 30.0, "good", "is systemd"),
        ("kubelet.slice/kubelet-kubepods.slice", "systemd", 30.0, "good", "restored within 30 s"),
        ("kubepods.slice", "systemd", 0.0, "note", "not restored"),
        ("kubepods", "init", 30.0, "good", "is cgroupfs"),
        ("kubepods", "systemd", 30.0, "note", "two programs manage one tree"),
    ],
)
def test_the_cgroup_driver_is_reported(
    node: Node, pods: str, init: str, verify: float, level: str, text: str
) -> None:
    (node.root / "cgroup" / pods).mkdir(parents=True)
    node.put("proc/1/comm", f"{init}\n")
    (found,) = about_runtime(node.options(verify_seconds=verify))
    assert found.subject == "cgroups"
    assert text in (found.note if level == "note" else found.detail)


# -- SELinux ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("enforce", "context", "level"),
    [
        ("1", "system_u:system_r:container_t:s0:c1,c2\0", "note"),
        (None, "system_u:system_r:container_t:s0:c1,c2\0", "note"),
        ("0", "system_u:system_r:container_t:s0:c1,c2\0", "nothing"),
        ("1", "system_u:system_r:spc_t:s0\0", "good"),
        ("1", "unconfined_u:unconfined_r:unconfined_t:s0\0", "note"),
        ("1", "", "note"),
        (None, "cri-containerd.apparmor.d (enforce)\n", "nothing"),
        (None, "", "nothing"),
    ],
)
def test_selinux_must_not_confine_the_driver(
    node: Node, enforce: str | None, context: str, level: str
) -> None:
    if enforce is not None:
        node.put("sys/fs/selinux/enforce", enforce)
    node.put("proc/self/attr/current", context)
    found = list(about_selinux(node.options()))
    if level == "nothing":
        assert found == []
        return
    (one,) = found
    assert bool(one.note) is (level == "note")
    assert ("spc_t" in one.remedy) is (level == "note")


def test_the_context_of_the_running_driver_counts(node: Node) -> None:
    node.put("sys/fs/selinux/enforce", "1")
    node.put("proc/self/attr/current", "u:r:spc_t:s0")
    node.put("proc/7/attr/current", "u:r:container_t:s0")
    node.put("proc/8/attr/current", "u:r:unconfined_service_t:s0")
    (confined,) = about_selinux(node.options(), 7)
    assert "runs as container_t" in confined.note
    (free,) = about_selinux(node.options(), 8)
    assert free.detail == "enforcing; the driver runs as unconfined_service_t"


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "level"), [(CgroupMode.V1, "note"), (CgroupMode.HYBRID, "note"), (CgroupMode.V2, "good")]
)
def test_doctor_reports_all_of_it(
    node: Node, capsys: pytest.CaptureFixture[str], mode: CgroupMode, level: str
) -> None:
    where = "/sys/fs/cgroup" if mode is CgroupMode.V2 else "/sys/fs/cgroup/unified"
    cgroups = Cgroups(
        mode,
        v2_mount=None if mode is CgroupMode.V1 else where,
        v1_mounts={} if mode is CgroupMode.V2 else {"cpuset": "/sys/fs/cgroup/cpuset"},
        controllers=frozenset({"cpuset"}) if mode is CgroupMode.V2 else frozenset(),
    )
    write_tree(build(surroundings=Surroundings(cgroups=cgroups)), str(node.root))
    node.put("var/run/crio/version", "1.36.3")
    main(
        [
            "doctor",
            "--output=json",
            f"--sysfs-root={node.root}",
            f"--cgroup-root={node.root / 'cgroup'}",
            f"--kubelet-root-dir={node.root / 'kubelet'}",
            f"--nri-socket={node.root / 'nri.sock'}",
            f"--kubeconfig={os.devnull}",
            "--hostname-override=n",
            "--bind-address=127.0.0.1:0",
        ]
    )
    remarks = json.loads(capsys.readouterr().out)["remarks"]
    (about,) = [each for each in remarks if each["subject"] == "cgroups"]
    assert about["level"] == level
    runtime = [each["text"] for each in remarks if each["subject"] == "runtime"]
    assert runtime[0] == "CRI-O 1.36.3, cgroup_manager systemd"
    assert any("cannot be pushed" in text for text in runtime)
