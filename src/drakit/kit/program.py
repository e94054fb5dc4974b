"""The command of a driver: command line, configuration, and the host it runs.

All drivers' commands have the same options. Without one a driver serves until it is stopped; ``--dry-run``
prints the ResourceSlices, ``--check`` checks that the node meets the requirements, and
``--print-schema`` prints the JSON schema of the configuration file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from drakit import __version__
from drakit.core.log import get_logger
from drakit.core.objects import to_builtins
from drakit.kit.claims.checkpoint import read_claims
from drakit.kit.claims.exclusion import exclude_other_drivers
from drakit.kit.config import settings as configuration
from drakit.kit.config.options import HostOptions, node_name
from drakit.kit.config.settings import ConfigurationError, Loaded
from drakit.kit.driver import Driver
from drakit.kit.preflight import CheckResult, run_checks
from drakit.kit.reconciler import MakeReconciler
from drakit.kit.telemetry import logs, watchdog

C = TypeVar("C", bound=HostOptions)
log = get_logger(__name__)
_OPEN_FILES: Final = 65536
"""The wanted limit of open files, if the node allows it."""


@dataclass(frozen=True)
class Program(Generic[C]):
    """A driver's command: its names, configuration, discovery, reconciler, metrics and checks."""

    name: str
    prefix: str
    description: str
    config: type[C]
    discover: Callable[[C, str], Driver]
    """From configuration and node name to the driver; reads the machine and writes nothing."""
    reconciler: MakeReconciler | None = None
    gauges: Any = None
    """``(driver, prepared_claims) -> gauges`` for ``/metrics``: the driver's own metrics."""
    driver: str = ""
    """The DRA driver's name; required with *reconciler* or *conflicts_with*."""
    conflicts_with: Callable[[C], Sequence[str]] = lambda config: ()
    """By configuration: the drivers of the same resources, which must not run on the same node."""
    checks: Callable[[C], Iterable[CheckResult]] = lambda config: ()


def main(program: Program[C], argv: Sequence[str] | None = None) -> int:
    """Run *program* with the given arguments (the process's by default); returns the exit code.

    0 after a normal stop, 1 after an error, 2 for an invalid configuration.
    """
    arguments = sys.argv[1:] if argv is None else argv
    try:
        loaded = configuration.load(
            program.config, _parser(program), arguments, os.environ, prefix=program.prefix
        )
        if loaded.arguments.print_schema:
            schema = msgspec.json.encode(configuration.schema(program.config))
            print(msgspec.json.format(schema, indent=2).decode(), flush=True)
            return 0
        node = node_name(loaded.config, os.environ)
        logs.configure(loaded.config.log_format, loaded.config.log_level)
        code = _act(program, loaded, node)
        sys.stdout.flush()
        return code
    except ConfigurationError as error:
        return configuration.fail(program.name, error)
    except BrokenPipeError:  # `--check | head`: the interpreter flushes again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except (OSError, ValueError) as error:
        print(f"{program.name}: {error}", file=sys.stderr)
        return 1


def _act(program: Program[C], loaded: Loaded[C], node: str) -> int:
    config = loaded.config

    def discover() -> Driver:
        return program.discover(config, node)

    if loaded.arguments.dry_run:
        print(_slices_yaml(discover(), node), end="")
        return 0
    if loaded.arguments.check:
        return run_checks(discover, config, node, program.checks(config))
    if program.reconciler is not None and loaded.arguments.restore:
        asyncio.run(program.reconciler(config, node).restore())
        return 0
    _log_configuration(program, loaded, node)
    return asyncio.run(_serve(program, config, node, discover))


async def _serve(program: Program[C], config: C, node: str, discover: Callable[[], Driver]) -> int:
    from drakit.kit.host import Host
    from drakit.wire.kube import Client, KubeError, find_cluster

    _raise_open_files()
    try:
        cluster = find_cluster(kubeconfig=config.kubeconfig or None)
    except KubeError as error:
        raise ConfigurationError(str(error)) from error
    client = Client(cluster, component=program.name)
    with exclude_other_drivers(config, program.driver, program.conflicts_with(config)):
        reconciler = None
        if program.reconciler is not None:
            reconciler = program.reconciler(config, node)
            await reconciler.establish(read_claims(config.checkpoint_dir(program.driver)))
        host = Host(discover, config, node=node, client=client, gauges=program.gauges, reconciler=reconciler)
        watching = asyncio.create_task(watchdog.watch())
        try:
            await host.run()
        finally:
            watching.cancel()
    return 0


def _allow_open_files(limits: tuple[int, int]) -> int:
    """The soft limit of open files for a process with these (soft, hard) limits."""
    soft, hard = limits
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    return soft if soft == resource.RLIM_INFINITY else max(soft, wanted)


def _raise_open_files() -> None:
    """Raise the soft limit, as a connection is a file; 1024 only protects programs that use ``select``."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_allow_open_files(limits), limits[1]))


def _parser(program: Program[Any]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program.name,
        description=program.description,
        epilog="Precedence (lowest to highest): default, configuration file, environment, flag.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{program.name} {__version__}")
    parser.add_argument("--dry-run", action="store_true", help="print the ResourceSlices as YAML and exit")
    parser.add_argument(
        "--check", action="store_true", help="check that this node meets the driver's requirements, and exit"
    )
    parser.add_argument(
        "--print-schema", action="store_true", help="print the configuration's JSON schema and exit"
    )
    if program.reconciler is not None:
        parser.add_argument(
            "--restore",
            action="store_true",
            help="restore what the driver changed on this node, and exit; before uninstalling",
        )
    return parser


def _slices_yaml(driver: Driver, node: str) -> str:
    import yaml

    from drakit.kit.slices.preview import preview_slices

    documents = [to_builtins(each) for each in preview_slices(driver, node)]
    return yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True)


def _log_configuration(program: Program[C], loaded: Loaded[C], node: str) -> None:
    log.info("starting", program=program.name, version=__version__, node=node)
    for key, source in loaded.sources.items():
        value = msgspec.to_builtins(loaded.config).get(key, "default")
        log.info("setting", key=key, value=value, source=source)
