"""Fixtures of the end-to-end tests, artifacts of failures, and one repetition after a crash.

The cluster is shared by the whole session: a test uses its own ``namespace`` and restores the
state of the node.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from tests.e2e.bed.cluster import Cluster
from tests.e2e.bed.cri import Cri, cri_of
from tests.e2e.bed.deploy import build_image, unpack_packages
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
_done: set[str] = set()
_node_tier: list[ExitStack] = []
"""Stops the machine of the node tier: two machines are too slow on two cores."""
_DEATH = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run what takes long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_needs)
    reasons = {}
    if not config.getoption("--full"):
        reasons["full"] = "takes long: runs with --full (make e2e-full)"
    if (here := load_pins().kubernetes) != (newest := load_pins({}).kubernetes):
        reasons["newest"] = f"is about Kubernetes {newest}, and this is {here}"
    if here.startswith("1.34."):
        # kubernetes/kubernetes#133705, fixed in 1.35: a full group hides the following ones.
        reasons["groups"] = "kube-scheduler 1.34 looks at the first group of a slice only"
    if not load_pins().is_crio:
        reasons["crio"] = "is about CRI-O: runs with DRAKIT_E2E_RUNTIME=crio"
    else:
        reasons["containerd"] = "is about containerd, and this is CRI-O: see test_crio.py"
    if (guest := load_pins().guest) != "systemd":
        reasons["systemd"] = f"is about systemd, and this is the {guest} guest"
    for item in items:
        for marker, reason in reasons.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _needs(item: pytest.Item) -> int:
    """Order the tests: the cluster and the driver keep running once they are started.

    Tests that need neither run first, and tests of plain pods run on a node without a driver. Tests
    without a machine run while one boots: first that of the node tier, then that of the cluster.
    """
    wanted = set(getattr(item, "fixturenames", ()))
    tiers: tuple[set[str], ...] = ({"cpu_driver", "cpumem_driver"}, {"cluster"}, {"bench"}, {"runtime"})
    return next((-place for place, tier in enumerate(tiers) if wanted & tier), -len(tiers))


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
    """A failure to start the test cluster is not an error of the driver."""
    try:
        yield
    except (ProcessDiedError, TimeoutError, OSError) as error:
        raise EmulatorDiedError(f"the test cluster could not be started:  {error}") from error


@pytest.fixture(scope="session")
def booting_cluster(ability: Ability, pins: Pins, shapes: dict[str, Shape]) -> Iterator[Cluster | None]:
    """A control plane and the machine of its node, or ``None`` if they cannot run here."""
    if not ability.cluster:
        yield None
        return
    _end_node_tier()
    with Run.begin() as run:
        with making():
            made = Cluster(run, pins)
        _beds.append(made)
        try:
            with making():
                made.switch_node_on("node-1", shapes["smt2"])
            yield made
        finally:
            _beds.remove(made)


@pytest.fixture(scope="session")
def beside_the_boot(request: pytest.FixtureRequest) -> None:
    """For tests without a machine: boots the cluster in the background if a later test needs it."""
    if "cluster" in _wanted(request.session):
        request.getfixturevalue("booting_cluster")


@pytest.fixture(scope="session")
def cluster(
    request: pytest.FixtureRequest, ability: Ability, booting_cluster: Cluster | None, ahead: Executor
) -> Cluster:
    """The cluster tier: a control plane and one ``smt2`` node, for the whole session."""
    if booting_cluster is None:
        pytest.skip(f"no cluster tier on this machine: {ability.why_not()}")
    node = booting_cluster.node
    with making():
        booting_cluster.wait_for_node(node)
    if "image" in _wanted(request.session):
        image: Future[Path] = request.getfixturevalue("image_to_be")
        ahead.submit(lambda: node.load_image(image.result()))
    return booting_cluster


@pytest.fixture(scope="session")
def booting_runtime(ability: Ability, pins: Pins, shapes: dict[str, Shape]) -> Iterator[Node | None]:
    """The running machine of the node tier."""
    if not ability.vm:
        yield None
        return
    with ExitStack() as stack:
        run = stack.enter_context(Run.begin())
        with making():
            made = Node(run, pins, "runtime-1", shapes["smt2"], None)
            made.switch_on()
        _beds.append(made)
        stack.callback(_beds.remove, made)
        _node_tier.append(stack)
        yield made
    _end_node_tier()


@pytest.fixture(scope="session")
def runtime(ability: Ability, booting_runtime: Node | None) -> Node:
    """The node tier: one ``smt2`` machine with a runtime and no kubelet, until the cluster starts.

    Shared: a test restores its state.
    """
    if booting_runtime is None:
        pytest.skip(f"no node tier on this machine: {ability.why_not()}")
    with making():
        booting_runtime.wait_until_up()
        booting_runtime.wait_for_runtime()
    return booting_runtime


def _end_node_tier() -> None:
    while _node_tier:
        _node_tier.pop().close()  # closing twice does nothing


@pytest.fixture
def cri(runtime: Node) -> Iterator[Cri]:
    """The CRI of the runtime; pods of a test are removed."""
    with cri_of(runtime) as client:
        yield client


@pytest.fixture
def node(cluster: Cluster) -> Node:
    """The cluster's first node."""
    return cluster.node


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace for one test, emptied and deleted afterwards."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_"))
    with cluster.namespace(words[:40].strip("-")) as name:
        yield name


