"""Fixtures of the end-to-end tests, the folder of a failure, and the one visible repetition.

The cluster lives for the whole session and is shared: a test isolates itself by its own
``namespace`` and leaves the node as it found it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from tests.e2e.bed.cluster import Cluster
from tests.e2e.bed.deploy import build_image, build_packages
from tests.e2e.bed.driver import ChartDriver
from tests.e2e.bed.emulator import EmulatorDiedError
from tests.e2e.bed.host import Ability, what_can_run
from tests.e2e.bed.node import Node
from tests.e2e.bed.pins import REPOSITORY, Pins, load_pins
from tests.e2e.bed.processes import ProcessDiedError, Run
from tests.e2e.bed.shapes import Shape, load_shapes

ARTIFACTS = REPOSITORY / "build" / "e2e-artifacts"
_beds: list[Cluster | Node] = []
_repeated: list[str] = []
_node_tier: list[ExitStack] = []
"""What ends the node tier's machine: two at once starve each other on two cores."""
_DEATH = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run what takes long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_needs)
    if not config.getoption("--full"):
        reason = pytest.mark.skip(reason="takes long: runs with --full (make e2e-full)")
        for item in items:
            if item.get_closest_marker("full"):
                item.add_marker(reason)


def _needs(item: pytest.Item) -> int:
    """The order of tests: the cluster and a driver on it stay once they are there.

    So what needs neither has the machine for itself, and plain pods are seen on a plain node.
    """
    wanted = set(getattr(item, "fixturenames", ()))
    if "cluster" not in wanted:
        return 0
    return 2 if wanted & {"cpu_driver", "cpumem_driver"} else 1


# What there is ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def ability() -> Ability:
    """What this machine can run."""
    return what_can_run()


@pytest.fixture(scope="session")
def pins(ability: Ability) -> Pins:
    """The selected versions."""
    return ability.pins(load_pins())


@pytest.fixture(scope="session")
def shapes() -> dict[str, Shape]:
    """All VM shapes."""
    return load_shapes()


@contextmanager
def making() -> Iterator[None]:
    """A bed that cannot be made says as little about the driver as one that died."""
    try:
        yield
    except (ProcessDiedError, TimeoutError, OSError) as error:
        raise EmulatorDiedError(f"the bed could not be made: {error}") from error


@pytest.fixture(scope="session")
def cluster(ability: Ability, pins: Pins, shapes: dict[str, Shape]) -> Iterator[Cluster]:
    """The cluster tier: a control plane and one ``smt2`` node, for the whole session."""
    if not ability.cluster:
        pytest.skip(f"no cluster tier on this machine: {ability.why_not()}")
    _end_node_tier()
    with Run.begin() as run:
        with making():
            made = Cluster(run, pins)
        _beds.append(made)
        try:
            with making():
                made.add_node("node-1", shapes["smt2"])
            yield made
        finally:
            _beds.remove(made)


@pytest.fixture(scope="session")
def runtime(ability: Ability, pins: Pins, shapes: dict[str, Shape]) -> Iterator[Node]:
    """The node tier: one ``smt2`` machine with containerd and no kubelet, until the cluster is made.

    Shared: a test leaves it as it found it.
    """
    if not ability.vm:
        pytest.skip(f"no node tier on this machine: {ability.why_not()}")
    with ExitStack() as stack:
        run = stack.enter_context(Run.begin())
        made = Node(run, pins, "runtime-1", shapes["smt2"], None)
        _beds.append(made)
        stack.callback(_beds.remove, made)
        _node_tier.append(stack)
        with making():
            made.power_on()
            made.wait_for_runtime()
        yield made
    _end_node_tier()


def _end_node_tier() -> None:
    while _node_tier:
        _node_tier.pop().close()  # closing twice does nothing


@pytest.fixture
def node(cluster: Cluster) -> Node:
    """The cluster's first node."""
    return cluster.node


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, emptied and deleted afterwards."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_"))
    with cluster.namespace(words[:40].strip("-")) as name:
        yield name


