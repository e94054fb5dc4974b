"""docs/configuration.md and docs/troubleshooting.md list exactly what the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from drakit.cli.commands.gather import report
from drakit.cli.driver_settings import DriverSettings
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.program import program as cpu_program
from drakit.kit.config.settings import Setting, load, settings_of
from drakit.kit.program import _parser
from drakit.kit.telemetry.metrics import HostMetrics
from drakit.kit.telemetry.prometheus import CounterFamily, HistogramFamily
from drakit.local.node_programs import NODE_PROGRAMS
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree
from tests.docs.pages import DOCS, REPOSITORY, blocks, codes, rows, text_of

CONFIGURATION = text_of("docs/configuration.md")
TROUBLE = text_of("docs/troubleshooting.md")
SETTINGS = settings_of(CpuConfig, cpu_program().prefix)
SOURCES = REPOSITORY / "src/drakit"


def formatted(one: Setting) -> str:
    default = one.default
    if default == "":
        return "empty"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


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
    named = set(re.findall(r"\bDRA_CPU_[A-Z_]+[A-Z]", CONFIGURATION)) - {"DRA_CPU_CONFIG"}
    assert named <= {one.variables[0] for one in SETTINGS}


def test_the_example_file_is_a_configuration(tmp_path: Path) -> None:
    (example,) = blocks(CONFIGURATION, "yaml")
    path = tmp_path / "config.yaml"
    path.write_text(example)
    loaded = load(CpuConfig, _parser(cpu_program()), ["--config", str(path)], {}, prefix=cpu_program().prefix)
    assert set(loaded.sources) == set(yaml.safe_load(example))
    assert loaded.config.hold_back_shared


# -- metrics -----------------------------------------------------------------------------------------


def gauge_names() -> Iterator[str]:
    """Gauges are created at scrape time: their names are literals in the source."""
    for path in [*(SOURCES / "kit").rglob("*.py"), SOURCES / "drivers/models/cpus.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Gauge":
                first = node.args[0]
                assert isinstance(first, ast.Constant)
                yield f"dra_cpu_{first.value}"


def metrics() -> dict[str, list[str]]:
    """Counters and histograms with their labels."""
    found = {}
    for instrument in vars(HostMetrics("dra.cpu")).values():
        if isinstance(instrument, CounterFamily | HistogramFamily):
            found[instrument.name] = list(instrument.label_names)
    return found


def test_every_metric_is_listed_and_every_listed_metric_exists() -> None:
    listed = [codes(row[0])[0] for row in rows(CONFIGURATION, "metric", "labels", "meaning")]
    assert len(set(listed)) == len(listed)
    assert set(listed) == {*metrics(), *gauge_names()}


def test_the_labels_are_right() -> None:
    known = metrics()
    for name, labels, _meaning in rows(CONFIGURATION, "metric", "labels", "meaning"):
        if codes(name)[0] in known:
            assert codes(labels) == known[codes(name)[0]]


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_no_page_invents_a_metric(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"\bdra_cpu_[a-z_]+", text))
    if page.name == "migrating.md":
        named.remove("dra_cpu_claim_allocated_cpus")  # listed as missing
    assert named <= {*metrics(), *gauge_names(), "dra_cpu_"}


def test_the_health_endpoints_exist() -> None:
    routes = set(re.findall(r'"(/[a-z]+)": lambda', (SOURCES / "kit/host.py").read_text("utf-8")))
    assert {codes(row[0])[0] for row in rows(CONFIGURATION, "endpoint", "200 when")} == routes


# -- troubleshooting ---------------------------------------------------------------------------------


def reasons() -> set[str]:
    """The reason labels of rejections in the kit and in the CPU and memory drivers."""
    found = set()
    for path in rejecting_sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "reason":
                found |= {
                    each.value
                    for each in _branches(node.value)
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                }
    return found


def rejecting_sources() -> list[Path]:
    drivers = [SOURCES / "drivers" / name for name in ("cpu", "cpumem", "models")]
    return [path for place in (SOURCES / "kit", *drivers) for path in sorted(place.rglob("*.py"))]


def _branches(node: ast.expr) -> list[ast.expr]:
    return [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]


def test_every_rejection_is_explained() -> None:
    listed = [code for row in rows(TROUBLE, "reason", "what was rejected") for code in codes(row[0])]
    assert len(set(listed)) == len(listed)
    assert set(listed) == reasons()


def test_the_fields_of_a_report_are_listed(tmp_path: Path) -> None:
    write_tree(build(cores=2), str(tmp_path / "machine"))
    config = CpuConfig(
        sysfs_root=str(tmp_path / "machine"),
        kubelet_root_dir=str(tmp_path),
        cdi_dir=str(tmp_path),
        nri_socket=str(tmp_path / "nri.sock"),
        kubeconfig=str(tmp_path / "none"),
        bind_address="",
        state_dir=str(tmp_path),
    )
    document = report(DriverSettings(NODE_PROGRAMS["cpu"], config, {}, "node"))
    table = rows(TROUBLE, "field", "content")
    assert {code for row in table for code in codes(row[0])} == set(document)
    for row in table:
        (name, *others), inner = codes(row[0]), codes(row[1])
        if not others and isinstance(document[name], dict) and name in ("slices", "configuration"):
            assert set(inner) == set(document[name])


def words(text: str) -> str:
    return " ".join(text.split())


def test_quoted_errors_are_those_of_the_code() -> None:
    """The messages quoted in the tables of events are those of the source."""
    source = words(
        "".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8")) for path in rejecting_sources())
    )
    for message in (
        "is held by",
        "its resources are exclusive to that pod",
        "must stay available to containers without claims (minSharedCPUs)",
        "is not understood:",
        "unknown field",
        "this node has no device",
        "is probably off",
        "asks for nothing",
        "does not get its",
        "and assigns the same resources as",
        "memory.min and memory.low are the kubelet's",
        "repairing a cgroup file that another process changed",
        "no pod cgroup: claims are not protected",
        "cannot set cgroup file",
        "hugepage pool is smaller than configured",
    ):
        assert message in words(TROUBLE)
        assert message in source