@pytest.fixture(scope="session")
def ahead() -> Iterator[Executor]:
    """Background work: a test that waits for the guest leaves one core idle."""
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture(scope="session", autouse=True)
def begun_at_once(request: pytest.FixtureRequest) -> None:
    """Slow work for later tests: the image of the drivers, and the machine of the node tier."""
    wanted = _wanted(request.session)
    for name, made in (("runtime", "booting_runtime"), ("image", "image_to_be")):
        if name in wanted:
            request.getfixturevalue(made)


def _wanted(session: pytest.Session) -> set[str]:
    """The fixtures of all tests that are still to run."""
    return {
        name
        for item in session.items
        if not item.get_closest_marker("skip") and item.nodeid not in _done
        for name in getattr(item, "fixturenames", ())
    }


@pytest.fixture(scope="session")
def image_to_be(
    ability: Ability, tmp_path_factory: pytest.TempPathFactory, ahead: Executor
) -> Future[Path] | None:
    """The image of the drivers, built in the background; ``None`` if no machine can run it."""
    target = tmp_path_factory.mktemp("image") / "drakit.tar"
    return ahead.submit(build_image, target) if ability.vm else None


@pytest.fixture(scope="session")
def image(ability: Ability, image_to_be: Future[Path] | None) -> Path:
    """The image of the drivers, built from this tree like ``make image``."""
    if image_to_be is None:
        pytest.skip(f"no machine for the drivers here: {ability.why_not()}")
    return image_to_be.result()


@pytest.fixture(scope="session")
def packages(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """drakit of this tree with its dependencies, for the guest's Python."""
    return unpack_packages(image, tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="session")
def cpu_driver(cluster: Cluster, image: Path) -> ChartDriver:
    """dra-driver-cpu as its chart deploys it; each module chooses a configuration."""
    return ChartDriver(cluster, "dra-driver-cpu", "dra.cpu", image)


@pytest.fixture(scope="module")
def cpumem_driver(cluster: Cluster, image: Path, cpu_driver: ChartDriver) -> Iterator[ChartDriver]:
    """dra-driver-cpumem as its chart deploys it; it replaces dra-driver-cpu, which manages the same CPUs."""
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
            report.sections.append(("test cluster", f"objects, events and logs are in {folder}"))
    return report


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test; repeat it once, with a message, if the test cluster died or could not be started."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    death = item.stash.get(_DEATH, "")
    if death:
        _repeated.append(f"{item.nodeid}: {death.splitlines()[0]}")
        _say(item.config, f"\nTHE BED DIED during {item.nodeid}: {death}")
        _say(item.config, "the test cluster is discarded; this test is repeated once on a new one")
        _throw_the_bed_away(item)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    _done.add(item.nodeid)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _throw_the_bed_away(item: pytest.Item) -> None:
    """Tear down all fixtures, including those of the session: the repetition creates new ones.

    Teardown on a dead machine fails, which must not end the whole session.
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
        terminalreporter.write_line(f"REPEATED after the test cluster died: {line}", yellow=True)
