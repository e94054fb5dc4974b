"""The watch on a node's cgroups sees what must never be, and nothing else; needs no machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from tests.e2e.bed.node import Node
from tests.e2e.bed.waiting import wait_for
from tests.e2e.bed.watch import Role, Watch, role, watching

POD_CGROUPS = {
    "cgroupfs": "besteffort/pod{pod}/{id}",
    "systemd": "kubepods-besteffort.slice/kubepods-besteffort-pod{pod}.slice/cri-containerd-{id}.scope",
    "crio-systemd": "kubepods-besteffort.slice/kubepods-besteffort-pod{pod}.slice/crio-{id}.scope",
}
"""Where a container's cgroup is below ``kubepods``, by the driver that makes it."""


class Here:
    """Stands in for a node: the watch runs in this very process."""

    def python(self, source: str, **arguments: Any) -> Any:
        names = dict(arguments)
        exec(compile(source, "<watch>", "exec"), names)
        return names["result"]


class Pods:
    """Directories that look like the cgroups of pods, each with a living process in it."""

    def __init__(self, root: Path, stack: ExitStack, place: str) -> None:
        self._root, self._stack, self._place = root, stack, place

    def run(self, pod: str, which: Role, wanted: int, cpus: str) -> str:
        """One container; returns its id."""
        container = (pod.encode().hex() + "0" * 64)[:64]
        cgroup = self._root / self._place.format(pod=pod, id=container)
        cgroup.mkdir(parents=True)
        process = self._stack.enter_context(
            subprocess.Popen(["/bin/sleep", "1000"], env=role(which, wanted))
        )
        self._stack.callback(process.kill)
        (cgroup / "cpuset.cpus").write_text(cpus + "\n")
        (cgroup / "cgroup.procs").write_text(f"{process.pid}\n")
        return container


@pytest.fixture(params=POD_CGROUPS.values(), ids=POD_CGROUPS.keys())
def pods(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pods]:
    with ExitStack() as stack:
        yield Pods(tmp_path, stack, request.param)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    with watching(cast("Node", Here()), str(tmp_path)) as watch:
        yield watch


def _looked_again(watch: Watch) -> None:
    """Wait until two whole looks have begun and ended from now on."""
    before = watch.report().looks
    wait_for("two looks", lambda: watch.report().looks > before + 2)


def test_pods_that_keep_apart_are_nothing_to_tell(pods: Pods, watch: Watch) -> None:
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
def test_what_must_never_be_is_seen(
    pods: Pods, watch: Watch, which: Role, wanted: int, cpus: str, words: str
) -> None:
    pods.run("a", "owner", 2, "2-3")
    pods.run("b", which, wanted, cpus)
    violations = wait_for("it to be seen", lambda: watch.report().violations or None)
    assert any(words in each for each in violations)


def test_who_starts_while_the_driver_is_away_is_pinned_when_it_is_back(
    pods: Pods, watch: Watch
) -> None:
    with watch.driver_away():
        pods.run("a", "owner", 1, "")
        wait_for("it to be seen", lambda: watch.report().unpinned_while_away == 1)
        _looked_again(watch)
        watch.report().check()
    violations = wait_for("it to be held against it", lambda: watch.report().violations or None)
    assert "is not pinned" in violations[0]
