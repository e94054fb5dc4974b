"""The settings: the Go driver's keys and flags, strict values, a schema."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drakit.core.cpuset import CpuSet
from drakit.drivers.cpu.config import CpuConfig
from drakit.kit.config import settings as configuration
from drakit.kit.config.settings import ConfigurationError


def _load(*arguments: str, **environ: str) -> CpuConfig:
    parser = argparse.ArgumentParser()
    return configuration.load(CpuConfig, parser, arguments, environ, prefix="DRA_DRIVER_CPU").config


def test_defaults():
    config = _load()
    assert (config.cpu_device_mode, config.group_by) == ("grouped", "numanode")
    assert config.reserved == CpuSet()
    assert config.min_shared_cpus == 1
    assert not config.hold_back_shared
    assert config.bind_memory
    assert config.lift_quota


def test_the_go_drivers_file_is_read_as_it_is(tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text(
        "apiVersion: v1alpha1\ncpuDeviceMode: individual\ngroupBy: socket\nreservedCPUs: '0-1'\n"
        "hostnameOverride: node-a\nkubeconfig: /etc/kubeconfig\n"
        "publishNodeAllocatableResourceMapping: true\n"
    )
    config = _load("--config", str(file))
    assert config.cpu_device_mode == "individual"
    assert config.group_by == "socket"
    assert config.reserved == CpuSet([0, 1])
    assert config.publish_node_allocatable_resource_mapping


@pytest.mark.parametrize("flag", ["--group-by", "--cpu-device-group-by"])
def test_both_spellings_of_the_grouping_flag(flag: str):
    assert _load(flag, "machine").group_by == "machine"


def test_the_readmes_flags():
    config = _load("--cpu-device-mode=individual", "--reserved-cpus=0,64", "--expose-pcie-roots")
    assert config.cpu_device_mode == "individual"
    assert config.reserved == CpuSet([0, 64])
    assert config.expose_pcie_roots


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"reservedCpus": "0"}, "did you mean 'reservedCPUs'"),
        ({"reservedCPUs": 0}, "quote it"),
        ({"reservedCPUs": "0-"}, "reservedCPUs is not a valid list of CPUs"),
        ({"apiVersion": "v2"}, "apiVersion"),
        ({"cpuDeviceMode": "grouped "}, "cpuDeviceMode"),
        ({"minSharedCPUs": -1}, "minSharedCPUs must be between 0 and 8192"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, document: dict[str, Any], text: str):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigurationError, match=text):
        _load("--config", str(file))


def test_a_misspelt_flag_value_is_named():
    with pytest.raises(ConfigurationError, match="did you mean 'individual'"):
        _load("--cpu-device-mode", "indivdual")


def test_the_schema_knows_every_key_and_rejects_others():
    schema = configuration.schema(CpuConfig)
    assert schema["additionalProperties"] is False
    keys = {field.encode_name for field in msgspec.structs.fields(CpuConfig)}
    assert set(schema["properties"]) == keys
    assert {"reservedCPUs", "minSharedCPUs", "exposePCIeRoots", "holdBackShared"} <= keys
