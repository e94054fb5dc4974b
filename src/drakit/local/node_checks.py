"""Checks of this node for a driver, as ``drakit doctor`` reports them; nothing is changed.

The container runtime, the cgroup driver and SELinux are checked by their files only. A check that finds
none of its files reports nothing: in the driver's pod most of them are not mounted.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from drakit.core.cpuset import CpuSet, CpuSetError
from drakit.core.text import count
from drakit.drivers.cpumem.preflight import failed, noted, pods_cgroup
from drakit.drivers.cpumem.qos.kubeletconfig import KubeletFiles
from drakit.drivers.models.cpu_settings import CpuSettings
from drakit.drivers.models.node_driver import NodeDriver
from drakit.kit.config.options import HostOptions
from drakit.kit.preflight import CheckResult, findings
from drakit.local.node_programs import NodeProgram
from drakit.wire.nri.versions import capabilities_of

_CRIO_SOCKET: Final = "var/run/crio/crio.sock"
_CRIO_FILE: Final = "etc/crio/crio.conf"
_CRIO_DIRECTORY: Final = "etc/crio/crio.conf.d"
_CRIO_VERSION: Final = "var/run/crio/version"
_CDI_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
_LARGEST_FILE: Final = 1 << 20
_DOMAIN: Final = re.compile(r"[^:\s]+:[^:\s]+:([^:\s]+)(?::|\s|\0|$)")
_UNCONFINED: Final = ("spc_t", "unconfined_t", "unconfined_service_t")


def check_node(
    program: NodeProgram,
    config: CpuSettings,
    node: str,
    kubelet_config: str | None = None,
    pid: int | None = None,
) -> Iterator[CheckResult]:
    """Yield the results of all checks, quick ones first; *pid* is that of a running driver."""
    try:
        driver = program.driver(config, kubelet_config)
    except OSError as error:
        yield failed("driver", str(error), "run as root, or as the driver's user")
        return
    yield from _about_machine(driver)
    yield from program.checks(config, kubelet_config)
    yield from _about_reserved_cpus(config, KubeletFiles.of(config, kubelet_config))
    yield from about_runtime(config, pid)
    yield from findings(lambda: driver, config, node)


def _about_machine(driver: NodeDriver) -> Iterator[CheckResult]:
    """Check the CPUs, the settings for them, and the kernel's topology files."""
    cpus = driver.cpus
    machine = cpus.machine
    if not machine.cpus:
        yield failed("machine", "no CPU found", "set sysfsRoot to the directory of sys/ and proc/")
        return
    yield CheckResult(
        "machine",
        f"CPUs {machine.online} online, {cpus.reserved or 'none'} reserved, "
        f"{cpus.offered or 'none'} offered, {count(len(machine.numa_nodes), 'NUMA node')}",
    )
    for warning in dict.fromkeys((*cpus.warnings, *driver.warnings)):
        if warning in cpus.warnings and not cpus.offered:
            yield failed("configuration", warning, "change the setting")
        else:
            yield noted("configuration", warning, "change the setting")
    for inconsistency in machine.warnings:
        yield noted("machine", f"{inconsistency.file}: {inconsistency.reason}")


def _about_reserved_cpus(config: CpuSettings, files: KubeletFiles) -> Iterator[CheckResult]:
    """Check that the kubelet reserves the same CPUs, if its configuration can be read."""
    kubelet, _ = files.read_or_reason()
    reserved = (kubelet and kubelet.reserved_system_cpus) or ""
    try:
        same = CpuSet.parse(reserved) == config.reserved
    except CpuSetError:
        same = False
    if reserved and not same:
        yield noted(
            "kubelet",
            f"reservedSystemCPUs is {reserved}, the driver's reservedCPUs {config.reserved_cpus or 'empty'}",
            "set both to the same list: without its CPU manager the kubelet only counts them",
        )


