"""The cgroup watch reports violations and nothing else; needs no machine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.e2e.bed.node import Node
from tests.e2e.bed.waiting import wait_for
from tests.e2e.bed.watch import Role, Watch, judged, role, watching

POD_CGROUPS = {
    "cgroupfs": "besteffort/pod{pod}/{id}",
    "systemd": "kubepods-besteffort.slice/kubepods-besteffort-pod{pod}.slice/cri-containerd-{id}.scope",
    "crio-systemd": "kubepods-besteffort.slice/kubepods-besteffort-pod{pod}.slice/crio-{id}.scope",
}
"""Where a container's cgroup is below ``kubepods``, by the driver that makes it."""


class Here:
    """Replaces a node: the watch runs in this process."""

    def python(self, source: str, **arguments: Any) -> Any:
        names = dict(arguments)
        exec(compile(source, "<watch>", "exec"), names)
        return names["result"]


class Pods:
    """Directories that look like the cgroups of pods, each with a living process in it."""

    def __init__(self, root: Path, stack: ExitStack, place: str) -> None:
        self._root, self._stack, self._place = root, stack, place

    def run(self, pod: str, which: Role, wanted: int, cpus: str, claim: str = "") -> str:
        """One container; returns its id."""
        container = (pod.encode().hex() + "0" * 64)[:64]
        cgroup = self._root / self._place.format(pod=pod, id=container)
        cgroup.mkdir(parents=True)
        shown = {f"DRA_CLAIM_{claim}_r": "dra.k8s.io/cpu"} if claim else {}
        process = self._stack.enter_context(
            subprocess.Popen(["/bin/sleep", "1000"], env={**role(which, wanted), **shown})
        )
        self._stack.callback(process.kill)
        (cgroup / "cpuset.cpus").write_text(cpus + "\n")
        (cgroup / "cgroup.procs").write_text(f"{process.pid}\n")
        return container

    def move(self, container: str, cpus: str) -> None:
        """The kernel allows it other CPUs."""
        (cgroup,) = (each for each in self._root.glob("**/") if container in each.name)
        (cgroup / "new").write_text(cpus + "\n")
        (cgroup / "new").rename(cgroup / "cpuset.cpus")

    def checkpoint(self, claim: str, cpus: str) -> Path:
        """Write a checkpoint file, like the driver."""
        directory = self._root / "plugins/dra.cpu/claims"
        directory.mkdir(parents=True, exist_ok=True)
        entry = {"grants": [{"exclusive": {"cpu": cpus}}]}
        (directory / "new").write_text(json.dumps({"entry": entry}))
        return (directory / "new").rename(directory / f"{claim}.json")


@pytest.fixture(params=POD_CGROUPS.values(), ids=POD_CGROUPS.keys())
def pods(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pods]:
    with ExitStack() as stack:
        yield Pods(tmp_path, stack, request.param)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    with watching(cast("Node", Here()), str(tmp_path)) as watch:
        yield watch


@contextmanager
def recording(root: Path) -> Iterator[tuple[Watch, Path]]:
    record, plugins = root / "record.jsonl", str(root / "plugins")
    with watching(cast("Node", Here()), str(root), record, plugins) as watch:
        yield watch, record


def _looked_again(watch: Watch) -> None:
    """Wait for two complete passes from now on."""
    before = watch.report().looks
    wait_for("two looks", lambda: watch.report().looks > before + 2)


def test_pods_on_different_cpus_are_not_reported(pods: Pods, watch: Watch) -> None:
    owners = {pods.run("a", "owner", 2, "2-3"), pods.run("b", "owner", 3, "4,6-7")}
    pods.run("c", "sharer", 0, "1,5")
    pods.run("d", "sharer", 0, "1,5")
    wait_for("all owners to be seen", lambda: set(watch.report().owners) == owners)
    _looked_again(watch)
    watch.report().check()


@pytest.mark.parametrize(
    ("which", "wanted", "cpus", "words"),
    [
        pytest.param("owner", 2, "3-4", "[3] together with", id="two-owners"),
        pytest.param("sharer", 0, "0-2", "[2] together with", id="a-sharer-on-an-owners-cpu"),
        pytest.param("owner", 2, "5", "owns [5], not 2 CPUs", id="too-few"),
        pytest.param("owner", 1, "", "is not pinned", id="anywhere"),
    ],
)
def test_violations_are_reported(
    pods: Pods, watch: Watch, which: Role, wanted: int, cpus: str, words: str
) -> None:
    pods.run("a", "owner", 2, "2-3")
    pods.run("b", which, wanted, cpus)
    violations = wait_for("it to be seen", lambda: watch.report().violations or None)
    assert any(words in each for each in violations)


def test_containers_started_without_the_driver_are_pinned_later(pods: Pods, watch: Watch) -> None:
    with watch.driver_away():
        pods.run("a", "owner", 1, "")
        wait_for("it to be seen", lambda: watch.report().unpinned_while_away == 1)
        _looked_again(watch)
        watch.report().check()
    violations = wait_for("it to be held against it", lambda: watch.report().violations or None)
    assert "is not pinned" in violations[0]


# -- the record ----------------------------------------------------------------------------------------


def test_the_record_of_pods_on_different_cpus_is_valid(pods: Pods, tmp_path: Path) -> None:
    file = pods.checkpoint("a", "2-3")
    owner = pods.run("a", "owner", 2, "2-3", claim="a")
    sharer = pods.run("c", "sharer", 0, "1,5")
    with recording(tmp_path) as (watch, record):
        wait_for("the owner to be seen", lambda: owner in watch.report().owners)
        pods.move(sharer, "0,5")
        _looked_again(watch)
        with watch.driver_away():
            late = pods.run("late", "sharer", 0, "")
            _looked_again(watch)
            pods.move(late, "0")
        _looked_again(watch)
    report = judged(record)
    report.check()
    assert report.seen["containers"] == 3
    assert report.seen["listings"] >= 2
    assert report.undecided == {"a container started while the driver was away": 2}
    assert file.exists()


def _two_own_one(pods: Pods, owner: str) -> None:
    pods.checkpoint("b", "3")


def _a_sharer_comes(pods: Pods, owner: str) -> None:
    pods.run("c", "sharer", 0, "1-2")


def _the_owner_is_moved(pods: Pods, owner: str) -> None:
    pods.move(owner, "4-5")


def _the_claim_is_gone(pods: Pods, owner: str) -> None:
    pods.checkpoint("a", "2-3").unlink()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (_two_own_one, "two-owners"),
        (_a_sharer_comes, "intruder"),
        (_the_owner_is_moved, "moved"),
        (_the_claim_is_gone, "released"),
    ],
)
def test_violations_are_in_the_record(
    pods: Pods, tmp_path: Path, change: Callable[[Pods, str], None], kind: str
) -> None:
    pods.checkpoint("a", "2-3")
    owner = pods.run("a", "owner", 2, "2-3", claim="a")
    with recording(tmp_path) as (watch, record):
        wait_for("the owner to be seen", lambda: owner in watch.report().owners)
        change(pods, owner)
        _looked_again(watch)
        _looked_again(watch)
    assert kind in judged(record).kinds()
