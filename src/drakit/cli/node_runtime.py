"""What the container runtime, the cgroup driver and SELinux of a node allow, from files alone.

For ``drakit doctor``. Nothing is asked of the runtime or of the cluster, so a check that finds none of
the files it needs reports nothing: in the driver's pod most of them are not mounted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from drakit.drivers.cpumem.preflight import pods_cgroup
from drakit.kit.config.options import HostOptions
from drakit.kit.preflight import CheckResult
from drakit.wire.nri.versions import capabilities_of

_CRIO_SOCKET: Final = "var/run/crio/crio.sock"
_CRIO_FILE: Final = "etc/crio/crio.conf"
_CRIO_DIRECTORY: Final = "etc/crio/crio.conf.d"
_CRIO_VERSION: Final = "var/run/crio/version"
_CDI_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
_LARGEST_FILE: Final = 1 << 20
_DOMAIN: Final = re.compile(r"[^:\s]+:[^:\s]+:([^:\s]+)(?::|\s|\0|$)")
_UNCONFINED: Final = ("spc_t", "unconfined_t", "unconfined_service_t")


def about_node(config: HostOptions, pid: int | None = None) -> Iterator[CheckResult]:
    """All findings, for the node whose files are below ``sysfsRoot``; *pid* is a running driver."""
    yield from about_crio(config)
    yield from about_cgroup_driver(config)
    yield from about_selinux(config, pid)


# -- CRI-O -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crio:
    """CRI-O as its files describe it."""

    release: str = ""
    """Empty when it is not known."""
    nri: bool = True
    nri_socket: str = "/var/run/nri/nri.sock"
    cgroup_manager: str = "systemd"
    cdi_directories: tuple[str, ...] = _CDI_DIRECTORIES
    unreadable: tuple[str, ...] = field(default=())
    """Files that are there and could not be read, with the reason."""


def read_crio(root: str) -> Crio | None:
    """CRI-O of the machine below *root*; None when there is no sign of it."""
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
    default = Crio()
    directories = runtime.get("cdi_spec_dirs")
    return Crio(
        release=_release(os.path.join(root, _CRIO_VERSION)),
        nri=nri.get("enable_nri") is not False,
        nri_socket=str(nri.get("nri_listen") or default.nri_socket),
        cgroup_manager=str(runtime.get("cgroup_manager") or default.cgroup_manager),
        cdi_directories=tuple(map(str, directories)) if directories else _CDI_DIRECTORIES,
        unreadable=tuple(unreadable),
    )


def _tables(path: str) -> dict[str, dict[str, Any]]:
    """The tables below ``crio`` in one of its files; raises ``OSError`` or ``ValueError``."""
    import tomllib

    with open(path, "rb") as file:
        text = file.read(_LARGEST_FILE).decode()
    crio = tomllib.loads(text).get("crio", {})
    inner = crio.items() if isinstance(crio, dict) else ()
    return {name: table for name, table in inner if isinstance(table, dict)}


def _release(path: str) -> str:
    """The release in CRI-O's version file, as ``1.36.3``; empty when it is not known."""
    found = re.search(r"\d+\.\d+(\.\d+)?", _text(path))
    return found[0] if found else ""


def about_crio(config: HostOptions) -> Iterator[CheckResult]:
    """Whether CRI-O, where it is installed, offers what the driver needs."""
    crio = read_crio(config.sysfs_root)
    if crio is None:
        return
    yield CheckResult(
        "runtime",
        f"CRI-O {crio.release or 'of unknown release'}, cgroup_manager {crio.cgroup_manager}",
    )
    for problem in crio.unreadable:
        yield _note("runtime", f"cannot read {problem}", "correct the file, or run as root")
    if config.nri == "off":
        return
    if not crio.nri:
        yield CheckResult(
            "runtime",
            "",
            "enable_nri is false in CRI-O's configuration: containers cannot be pinned",
            "set enable_nri = true in [crio.nri], then restart CRI-O",
        )
        return
    if _real(crio.nri_socket) != _real(config.nri_socket):
        yield _note(
            "runtime",
            f"CRI-O's nri_listen is {crio.nri_socket}, the driver's nriSocket {config.nri_socket}",
            "give both the same path",
        )
    if _real(config.cdi_dir) not in map(_real, crio.cdi_directories):
        yield CheckResult(
            "runtime",
            "",
            f"CRI-O reads CDI specs in {', '.join(crio.cdi_directories)}, not in {config.cdi_dir}",
            "add it to cdi_spec_dirs in [crio.runtime], or set cdiDir to one of these",
        )
    yield from what_crio_cannot(crio, config)


def what_crio_cannot(crio: Crio, config: HostOptions) -> Iterator[CheckResult]:
    """What this release of CRI-O does not do, and what the driver does instead.

    Which releases that are is in the table the driver itself uses; an unknown one cannot do it.
    """
    version, features = capabilities_of("cri-o", crio.release)
    if features.unsolicited_updates:
        return
    compared = bool(config.cgroup_root and config.verify_seconds)
    instead = (
        f"they are applied through direct cgroup writes (within {config.verify_seconds:g} s) and with "
        "the next event"
        if compared
        else "they are applied with the next event only, because cgroups are not compared"
    )
    yield _note(
        "runtime",
        f"updates of running containers cannot be pushed to this CRI-O (NRI {version}, 0.12.1 is needed); "
        f"{instead}",
        "nothing to do: cgroupRoot must stay writable for the driver"
        if compared
        else "set cgroupRoot and verifySeconds",
    )


# -- cgroups -----------------------------------------------------------------------------------------


def about_cgroup_driver(config: HostOptions) -> Iterator[CheckResult]:
    """Which program makes the pods' cgroups: the kubelet and the runtime, or systemd for them."""
    pods = pods_cgroup(config.cgroup_root) if config.cgroup_root else None
    if pods is None:
        return
    init = _text(os.path.join(config.sysfs_root, "proc/1/comm")).strip()
    name = os.path.basename(pods)
    if not name.endswith(".slice"):
        if init == "systemd":
            yield _note(
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
            f"the kubelet's cgroup driver is systemd ({pods}); what systemd resets is put back within "
            f"{config.verify_seconds:g} s",
        )
    else:
        yield _note(
            "cgroups",
            f"the kubelet's cgroup driver is systemd ({pods}), which resets files of containers on "
            "daemon-reload and set-property; nothing puts them back",
            "set verifySeconds, for example to 30",
        )


# -- SELinux -----------------------------------------------------------------------------------------


def about_selinux(config: HostOptions, pid: int | None = None) -> Iterator[CheckResult]:
    """Whether SELinux lets the driver's container reach the runtime's socket and write cgroups."""
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
        yield _note(
            "SELinux",
            f"the driver runs as {domain}: SELinux normally denies it the NRI socket, CDI specs and "
            "cgroups",
            remedy,
        )
    elif domain in _UNCONFINED[:1] or (pid is not None and domain in _UNCONFINED):
        yield CheckResult("SELinux", f"enforcing; the driver runs as {domain}")
    else:
        yield _note("SELinux", "enforcing: a driver in an ordinary container cannot work", remedy)


# -- files -------------------------------------------------------------------------------------------


def _note(subject: str, text: str, remedy: str) -> CheckResult:
    return CheckResult(subject, "", note=text, remedy=remedy)


def _text(path: str) -> str:
    """A small file's content; empty when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(4096).decode("utf-8", "replace")
    except OSError:
        return ""


def _real(path: str) -> str:
    """A path without the spelling /var/run, which is a link to /run."""
    path = os.path.normpath(path)
    return path.removeprefix("/var") if path.startswith("/var/run/") else path