def about_runtime(config: HostOptions, pid: int | None = None) -> Iterator[CheckResult]:
    """Check CRI-O, the cgroup driver and SELinux by the files below ``sysfsRoot``."""
    yield from about_crio(config)
    yield from about_cgroup_driver(config)
    yield from about_selinux(config, pid)


@dataclass(frozen=True, slots=True)
class Crio:
    """Settings of CRI-O; the release is empty if it is not known."""

    release: str = ""
    nri: bool = True
    nri_socket: str = "/var/run/nri/nri.sock"
    cgroup_manager: str = "systemd"
    cdi_directories: tuple[str, ...] = _CDI_DIRECTORIES
    unreadable: tuple[str, ...] = ()
    """Files that could not be read, with the reason."""


def read_crio(root: str) -> Crio | None:
    """Read the settings of CRI-O on the machine below *root*; None if it has no CRI-O."""
    directory = os.path.join(root, _CRIO_DIRECTORY)
    signs = (_CRIO_SOCKET, _CRIO_FILE, _CRIO_DIRECTORY, _CRIO_VERSION)
    if not any(os.path.exists(os.path.join(root, each)) for each in signs):
        return None
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    tables: dict[str, dict[str, Any]] = {}
    unreadable = []
    for path in (os.path.join(root, _CRIO_FILE), *(os.path.join(directory, n) for n in names)):
        if not os.path.isfile(path):
            continue
        try:
            for name, table in _tables(path).items():
                tables.setdefault(name, {}).update(table)
        except (OSError, ValueError) as error:
            unreadable.append(f"{path}: {error}")
    nri, runtime = tables.get("nri", {}), tables.get("runtime", {})
    release = re.search(r"\d+\.\d+(\.\d+)?", _text(os.path.join(root, _CRIO_VERSION)))
    default = Crio()
    directories = runtime.get("cdi_spec_dirs")
    return Crio(
        release=release[0] if release else "",
        nri=nri.get("enable_nri") is not False,
        nri_socket=str(nri.get("nri_listen") or default.nri_socket),
        cgroup_manager=str(runtime.get("cgroup_manager") or default.cgroup_manager),
        cdi_directories=tuple(map(str, directories)) if directories else _CDI_DIRECTORIES,
        unreadable=tuple(unreadable),
    )


def _tables(path: str) -> dict[str, dict[str, Any]]:
    """Return the tables below ``crio`` in a file. Raises ``OSError`` or ``ValueError``."""
    with open(path, "rb") as file:
        text = file.read(_LARGEST_FILE).decode()
    crio = tomllib.loads(text).get("crio", {})
    inner = crio.items() if isinstance(crio, dict) else ()
    return {name: table for name, table in inner if isinstance(table, dict)}


def about_crio(config: HostOptions) -> Iterator[CheckResult]:
    """Check that CRI-O, if it is installed, meets the driver's requirements."""
    crio = read_crio(config.sysfs_root)
    if crio is None:
        return
    yield CheckResult(
        "runtime", f"CRI-O {crio.release or 'of unknown release'}, cgroup_manager {crio.cgroup_manager}"
    )
    for error in crio.unreadable:
        yield noted("runtime", f"cannot read {error}", "correct the file, or run as root")
    if config.nri == "off":
        return
    if not crio.nri:
        yield failed(
            "runtime",
            "enable_nri is false in CRI-O's configuration: containers cannot be pinned",
            "set enable_nri = true in [crio.nri], then restart CRI-O",
        )
        return
    if _real(crio.nri_socket) != _real(config.nri_socket):
        yield noted(
            "runtime",
            f"CRI-O's nri_listen is {crio.nri_socket}, the driver's nriSocket {config.nri_socket}",
            "set both to the same path",
        )
    if _real(config.cdi_dir) not in map(_real, crio.cdi_directories):
        yield failed(
            "runtime",
            f"CRI-O reads CDI specs in {', '.join(crio.cdi_directories)}, not in {config.cdi_dir}",
            "add it to cdi_spec_dirs in [crio.runtime], or set cdiDir to one of these",
        )
    yield from _about_updates(crio, config)


