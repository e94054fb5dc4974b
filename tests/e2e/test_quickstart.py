"""docs/quickstart.md, executed as written: every command runs, every check shows the output of the page.

Three things differ: the node is one of the test cluster (8 CPUs instead of 32, with the numbers below),
``scp`` and ``ssh`` are replaced by the agent of the guest, and busybox has another name, since there is
no registry.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import blocks, text_of
from tests.e2e.bed.busybox import IMAGE
from tests.e2e.bed.cluster import Cluster
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.gobuild import helm_program, kubernetes_programs
from tests.e2e.bed.node import Node
from tests.e2e.bed.pins import REPOSITORY
from tests.e2e.bed.waiting import NotYetError

# The page's machine has CPUs 0-31, NUMA node 0 with 0-7,16-23; ours 0-7 and 0-3. CPU 0 is
# reserved in both (the page's 16, its other thread, does not exist here).
NUMBERS = {
    "cpudevnuma000 14\ncpudevnuma001 16": "cpudevnuma000 3\ncpudevnuma001 4",
    "Cpus_allowed_list:\t1,17": "Cpus_allowed_list:\t2-3",
    "1,17": "2-3",
    "Cpus_allowed_list:\t2-15,18-31": "Cpus_allowed_list:\t1,4-7",
    "Cpus_allowed_list:\t1-15,17-31": "Cpus_allowed_list:\t1-7",
}


@dataclass(frozen=True)
class Step:
    """A command of the page and its output."""

    command: str
    shown: str


def steps() -> list[Step]:
    """The page's console lines in order."""
    found = []
    for block in blocks(text_of("docs/quickstart.md"), "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append(Step(command, output.strip()))
    return found


class Reader:
    """Runs the commands of the page, on this machine or on the node."""

    def __init__(self, cluster: Cluster, image: Path, desk: Path) -> None:
        self._cluster, self._image, self._desk = cluster, image, desk
        shutil.copytree(REPOSITORY / "deploy", desk / "deploy")
        for example in (desk / "deploy" / "examples").glob("*.yaml"):
            text = example.read_text()
            example.write_text(re.sub(r"image: busybox$", f"image: {IMAGE}", text, flags=re.MULTILINE))
        helm = helm_program(cluster.pins).path()
        kubectl = kubernetes_programs(cluster.pins)["kubectl"].path()
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(cluster.plane.admin_kubeconfig()),
            "PATH": f"{helm.parent}:{kubectl.parent}:{os.environ['PATH']}",
            "HOME": str(desk),
        }

    def does(self, command: str) -> str:
        """Run a command and return its output; fail if it fails."""
        first, *rest = shlex.split(command)
        if first == "make":
            (self._desk / "build").mkdir()
            shutil.copy(self._image, self._desk / "build" / "drakit-image.tar")
            return ""
        if first == "scp":
            source, _ = rest
            self._node.put(f"/{Path(source).name}", (self._desk / source).read_bytes())
            return ""
        if first == "ssh":
            return self._on_node(command.split(" ", 2)[2])
        if first in ("kubectl", "helm"):
            # The busybox image of the test cluster has an entry point, Docker's does not.
            here = command.replace("--image=busybox", f"--image={IMAGE} --command")
            return self._here(here)
        return self._on_node(command)

    @property
    def _node(self) -> Node:
        return self._cluster.node

    def leaves(self) -> None:
        """Remove the objects of a partially executed page."""
        pods = "kubectl delete pod from-template other --ignore-not-found --grace-period=1"
        self._here(f"{pods}; helm uninstall dra-driver-cpu -n kube-system --ignore-not-found")

    def _on_node(self, command: str) -> str:
        return self._node.run(f"cd / && {command.replace('sudo ', '')}", 600).strip()

    def _here(self, command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command],
            env=self._environment,
            cwd=self._desk,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
        return (done.stdout or done.stderr).strip()


def _looks_like(output: str, shown: str, node: Node) -> bool:
    """Whether an output matches the page: the same text, or a table with the same heading and columns."""
    expected = NUMBERS.get(shown, shown)
    if not expected.startswith("NAME "):
        return output == expected
    lines = [line.split() for line in output.splitlines()]
    wanted_head, wanted_row = (line.split() for line in expected.splitlines())
    if len(lines) != 2:
        return False
    head, row = lines
    generated, age = re.compile(r".*dra\.cpu-.*-\w{5}"), re.compile(r"\d+[smh].*")
    return (
        head == wanted_head
        and [cell.replace("worker-1", node.name) for cell in wanted_row[1:4]] == row[1:4]
        and bool(generated.fullmatch(row[0]) and age.fullmatch(row[4]))
    )


def test_the_quickstart_works_as_written(
    cluster: Cluster, cpu_driver: ChartDriver, image: Path, tmp_path: Path
) -> None:
    cpu_driver.uninstall()
    reader = Reader(cluster, image, tmp_path)
    try:
        for step in steps():
            _follow(step, reader, cluster)
    finally:
        reader.leaves()


def _follow(step: Step, reader: Reader, cluster: Cluster) -> None:
    """Run a step; repeat it until its output matches."""
    print(f"$ {step.command}")
    if not step.shown:
        reader.does(step.command)
        return

    def seen() -> str:
        output = reader.does(step.command)
        if not _looks_like(output, step.shown, cluster.node):
            raise NotYetError(f"{output!r} instead of {NUMBERS.get(step.shown, step.shown)!r}")
        return output

    print(cluster.wait(f"what the page shows under {step.command!r}", seen, limit=90))
