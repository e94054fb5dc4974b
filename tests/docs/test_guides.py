"""Quickstart, install, migrating, run and testing: their numbers, options and programs are real."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from drakit.cli.commands import run as run_command
from drakit.cluster import read_claims
from drakit.core.cpuset import CpuSet
from drakit.drivers.cpu.config import CpuConfig
from drakit.drivers.cpu.driver import cpu_driver
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.drivers.models.cpu_policy import CpuParameters
from drakit.kit.config.settings import settings_of
from drakit.kit.driver import PreparedClaims
from drakit.local.node import LocalNode, fresh_claim, state_directory
from drakit.testing.synthetic import build
from tests.docs.pages import REPOSITORY, blocks, codes, rows, text_of

QUICKSTART = text_of("docs/quickstart.md")
INSTALL = text_of("docs/install.md")
MIGRATING = text_of("docs/migrating.md")
RUN = text_of("docs/run.md")


def shown(command: str) -> list[str]:
    """The output of the quickstart below each console line that starts with *command*."""
    found = []
    for block in blocks(QUICKSTART, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            if line.startswith(command):
                found.append(output.strip())
    return found


def allowed(output: str) -> CpuSet:
    return CpuSet.parse(output.removeprefix("Cpus_allowed_list:").strip())


def test_the_quickstart_shows_what_such_a_machine_gives(tmp_path: Path) -> None:
    reserved = re.search(r"--set-string 'driverConfig\.reservedCPUs=([^']*)'", QUICKSTART)
    assert reserved
    config = CpuConfig(reserved_cpus=reserved[1].replace("\\,", ","))
    driver = cpu_driver(config, build(sockets=2, cores=8, threads=2))
    node = LocalNode(driver, str(tmp_path))
    claims = read_claims(str(REPOSITORY / "deploy/examples/template.yaml")).claims
    entries = node.assignment([fresh_claim(claim) for claim in claims], PreparedClaims())

    (capacities,) = shown("kubectl get resourceslices --field-selector spec.driver=dra.cpu -o")
    devices = [device for pool in driver.offer().pools for device in pool.devices]
    offered = [f"{d.name} {d.capacity['dra.cpu/cpu'].value}" for d in devices]
    assert capacities.splitlines() == offered

    (own,) = shown("kubectl logs from-template")
    assert allowed(own) == entries[0].exclusive("cpu")
    assert shown("kubectl exec from-template") == [str(entries[0].exclusive("cpu"))]
    (others,) = shown("kubectl logs other")
    assert allowed(others) == driver.cpus.shared(PreparedClaims(entries))
    (after,) = shown("kubectl exec other")
    assert allowed(after) == driver.cpus.shared(PreparedClaims())


def test_every_step_of_the_quickstart_has_a_check() -> None:
    steps = re.split(r"^## \d+\. ", QUICKSTART, flags=re.MULTILINE)[2:]
    assert len(steps) == 7
    assert all("**Check**" in step for step in steps)


def test_the_image_is_the_one_the_chart_starts() -> None:
    chart = yaml.safe_load(text_of("deploy/helm/dra-driver-cpu/Chart.yaml"))
    values = yaml.safe_load(text_of("deploy/helm/dra-driver-cpu/values.yaml"))
    name = f"{values['image']['repository']}:{values['image']['tag'] or chart['appVersion']}"
    assert f'default="{name}"' in text_of("tools/build_image.py")
    for page in (QUICKSTART, INSTALL):
        assert f"docker.io/library/{name}" in page


def test_the_tested_platforms_are_the_pinned_versions() -> None:
    pins = tomllib.loads(text_of("tests/e2e/versions.toml"))
    tried, _, rest = INSTALL.partition("## Tested platforms")[2].partition("**Not tested**")
    for part in ("kubernetes", "containerd"):
        default, *others = pins[part]["choices"]
        assert default == pins[part]["default"]
        assert default in tried
        assert all(other.title() in rest for other in others)
    assert pins["helm"]["default"].rpartition(".")[0] in tried


def test_the_rights_listed_are_those_of_the_chart() -> None:
    role = text_of("deploy/helm/drakit-library/templates/_rbac.tpl")
    rules = re.findall(r"resources: \[(\w+)\]\n    verbs: \[([^\]]*)\]", role)
    listed = "; ".join(f"{verbs} {resource}" for resource, verbs in rules)
    assert listed in INSTALL


def test_migrating_names_settings_and_policies_that_exist() -> None:
    settings = [*settings_of(CpuConfig, "X"), *settings_of(CpuMemConfig, "X")]
    keys = {one.key for one in settings}
    fields = set(CpuParameters.__struct_encode_fields__)
    values = set(yaml.safe_load(text_of("deploy/helm/dra-driver-cpu/values.yaml")))
    missing = {"resource", "matchAttribute", "distinctAttribute", "firstAvailable"}  # Kubernetes'
    table = [
        *rows(MIGRATING, "CPU manager", "drakit"),
        *rows(MIGRATING, "memory manager, topology manager", "drakit"),
        *rows(MIGRATING, "Go driver", "drakit"),
    ]
    assert len(table) > 25
    for row in table:
        for code in codes(re.sub(r"\[[^\]]*\]\([^)]*\)", "", row[1])):
            word = re.match(r"(?:driverConfig\.)?([a-z]+[A-Z]\w+)", code)
            if word and word[1] not in missing:
                assert word[1] in keys | fields | values | {"pcieRoot"}, code
            flag = re.match(r"--[a-z-]+", code)
            if flag:
                assert any(flag[0] in one.flags for one in settings), code


def test_every_option_of_run_is_on_its_page() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    run_command.configure(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    listed = {code.split()[0] for row in rows(RUN, "option", "meaning") for code in codes(row[0])}
    assert listed == options


@pytest.mark.parametrize(("uid", "expected"), [(0, "/run/drakit/claims"), (7, "/somewhere/drakit/claims")])
def test_run_keeps_claims_where_the_page_says(
    uid: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    assert state_directory({"XDG_RUNTIME_DIR": "/somewhere"}) == expected
    assert "/run/drakit/claims" in RUN


def test_the_program_of_the_testing_page_runs() -> None:
    (program,) = blocks(text_of("docs/developers/testing.md"), "python")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['cpudevnuma000', 'cpudevnuma001']\n"


def test_every_test_the_testing_page_names_exists() -> None:
    page = text_of("docs/developers/testing.md")
    for path in re.findall(r"`(?:[^`]*? )?(tests/[\w/]+(?:\.py)?)", page):
        assert (REPOSITORY / path).exists(), path
