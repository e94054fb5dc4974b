"""The pages of dra-driver-cpumem match the code, and their examples and numbers are real."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from drakit.cli import main as drakit
from drakit.core.objects import (
    DeviceClaim,
    ObjectMeta,
    ResourceClaim,
    ResourceClaimSpec,
    from_builtins,
    to_builtins,
)
from drakit.core.quantity import Quantity
from drakit.drivers.cpumem.driver import CpuMemDriver, cpumem_driver
from drakit.drivers.cpumem.hugepages import pools, resizing
from drakit.drivers.cpumem.hugepages.record import PoolRecord
from drakit.drivers.cpumem.hugepages.settings import HugepageSettings, PageCounts, PoolKey
from drakit.drivers.cpumem.layouts import combined_classes, split_classes
from drakit.drivers.cpumem.preflight import about_kubelet
from drakit.drivers.cpumem.program import program as cpumem_program
from drakit.drivers.cpumem.qos import reconciler, writer
from drakit.drivers.cpumem.qos.kubeletconfig import KubeletFiles
from drakit.drivers.cpumem.qos.planner import QosPlan, throttle_at
from drakit.drivers.cpumem.qos.record import CgroupRecord
from drakit.drivers.cpumem.qos.writer import CgroupWriter
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.kit import host
from drakit.kit.config.settings import load, settings_of
from drakit.kit.driver import PreparedClaims
from drakit.kit.program import _parser
from drakit.kit.slices.preview import preview_slices
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.kit.telemetry.prometheus import CounterFamily, HistogramFamily
from drakit.local.node import LocalNode, fresh_claim
from drakit.machine.model import HugepagePool
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree
from tests.deploy.simulated import MACHINE, running
from tests.docs.pages import DOCS, REPOSITORY, blocks, codes, rows, text_of
from tests.docs.test_configuration import formatted
from tests.drivers.cpumem.hugepages.kernel import FakeKernel, KernelPool

CONFIGURATION = text_of("docs/configuration-cpumem.md")
SETTINGS = settings_of(CpuMemConfig, cpumem_program().prefix)
SOURCES = REPOSITORY / "src/drakit"


# -- settings ----------------------------------------------------------------------------------------


def test_every_setting_is_listed_with_its_flags_default_and_meaning() -> None:
    listed = {row[0]: row[1:] for row in rows(CONFIGURATION, "key", "flag", "default", "meaning")}
    expected = {
        f"`{one.key}`": [" ".join(f"`{flag}`" for flag in one.flags), formatted(one), one.help]
        for one in SETTINGS
    }
    assert listed == expected


def test_second_variables_are_named() -> None:
    for one in SETTINGS:
        for variable in one.variables[1:]:
            assert f"`{one.key}` also `{variable}`" in CONFIGURATION


def test_the_example_file_is_a_configuration(tmp_path: Path) -> None:
    (example,) = blocks(CONFIGURATION, "yaml")
    path = tmp_path / "config.yaml"
    path.write_text(example)
    arguments = ["--config", str(path)]
    loaded = load(CpuMemConfig, _parser(cpumem_program()), arguments, {}, prefix=cpumem_program().prefix)
    assert set(loaded.sources) == set(yaml.safe_load(example))
    assert loaded.config.hugepages.pools.of(1) == {2 << 20: 1024, 1 << 30: 4}


def test_every_command_of_the_program_is_listed() -> None:
    listed = {codes(row[0])[0].split()[1] for row in rows(CONFIGURATION, "command", "purpose")}
    options = {option for action in _parser(cpumem_program())._actions for option in action.option_strings}
    assert listed == options - {"-h"}


# -- metrics -----------------------------------------------------------------------------------------


def gauge_names() -> Iterator[str]:
    """Gauges are created at scrape time: their names are literals, or the first items of table rows."""
    paths = [
        *(SOURCES / "kit").rglob("*.py"),
        SOURCES / "drivers/models/cpus.py",
        *(SOURCES / "drivers/cpumem").rglob("*.py"),
    ]
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Gauge", "_gauge"):
                if isinstance(node.args[0], ast.Constant):
                    yield f"dra_cpumem_{node.args[0].value!s}"
            elif isinstance(node, ast.For) and "Gauge(name, " in ast.unparse(node):
                yield from (f"dra_cpumem_{row[0]}" for row in _looped_over(node))


def _looped_over(loop: ast.For) -> Iterator[list[str]]:
    if isinstance(loop.iter, ast.Tuple):
        for row in loop.iter.elts:
            assert isinstance(row, ast.Tuple)
            yield [str(e.value) for e in row.elts if isinstance(e, ast.Constant)]


def metrics() -> dict[str, list[str]]:
    """Counters and histograms with their labels."""
    return {
        instrument.name: list(instrument.label_names)
        for instrument in vars(HostMetrics("dra.cpumem")).values()
        if isinstance(instrument, CounterFamily | HistogramFamily)
    }


def test_every_metric_is_listed_and_every_listed_metric_exists() -> None:
    listed = [codes(row[0])[0] for row in rows(CONFIGURATION, "metric", "labels", "meaning")]
    assert len(set(listed)) == len(listed)
    assert set(listed) == {*metrics(), *gauge_names()}


def test_the_labels_of_counters_are_right() -> None:
    known = metrics()
    for name, labels, _meaning in rows(CONFIGURATION, "metric", "labels", "meaning"):
        if codes(name)[0] in known:
            assert codes(labels) == known[codes(name)[0]]


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_no_page_invents_a_metric(page: Path) -> None:
    named = set(re.findall(r"\bdra_cpumem_[a-z_]+", page.read_text(encoding="utf-8")))
    assert named <= {*metrics(), *gauge_names(), "dra_cpumem_"}


# -- the quickstart ----------------------------------------------------------------------------------

GUIDE = text_of("docs/cpumem.md")
RESERVED = {"reserved_cpus": "0,16", "reserved_memory": "0:memory=1Gi;1:memory=1Gi"}


def shown(text: str, command: str) -> str:
    """The output of a page below the console line that starts with *command*."""
    (found,) = [
        part.partition("\n")[2].strip("\n")
        for block in blocks(text, "console")
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
        if part.startswith(command)
    ]
    return found


def guide_driver(**settings: Any) -> CpuMemDriver:
    return cpumem_driver(CpuMemConfig(**{**RESERVED, **settings}), MACHINE)


def test_the_settings_of_the_guide_are_those_its_outputs_are_for() -> None:
    (values,) = [block for block in blocks(GUIDE, "yaml") if "driverConfig" in block]
    given = yaml.safe_load(values)["driverConfig"]
    assert given == {"reservedCPUs": RESERVED["reserved_cpus"], "reservedMemory": RESERVED["reserved_memory"]}


def test_inspect_prints_what_the_guide_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tree(MACHINE, str(tmp_path))
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in RESERVED.items()]
    assert drakit(["inspect", "--root", str(tmp_path), *flags]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()]
    assert printed == shown(GUIDE, "drakit inspect").splitlines()


def test_the_slices_of_the_guide() -> None:
    lines = shown(GUIDE, "kubectl get resourceslices --field-selector spec.driver=dra.cpumem -o")
    devices = guide_driver().offer().pools[0].devices
    keys = ("dra.cpumem/memory", "dra.cpumem/cpu")
    expected = [
        " ".join([d.name, *(str(d.capacity[key].value) for key in keys if key in d.capacity)])
        for d in devices
    ]
    assert lines.splitlines() == expected


async def test_the_container_of_the_guide() -> None:
    async with running(REPOSITORY / "deploy/examples/cpumem-dpdk.yaml", **RESERVED) as ran:
        main = ran.containers["main"]
        pages = main.resources.unified["hugetlb.1GB.max"]
        expected = f"Cpus_allowed_list:\t{main.cpus}\nMems_allowed_list:\t{main.mems}\n{pages}"
    assert shown(GUIDE, "kubectl logs cpumem-dpdk") == expected


def test_every_step_of_the_guide_has_a_check() -> None:
    steps = re.split(r"^### \d+\. ", GUIDE.partition("## Asking")[0], flags=re.MULTILINE)[2:]
    assert len(steps) == 4
    assert all("**Check**" in step for step in steps)


def test_lint_reports_a_misspelled_key_as_the_guide_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = text_of("deploy/examples/cpumem-dpdk.yaml")
    (tmp_path / "pod.yaml").write_text(manifest.replace("hugepages1Gi: 2Gi", "hugepages1gi: 2Gi"))
    slices = [to_builtins(each) for each in preview_slices(guide_driver(), "worker-1")]
    (tmp_path / "slices.yaml").write_text(yaml.safe_dump_all(slices))
    sources = [str(tmp_path / "slices.yaml"), str(REPOSITORY / "deploy/install-cpumem.yaml")]
    assert drakit(["lint", str(tmp_path / "pod.yaml"), "--from", *sources]) == 1
    printed = capsys.readouterr().out.replace(f"{tmp_path}/", "").strip()
    assert printed == shown(GUIDE, "drakit lint pod.yaml")


# -- claims and names --------------------------------------------------------------------------------


def claims_of(text: str) -> list[DeviceClaim]:
    documents = [yaml.safe_load(block) for block in blocks(text, "yaml")]
    return [from_builtins(each, DeviceClaim) for each in documents if "requests" in each]


def test_the_claims_of_the_guide_are_served(tmp_path: Path) -> None:
    combined, split = claims_of(GUIDE)
    for devices, layout in ((combined, "combined"), (split, "split")):
        claim = ResourceClaim(metadata=ObjectMeta(name="asked"), spec=ResourceClaimSpec(devices=devices))
        classes = (*combined_classes(), *split_classes())
        node = LocalNode(guide_driver(layout=layout), str(tmp_path / layout), classes)
        (entry,) = node.assignment([fresh_claim(claim)], PreparedClaims())
        assert {key.partition("/")[0] for g in entry.devices for key in g.amounts} == {"numa0"}
        assert str(MACHINE.nodes_of(entry.exclusive("cpu"))) == "0"


def test_every_attribute_capacity_and_class_is_listed() -> None:
    page = text_of("docs/attributes.md")
    table = rows(page, "attribute of dra.cpumem", "type", "meaning")
    listed = {code for row in table for code in codes(row[0])} - {"resource.kubernetes.io/pcieRoot"}
    distances = {name for name in listed if "/distance" in name}
    published = guide_driver().offer().pools[0].devices
    names = {name for device in published for name in device.attributes}
    assert listed - distances == {name for name in names if "/distance" not in name}
    assert distances < names
    kinds = {codes(row[0])[0].partition("<")[0] for row in rows(page, "capacity", "unit", "step")}
    keys = {re.sub(r"\d+\wi$", "", key) for device in published for key in device.capacity}
    assert kinds == keys
    classes = [code for row in rows(page, "DeviceClass", "selects") for code in codes(row[0])]
    full = [name if name.startswith("dra") else f"dra.cpumem-hugepages{name}" for name in classes]
    every = {each.metadata.name for each in (*combined_classes(), *split_classes())}
    assert set(full) == every


def test_every_example_is_in_the_guide() -> None:
    named = {
        name for row in rows(GUIDE, "example", "purpose") for name in re.findall(r"\[([\w.-]+)\]", row[0])
    }
    assert named == {path.name for path in (REPOSITORY / "deploy/examples").glob("cpumem-*.yaml")}


# -- Memory QoS and hugepages ------------------------------------------------------------------------

QOS = text_of("docs/memory-qos.md")


def test_the_formula_gives_the_values_of_its_table() -> None:
    table = rows(QOS, "request", "limit", "factor", "`memory.high`")
    assert len(table) == 7
    for request, limit, factor, high in table:
        asked, most = Quantity(request).ceil(), Quantity(limit).ceil()
        assert throttle_at(asked, most, float(factor), 4096) == int(high)


def test_the_modes_are_listed() -> None:
    (setting,) = [one for one in SETTINGS if one.key == "memoryQoS"]
    listed = [codes(row[0])[0] for row in rows(QOS, "`memoryQoS`", "protected memory")]
    assert listed == ["off", "claims", "all"]
    assert f"`{setting.default}` (default)" in QOS


KUBELET = "memoryReservationPolicy: TieredReservation\nmemoryThrottlingFactor: 0.9\n"


async def test_files_of_the_kubelet_are_reported_as_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(KUBELET)
    said = [
        line
        for finding in about_kubelet(CpuMemConfig(), KubeletFiles(str(tmp_path / "config.yaml")))
        if finding.note
        for line in str(finding).splitlines()
    ]
    check, metric = blocks(QOS, "")[:2]
    assert check.splitlines() == said
    async with running(REPOSITORY / "deploy/examples/cpumem-database.yaml", kubelet_config=KUBELET) as ran:
        exposition = ran.host.metrics.exposition().decode()
        assert "memory.min" not in ran.containers["main"].resources.unified
        assert ran.pod_file("memory.min") == ran.root_file("memory.min") == "0"
    owned = [line for line in exposition.splitlines() if "_memory_file_owner{" in line]
    assert metric.splitlines() == [line for line in owned if line.endswith(" 1.0")]


def test_foreign_writes_are_logged_as_the_page_shows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "cgroup/kubepods/memory.min"
    file.parent.mkdir(parents=True)
    file.write_text("0\n")
    now = [0.0]
    writer = CgroupWriter(
        str(tmp_path / "cgroup"), CgroupRecord(str(tmp_path / "record"), "boot"), clock=lambda: now[0]
    )
    wanted = QosPlan(tree={"kubepods": {"memory.min": str(3 << 30)}})
    writer.apply(wanted, pods_changed=False)
    for _ in range(6):
        file.write_text("4096\n")
        now[0] += 30
        writer.apply(wanted, pods_changed=False)
    said = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
    assert list(dict.fromkeys(said)) == blocks(QOS, "")[2].splitlines()
    assert said.count(said[0]) == 5


def test_a_shortage_is_logged_as_the_page_shows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = PoolKey(0, 2 << 20)
    kernel = FakeKernel({key: KernelPool()}, room={key: 60})
    settings = HugepageSettings(pools=PageCounts.parse("0:2Mi=100"))
    machine = build(cores=1, hugepages=[HugepagePool(key.size, 0, 0)])
    record = PoolRecord(str(tmp_path), "boot")
    pools.HugepagePools(settings, machine, kernel, record).set_static_sizes()
    (shown,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert f"WARNING {shown.getMessage()}" in text_of("docs/hugepages.md").splitlines()


def test_the_timeouts_on_the_pages_are_those_of_the_code() -> None:
    assert (host._RECONCILE_SECONDS, reconciler._CHURN_SECONDS) == (10, 120)
    assert "every ten seconds" in QOS
    assert "up to two minutes after pods started or stopped" in QOS
    assert writer.RepairLimits().repairs == 5
    assert "at most five times" in QOS
    pages = text_of("docs/hugepages.md")
    assert (resizing.DEFAULT_LIMITS.tries, resizing.DEFAULT_LIMITS.seconds) == (3, 8)
    assert "at most three times or for eight seconds" in pages
    assert pools._RETRY_SECONDS == 60
    assert "retries every minute" in pages