_BUILDS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "packages": (build_packages, "site"),
    "image": (build_image, "drakit.tar"),
}


@pytest.fixture(scope="session", autouse=True)
def made_ahead(
    request: pytest.FixtureRequest, ability: Ability, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Path]]]:
    """What is built from this tree, begun at once: a machine that boots leaves one core idle."""
    wanted = {
        name
        for item in request.session.items
        if not item.get_closest_marker("skip")
        for name in getattr(item, "fixturenames", ())
    }
    with ThreadPoolExecutor(1) as builder:
        yield {
            name: builder.submit(build, tmp_path_factory.mktemp(name) / target)
            for name, (build, target) in _BUILDS.items()
            if name in wanted and (ability.cluster if name == "image" else ability.vm)
        }


@pytest.fixture(scope="session")
def packages(made_ahead: dict[str, Future[Path]]) -> Path:
    """drakit as it is in this tree, with its dependencies, for the guest's Python."""
    return made_ahead["packages"].result()


@pytest.fixture(scope="session")
def image(made_ahead: dict[str, Future[Path]]) -> Path:
    """The drivers' image, built from this tree as ``make image`` does."""
    return made_ahead["image"].result()


@pytest.fixture(scope="session")
def cpu_driver(cluster: Cluster, image: Path) -> ChartDriver:
    """dra-driver-cpu as its chart deploys it; each module chooses a configuration."""
    return ChartDriver(cluster, "dra-driver-cpu", "dra.cpu", image)


@pytest.fixture(scope="module")
def cpumem_driver(cluster: Cluster, image: Path, cpu_driver: ChartDriver) -> Iterator[ChartDriver]:
    """dra-driver-cpumem as its chart deploys it; the two hand out the same CPUs and take turns."""
    cpu_driver.retire()
    driver = ChartDriver(cluster, "dra-driver-cpumem", "dra.cpumem", image)
    try:
        yield driver
    finally:
        driver.retire()


# When it fails ----------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        item.stash[_DEATH] = _death(call)
        folder = ARTIFACTS / re.sub(r"[^\w.-]+", "_", item.name)
        shutil.rmtree(folder, ignore_errors=True)
        for bed in _beds:
            bed.collect(folder / (bed.name if isinstance(bed, Node) else "cluster"))
        if folder.exists():
            report.sections.append(("test bed", f"objects, events and logs are in {folder}"))
    return report


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test; when it failed because its bed died or was never made, say so and repeat it once."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    death = item.stash.get(_DEATH, "")
    if death:
        _repeated.append(f"{item.nodeid}: {death.splitlines()[0]}")
        _say(item.config, f"\nTHE BED DIED during {item.nodeid}: {death}")
        _say(item.config, "the bed is thrown away; this test is repeated once on a new one")
        _throw_the_bed_away(item)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _throw_the_bed_away(item: pytest.Item) -> None:
    """End all fixtures, the session's too: the repetition makes new ones.

    Those that tidy up on a dead machine fail at it, which must not end the whole session.
    """
    try:
        item.session._setupstate.teardown_exact(None)
    except Exception as error:
        _say(item.config, f"(tidying up on it failed: {error!r:.300})")


def _death(call: pytest.CallInfo[None]) -> str:
    if call.excinfo is not None and call.excinfo.errisinstance(EmulatorDiedError):
        return str(call.excinfo.value)
    for bed in _beds:
        try:
            for machine in bed.nodes if isinstance(bed, Cluster) else [bed]:
                machine.check()
        except EmulatorDiedError as error:
            return str(error)
    return ""


def _say(config: pytest.Config, text: str) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    reporter.write_line(text, yellow=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in what_can_run().missing:
        terminalreporter.write_line(f"NOT RUN HERE: {line}", yellow=True)
    for line in _repeated:
        terminalreporter.write_line(f"REPEATED after the bed died: {line}", yellow=True)
