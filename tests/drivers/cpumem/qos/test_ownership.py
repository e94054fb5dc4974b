"""Who writes which memory file, by the kubelet's configuration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drakit.drivers.cpumem.qos.kubeletconfig import KubeletConfig, KubeletFiles, parse
from drakit.drivers.cpumem.qos.ownership import OwnershipReader, allocatable_memory, decide
from drakit.drivers.cpumem.qos.planner import ContainerFacts, PodFacts, QosPlan, plan
from drakit.drivers.models.memory_policy import Knob, MemoryQosPolicy
from tests.drivers.cpumem.qos.pods import GI, MI, B, place, share

PROTECTION, THROTTLING, HUGEPAGES = Knob.PROTECTION, Knob.THROTTLING, Knob.HUGEPAGES


def kubelet(**fields: Any) -> KubeletConfig:
    return parse(fields, "test")


@pytest.mark.parametrize(
    ("fields", "mapped", "kubelets"),
    [
        ({}, False, set()),
        ({"memoryReservationPolicy": "None"}, False, set()),
        ({"memoryReservationPolicy": "TieredReservation"}, False, {PROTECTION}),
        ({"memoryThrottlingFactor": 0.9}, False, {THROTTLING}),
        ({"memoryThrottlingFactor": None}, False, set()),
        ({"memoryThrottlingFactor": 0.9, "featureGates": {"MemoryQoS": False}}, False, set()),
        ({}, True, set()),
        ({"featureGates": {"DRANodeAllocatableResources": True}}, False, set()),
        ({"featureGates": {"DRANodeAllocatableResources": True}}, True, {HUGEPAGES}),
        ({"featureGates": {"DRANodeAllocatableResources": False}}, True, set()),
        ({"featureGates": {"AllAlpha": True}}, True, {HUGEPAGES}),
    ],
)
def test_vector_13_the_driver_yields_what_the_kubelet_writes(
    fields: dict[str, Any], mapped: bool, kubelets: set[Knob]
) -> None:
    ownership = decide(kubelet(**fields), mapped=mapped)
    assert ownership.kubelets == kubelets
    assert len(ownership.reasons) == len(kubelets)


def test_vector_13_a_tiered_kubelet_leaves_nothing_to_protect() -> None:
    claim = share("c", 256 * MI, {"2MB": 4 * MI})
    container = ContainerFacts((claim,), request=GI, limit=2 * GI, path="kubepods/c")
    pods = [PodFacts(place("1", B), (claim,), (container,), request=GI)]
    tiered = decide(
        kubelet(memoryReservationPolicy="TieredReservation", memoryThrottlingFactor=0.9), mapped=False
    )
    policy = MemoryQosPolicy(mode="all", throttling_factor=0.8, page_limits=False)
    yielding = MemoryQosPolicy(mode="all", throttling_factor=0.8, page_limits=False, kubelets=tiered.kubelets)
    assert plan(yielding, pods) == QosPlan()
    assert plan(policy, pods) != QosPlan()
    assert any("TieredReservation" in reason for reason in tiered.reasons)


def test_without_its_configuration_mapped_pages_are_left_to_the_kubelet() -> None:
    assert decide(None, mapped=False).kubelets == frozenset()
    assert decide(None, mapped=True).kubelets == {HUGEPAGES}


def test_the_memory_manager_is_a_conflict() -> None:
    assert decide(kubelet(memoryManagerPolicy="None"), mapped=False).conflicts == ()
    (conflict,) = decide(kubelet(memoryManagerPolicy="Static"), mapped=False).conflicts
    assert "cpuset.mems" in conflict


@pytest.mark.parametrize(
    ("fields", "allocatable"),
    [
        ({}, 64 * GI - 2 * GI - 100 * MI),
        ({"evictionHard": {}}, 62 * GI),
        ({"evictionHard": {"memory.available": "1Gi"}, "kubeReserved": {"memory": "1Gi"}}, 60 * GI),
        ({"evictionHard": {"memory.available": "25%"}}, 46 * GI),
        ({"evictionHard": {"memory.available": "lots"}}, 62 * GI),
        ({"evictionHard": {}, "systemReserved": {"memory": "100Gi"}}, 0),
    ],
)
def test_allocatable_memory_as_the_kubelet_computes_it(fields: dict[str, Any], allocatable: int) -> None:
    assert allocatable_memory(kubelet(**fields), 64 * GI, 2 * GI) == allocatable


def test_the_file_is_read_again_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    reader = OwnershipReader(KubeletFiles(str(path)))
    assert reader.read().kubelets == frozenset()
    assert "there is no" in reader.remarks()[0]
    path.write_text("memoryReservationPolicy: TieredReservation\n")
    assert reader.read().kubelets == {PROTECTION}
    assert reader.problem is None
    path.write_text("memoryReservationPolicy: [broken\n")
    assert reader.read().kubelets == {PROTECTION}  # as it was
    assert "cannot be read" in reader.remarks()[0]
    path.write_text("memoryReservationPolicy: None\n")
    assert reader.read().kubelets == frozenset()
    assert reader.remarks() == ()


def test_drop_ins_are_read_again_when_they_changed(tmp_path: Path) -> None:
    drop_ins = tmp_path / "conf.d"
    reader = OwnershipReader(KubeletFiles(str(tmp_path / "config.yaml"), str(drop_ins)))
    assert reader.read().kubelets == frozenset()
    drop_ins.mkdir()
    (drop_ins / "1.conf").write_text("memoryThrottlingFactor: 0.9\n")
    assert reader.read().kubelets == {THROTTLING}
    assert reader.problem is None  # though there is no file
    (drop_ins / "2.conf").write_text("featureGates: {MemoryQoS: false}\n")
    assert reader.read().kubelets == frozenset()
    (drop_ins / "2.conf").write_text("featureGates: [broken\n")
    assert reader.read().kubelets == frozenset()  # as it was
    assert "2.conf cannot be read" in reader.remarks()[0]
    (drop_ins / "2.conf").unlink()
    assert reader.read().kubelets == {THROTTLING}


def test_yaml_is_not_loaded_before_it_is_needed() -> None:
    code = (
        "import sys; import drakit.drivers.cpumem.qos.reconciler, drakit.drivers.cpumem.qos.ownership;"
        "sys.exit('yaml' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