def _about_updates(crio: Crio, config: HostOptions) -> Iterator[CheckResult]:
    """Report if this release of CRI-O does not accept updates that it did not ask for."""
    version, features = capabilities_of("cri-o", crio.release)
    if features.unsolicited_updates:
        return
    verified = bool(config.cgroup_root and config.verify_seconds)
    instead = (
        f"they are applied by direct cgroup writes (within {config.verify_seconds:g} s) and with the "
        "next event"
        if verified
        else "they are applied with the next event only, because cgroups are not verified"
    )
    yield noted(
        "runtime",
        f"updates of running containers cannot be pushed to this CRI-O (NRI {version}, 0.12.1 is needed); "
        f"{instead}",
        "no action needed: cgroupRoot must stay writable for the driver"
        if verified
        else "set cgroupRoot and verifySeconds",
    )


def about_cgroup_driver(config: HostOptions) -> Iterator[CheckResult]:
    """Report which program creates the pods' cgroups: the kubelet and the runtime, or systemd."""
    pods = pods_cgroup(config.cgroup_root) if config.cgroup_root else None
    if pods is None:
        return
    init = _text(os.path.join(config.sysfs_root, "proc/1/comm")).strip()
    name = os.path.basename(pods)
    if not name.endswith(".slice"):
        if init == "systemd":
            yield noted(
                "cgroups",
                f"the kubelet's cgroup driver is cgroupfs ({pods}), but systemd is PID 1: two programs "
                "manage one tree",
                "set cgroupDriver: systemd for the kubelet and the same for the runtime",
            )
        else:
            yield CheckResult("cgroups", f"the kubelet's cgroup driver is cgroupfs ({pods})")
        return
    if config.verify_seconds:
        yield CheckResult(
            "cgroups",
            f"the kubelet's cgroup driver is systemd ({pods}); files that systemd resets are restored "
            f"within {config.verify_seconds:g} s",
        )
    else:
        yield noted(
            "cgroups",
            f"the kubelet's cgroup driver is systemd ({pods}), which resets files of containers on "
            "daemon-reload and set-property; they are not restored",
            "set verifySeconds, for example to 30",
        )


def about_selinux(config: HostOptions, pid: int | None = None) -> Iterator[CheckResult]:
    """Check that SELinux allows the driver to use the runtime's socket and to write cgroups."""
    enforce = _text(os.path.join(config.sysfs_root, "sys/fs/selinux/enforce")).strip()
    process = "self" if pid is None else str(pid)
    context = _text(os.path.join(config.sysfs_root, "proc", process, "attr/current"))
    found = _DOMAIN.match(context)
    domain = found[1] if found else ""
    confined = domain.startswith(("container_", "svirt_"))
    if enforce == "0" or (enforce != "1" and not confined):
        return
    remedy = "give the driver's container seLinuxOptions with type spc_t (chart: seLinuxOptions)"
    if confined:
        yield noted(
            "SELinux",
            f"the driver runs as {domain}: SELinux normally denies it the NRI socket, CDI specs and cgroups",
            remedy,
        )
    elif domain in _UNCONFINED[:1] or (pid is not None and domain in _UNCONFINED):
        yield CheckResult("SELinux", f"enforcing; the driver runs as {domain}")
    else:
        yield noted("SELinux", "enforcing: a driver in a confined container cannot work", remedy)


def _text(path: str) -> str:
    """Return the content of a small file; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(4096).decode("utf-8", "replace")
    except OSError:
        return ""


def _real(path: str) -> str:
    """Normalize a path; /var/run is a link to /run."""
    path = os.path.normpath(path)
    return path.removeprefix("/var") if path.startswith("/var/run/") else path
