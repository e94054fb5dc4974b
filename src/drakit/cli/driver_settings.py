"""A driver's own settings as options of a command that looks after it.

``drakit doctor``, ``drakit gather`` and ``drakit verify`` must see what the driver sees. They read the
same file, flags and variables, and with ``--pid`` the arguments of a driver that runs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from drakit.cli.checkpoint_view import look
from drakit.cli.errors import Problem
from drakit.drivers.cpu.config import CpuConfig, CpuSettings
from drakit.drivers.cpu.driver import cpu_driver
from drakit.drivers.cpu.program import PROGRAM as CPU
from drakit.drivers.cpumem.driver import cpumem_driver
from drakit.drivers.cpumem.hugepages.configured import machine_and_growth
from drakit.drivers.cpumem.kinds import DRIVER as CPUMEM_NAME
from drakit.drivers.cpumem.others import held_by_others
from drakit.drivers.cpumem.program import PROGRAM as CPUMEM
from drakit.drivers.cpumem.settings import CpuMemConfig
from drakit.drivers.models.node_driver import NodeDriver
from drakit.kit.config.options import listen_address, node_name
from drakit.kit.config.settings import ConfigurationError, add_flags, resolve, settings_of
from drakit.kit.program import Program
from drakit.machine.discover import discover

PROGRAMS: Final[dict[str, Program[Any]]] = {"cpu": CPU, "cpumem": CPUMEM}
_PATIENCE: Final = 5.0
_LARGEST_PAGE: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """Which driver, how it is configured, where each given setting came from, the node."""

    program: Program[Any]
    config: CpuSettings
    sources: Mapping[str, str]
    node: str

    def driver(self) -> NodeDriver:
        """The driver for the machine as it is now. Raises ``OSError``."""
        config = self.config
        if isinstance(config, CpuMemConfig):
            machine, growth = machine_and_growth(config)
            entries = look(config.checkpoint_dir(CPUMEM_NAME)).entries
            others = held_by_others(machine, entries, config.cgroup_root)
            return cpumem_driver(config, machine, held_by_others=others, growth=growth)
        assert isinstance(config, CpuConfig)
        return cpu_driver(config, discover(config.sysfs_root))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--driver``, ``--pid`` and every setting of the drivers."""
    parser.add_argument(
        "--driver", choices=tuple(PROGRAMS), help="which driver (default: that of --pid, else cpu)"
    )
    parser.add_argument(
        "--pid", type=int, help="take the settings of this running driver (in its pod: --pid 1)"
    )
    add_flags(parser, CpuConfig, prefix=CPU.prefix)
    add_flags(parser, CpuMemConfig, prefix=CPUMEM.prefix, excluding=CpuConfig)


def add_kubelet_config(parser: argparse.ArgumentParser) -> None:
    """Add ``--kubelet-config``, for commands that look at what the kubelet does itself."""
    parser.add_argument(
        "--kubelet-config",
        metavar="FILE",
        help="the kubelet's configuration file (default: config.yaml in its root directory)",
    )


def driver_settings(options: argparse.Namespace, proc: str = "/proc") -> DriverSettings:
    """The settings that *options* mean. Raises :class:`Problem` when they are wrong."""
    program = PROGRAMS[options.driver or "cpu"]
    if options.pid is not None:
        running, arguments = _running(options.pid, proc)
        if options.driver is not None and running is not program:
            raise Problem(
                f"process {options.pid} is a {running.name}, not a {program.name}",
                "leave --driver out",
            )
        program = running
        options = _under(options, program, arguments)
    _reject_others(options, program)
    try:
        loaded = resolve(program.config, options, os.environ, prefix=program.prefix)
        node = node_name(loaded.config, os.environ)
        return DriverSettings(program, loaded.config, loaded.sources, node)
    except ConfigurationError as error:
        raise Problem(str(error), f"`{program.name} --help` lists every setting") from None


def _reject_others(options: argparse.Namespace, program: Program[Any]) -> None:
    """A setting of the other driver that was given is a mistake, not to be passed over."""
    own = {one.field for one in settings_of(program.config, program.prefix)}
    for other in PROGRAMS.values():
        for one in settings_of(other.config, other.prefix):
            if one.field not in own and getattr(options, one.field) is not None:
                raise Problem(
                    f"{one.flags[0]} is no setting of {program.name}",
                    f"it is one of {other.name}: choose the driver with --driver",
                )


def _under(
    options: argparse.Namespace, program: Program[Any], arguments: list[str]
) -> argparse.Namespace:
    """*options* with what they leave open taken from the arguments of a driver."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_flags(parser, program.config, prefix=program.prefix)
    running, _others = parser.parse_known_args(arguments)
    given = {key: value for key, value in vars(options).items() if value is not None}
    return argparse.Namespace(**{**vars(options), **vars(running), **given})


def _running(pid: int, proc: str) -> tuple[Program[Any], list[str]]:
    """Which driver runs as *pid*, and what it was started with."""
    way_out = "give the pid of a running driver; in its own pod that is 1"
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            words = file.read(1 << 20).decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError as error:
        raise Problem(
            f"cannot read the arguments of process {pid}: {error.strerror}", way_out
        ) from None
    names = {program.name: program for program in PROGRAMS.values()}
    for index, word in enumerate(words):
        program = names.get(os.path.basename(word))
        if program is not None:
            return program, words[index + 1 :]
    told = " or ".join(names)
    raise Problem(f"process {pid} is no {told}: {' '.join(words)[:80]}", way_out)


def ask_driver(bind_address: str, path: str) -> tuple[int, str]:
    """A page of the driver that serves *bind_address* on this machine: status and text.

    Raises ``OSError`` when nobody answers, or nobody who speaks HTTP.
    """
    import http.client

    host, port = listen_address(bind_address)
    if host in (None, "0.0.0.0", "::"):
        host = "localhost"
    connection = http.client.HTTPConnection(host or "", port, timeout=_PATIENCE)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(_LARGEST_PAGE).decode("utf-8", "replace")
    except http.client.HTTPException as error:
        raise OSError(f"{bind_address} does not speak HTTP: {error!r}") from error
    finally:
        connection.close()
