"""Options that select a driver and its settings, for commands that inspect a driver's node.

``drakit doctor``, ``drakit gather`` and ``drakit verify`` read the same file, flags and variables as the
driver, and with ``--pid`` the arguments of a running driver.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from drakit.cli.errors import CliError, cli_errors
from drakit.drivers.models.cpu_settings import CpuSettings
from drakit.drivers.models.node_driver import NodeDriver
from drakit.kit.config.options import listen_address, node_name
from drakit.kit.config.settings import ConfigurationError, add_flags, resolve, settings_of
from drakit.kit.preflight import CheckResult
from drakit.kit.program import Program
from drakit.local.node_checks import check_node
from drakit.local.node_programs import NODE_PROGRAMS, NodeProgram

_TIMEOUT_SECONDS: Final = 5.0
_LARGEST_RESPONSE: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """A driver program, its configuration with the source of each setting, and the node name."""

    node_program: NodeProgram
    config: CpuSettings
    sources: Mapping[str, str]
    node: str
    kubelet_config: str | None = None
    pid: int | None = None

    @property
    def program(self) -> Program[Any]:
        """The driver program."""
        return self.node_program.program

    def driver(self) -> NodeDriver:
        """Return the driver for the machine as it is now. Raises ``OSError``."""
        return self.node_program.driver(self.config, self.kubelet_config)

    def checks(self) -> Iterator[CheckResult]:
        """Yield the results of all checks of the node."""
        return check_node(self.node_program, self.config, self.node, self.kubelet_config, self.pid)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--driver``, ``--pid``, ``--kubelet-config`` and every setting of the drivers."""
    parser.add_argument(
        "--driver", choices=tuple(NODE_PROGRAMS), help="driver (default: that of --pid, or cpu)"
    )
    parser.add_argument(
        "--pid", type=int, help="use the settings of this running driver (in its pod: --pid 1)"
    )
    parser.add_argument(
        "--kubelet-config",
        metavar="FILE",
        help="the kubelet's configuration file (default: config.yaml in its root directory)",
    )
    cpu, cpumem = (entry.program for entry in NODE_PROGRAMS.values())
    add_flags(parser, cpu.config, prefix=cpu.prefix)
    title = f"settings of {cpumem.name} only"
    add_flags(parser, cpumem.config, prefix=cpumem.prefix, excluding=cpu.config, title=title)


def driver_settings(options: argparse.Namespace, proc: str = "/proc") -> DriverSettings:
    """Return the settings that *options* select. Raises :class:`CliError` if they are not valid."""
    chosen = NODE_PROGRAMS[options.driver or "cpu"]
    if options.pid is not None:
        running, arguments = _running(options.pid, proc)
        if options.driver is not None and running is not chosen:
            raise CliError(
                f"process {options.pid} is a {running.program.name}, not a {chosen.program.name}",
                "omit --driver",
            )
        chosen = running
        options = _with_arguments(options, chosen.program, arguments)
    program = chosen.program
    _reject_other_settings(options, program)
    with cli_errors(ConfigurationError, f"`{program.name} --help` lists every setting"):
        loaded = resolve(program.config, options, os.environ, prefix=program.prefix)
        node = node_name(loaded.config, os.environ)
    return DriverSettings(chosen, loaded.config, loaded.sources, node, options.kubelet_config, options.pid)


def _reject_other_settings(options: argparse.Namespace, program: Program[Any]) -> None:
    """Raise for a setting that only the other driver has."""
    own = {setting.field for setting in settings_of(program.config, program.prefix)}
    for other, _, _ in NODE_PROGRAMS.values():
        for setting in settings_of(other.config, other.prefix):
            if setting.field not in own and getattr(options, setting.field) is not None:
                raise CliError(
                    f"{setting.flags[0]} is not a setting of {program.name}",
                    f"it is a setting of {other.name}: select the driver with --driver",
                )


def _with_arguments(
    options: argparse.Namespace, program: Program[Any], arguments: list[str]
) -> argparse.Namespace:
    """Complete *options* with the arguments of a running driver."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_flags(parser, program.config, prefix=program.prefix)
    running, _others = parser.parse_known_args(arguments)
    given = {key: value for key, value in vars(options).items() if value is not None}
    return argparse.Namespace(**{**vars(options), **vars(running), **given})


def _running(pid: int, proc: str) -> tuple[NodeProgram, list[str]]:
    """Return the driver that runs as *pid* and its arguments."""
    remedy = "give the PID of a running driver; in its own pod that is 1"
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            words = file.read(1 << 20).decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError as error:
        raise CliError(f"cannot read the arguments of process {pid}: {error.strerror}", remedy) from None
    names = {entry.program.name: entry for entry in NODE_PROGRAMS.values()}
    for index, word in enumerate(words):
        found = names.get(os.path.basename(word))
        if found is not None:
            return found, words[index + 1 :]
    command = " ".join(words)[:80]
    raise CliError(f"process {pid} is not a {' or '.join(names)}: {command}", remedy)


def ask_driver(bind_address: str, path: str) -> tuple[int, str]:
    """Get *path* from the HTTP server of the driver on this machine: status and text.

    Raises ``OSError`` if nothing listens on *bind_address*, or not an HTTP server.
    """
    import http.client

    host, port = listen_address(bind_address)
    if host in (None, "0.0.0.0", "::"):
        host = "localhost"
    connection = http.client.HTTPConnection(host or "", port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(_LARGEST_RESPONSE).decode("utf-8", "replace")
    except http.client.HTTPException as error:
        raise OSError(f"{bind_address} is not an HTTP server: {error!r}") from error
    finally:
        connection.close()
