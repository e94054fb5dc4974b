"""Every set of CPUs that the kernel writes twice, as list and as mask, is read from the sound one."""

from __future__ import annotations

import glob
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.cpuset import CpuSet
from drakit.machine import discover
from drakit.machine.model import Machine
from drakit.testing.synthetic import build
from drakit.testing.sysfs_writer import write_tree
from tests.machine import invariants
from tests.machine.places import scratch
from tests.machine.shapes import arm_big_little
from tests.machine.strategies import machines

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
DAMAGE = ("own CPU missing", "garbage", "empty", "absent")


def pairs(root: str) -> list[tuple[str, str, int | None]]:
    """All files that exist in two spellings: list, mask, and the CPU whose directory they are in."""
    found: list[tuple[str, str, int | None]] = []
    for path in sorted(glob.glob(f"{root}/{CPU}/cpu[0-9]*")):
        cpu = int(path.rpartition("/cpu")[2])
        files = sorted(glob.glob(f"{path}/topology/*_list"))
        found += [(each, each.removesuffix("_list"), cpu) for each in files]
        files = sorted(glob.glob(f"{path}/cache/index*/shared_cpu_list"))
        found += [(each, each.removesuffix("list") + "map", cpu) for each in files]
    files = sorted(glob.glob(f"{root}/{NODE}/node[0-9]*/cpulist"))
    found += [(each, each.removesuffix("list") + "map", None) for each in files]
    files = sorted(glob.glob(f"{root}/sys/devices/pci*/pci_bus/*/cpulistaffinity"))
    found += [(each, each.replace("cpulist", "cpu"), None) for each in files]
    return [pair for pair in found if os.path.exists(pair[0]) and os.path.exists(pair[1])]


def listed(path: str) -> CpuSet:
    """What a file says in its own spelling."""
    with open(path, encoding="ascii") as file:
        text = file.read()
    return CpuSet.parse(text) if _is_list(path) else CpuSet.parse_mask(text.strip())


def _is_list(path: str) -> bool:
    return path.endswith(("list", "cpulistaffinity"))


def damage(path: str, how: str, cpu: int | None, everything: CpuSet) -> None:
    """Spoil one file; of a set without a CPU of its own, the lowest is taken out."""
    os.chmod(path, 0o644)
    if how == "absent":
        os.unlink(path)
        return
    text = {"garbage": "\x7fno cpus\n", "empty": "\n"}.get(how)
    if text is None:
        before = listed(path)
        own = cpu if cpu is not None else before.min() if before else 0
        if "affinity" in path:
            return  # no CPU is known to be one of these
        others = (everything if cpu is not None else before) - CpuSet([own])
        text = f"{others if _is_list(path) else others.to_mask_text()}\n"
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def without_warnings(machine: Machine) -> Machine:
    return replace(machine, warnings=())


@given(machine=machines(), data=st.data())
def test_one_sound_spelling_of_each_file_is_enough(machine: Machine, data: st.DataObject) -> None:
    """Whichever of the two is spoiled, and however: list here, mask there, or none."""
    with scratch() as root:
        write_tree(machine, root)
        expected = discover(root)
        drawn = st.tuples(st.sampled_from(["list", "mask", "none"]), st.sampled_from(DAMAGE))
        for list_path, mask_path, cpu in pairs(root):
            which, how = data.draw(drawn)
            if which != "none":
                damage(list_path if which == "list" else mask_path, how, cpu, machine.online)
        found = discover(root)
        assert without_warnings(found) == without_warnings(expected)
        invariants.check(found)


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("which", ["list", "mask"])
@pytest.mark.parametrize(
    "machine",
    [
        build(sockets=2, dies=2, nodes=2, llcs=2, cores=2, threads=2, cluster_cores=2),
        build(sockets=1, cores=1, threads=1),
        arm_big_little(),
    ],
    ids=["server", "one", "phone"],
)
def test_all_lists_or_all_masks_spoiled(machine: Machine, which: str, how: str) -> None:
    with scratch() as root:
        write_tree(machine, root)
        expected = discover(root)
        for list_path, mask_path, cpu in pairs(root):
            damage(list_path if which == "list" else mask_path, how, cpu, machine.online)
        assert without_warnings(discover(root)) == without_warnings(expected)


def test_an_ignored_list_is_reported_with_the_file_used_instead() -> None:
    with scratch() as root:
        write_tree(build(sockets=2, cores=2, threads=2), root)
        damage(f"{root}/{CPU}/cpu0/cache/index2/shared_cpu_list", DAMAGE[0], 0, CpuSet([0, 1]))
        damage(f"{root}/{CPU}/cpu1/topology/core_cpus_list", DAMAGE[0], 1, CpuSet([0, 1]))
        damage(f"{root}/{NODE}/node1/cpulist", DAMAGE[0], None, CpuSet())
        told = {warning.file: warning.reason for warning in discover(root).warnings}
        assert told == {
            f"/{CPU}/cpu0/cache/index2/shared_cpu_list": "does not contain the CPU itself; "
            "shared_cpu_map is used",
            f"/{CPU}/cpu1/topology/core_cpus_list": "does not contain the CPU itself; core_cpus is used",
            f"/{NODE}/node1/cpulist": "lacks CPUs 2 of cpumap; added",
        }


def test_without_a_second_source_the_cache_is_the_cores_with_a_warning() -> None:
    with scratch() as root:
        write_tree(build(sockets=1, cores=2, threads=2), root)
        for index in range(4):
            place = f"{root}/{CPU}/cpu0/cache/index{index}"
            damage(f"{place}/shared_cpu_list", DAMAGE[0], 0, CpuSet([1, 3]))
            damage(f"{place}/shared_cpu_map", DAMAGE[0], 0, CpuSet([1, 3]))
        machine = discover(root)
        invariants.check(machine)
        reasons = {w.reason for w in machine.warnings if "/cpu0/cache/index" in w.file}
        assert reasons == {"does not list its own CPU; taken as the core's own"}


# -- dumps of real machines ------------------------------------------------------------------------

DUMPS = Path(os.environ.get("DRAKIT_SYSFS_DUMPS") or Path(__file__).parents[3] / "shared" / "sysfs")
ARCHIVES = sorted(DUMPS.glob("*.tar.bz2")) if DUMPS.is_dir() else []


@pytest.mark.skipif(
    not ARCHIVES, reason="no dumps of machines: set DRAKIT_SYSFS_DUMPS to a directory of them"
)
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.bz2"))
def test_real_machines_need_one_spelling_only(archive: Path) -> None:
    with scratch() as directory:
        subprocess.run(["tar", "--extract", "--file", str(archive)], cwd=directory, check=True)
        (root,) = (entry.path for entry in os.scandir(directory) if entry.is_dir())
        expected = discover(root)
        for list_path, mask_path, cpu in pairs(root):
            if listed(list_path) == listed(mask_path):  # one dump was edited by hand, masks only
                damage(list_path, DAMAGE[0] if cpu is not None else "garbage", cpu, expected.online)
        assert without_warnings(discover(root)) == without_warnings(expected)
