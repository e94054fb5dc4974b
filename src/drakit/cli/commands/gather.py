"""``drakit gather``: the state of this node and its driver in one file, for a bug report.

Nothing is changed; the checkpoint is only read. A part that cannot be read is replaced by the error.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from drakit import __version__
from drakit.cli.commands.doctor import examine
from drakit.cli.documents import format_document
from drakit.cli.driver_settings import DriverSettings, add_options, ask_driver, driver_settings
from drakit.cli.errors import CliError, cli_errors
from drakit.core.bootrecord import boot_id
from drakit.core.objects import to_builtins
from drakit.drivers.models.cpu_settings import CpuSettings
from drakit.kit.claims.checkpoint_files import checkpoint_files
from drakit.kit.config.settings import settings_of
from drakit.kit.slices.preview import preview_slices
from drakit.machine.document import topology_document
from drakit.wire.cdi.directory import CdiDirectory
from drakit.wire.kube import SLICES, Client, KubeError, Selection, find_cluster

LAYOUT: Final = 1
"""Version of the document; added fields do not change it."""

EXAMPLES: Final = """\
examples:
  drakit gather                              writes ./drakit-gather-<node>-<time>.yaml, mode 0600
  drakit gather --file - --output json       to standard output
  kubectl -n kube-system exec ds/dra-driver-cpu -- drakit gather --pid 1 --file - > report.yaml
  kubectl logs POD | kubectl exec -i POD -- drakit gather --pid 1 --log - --file - > report.yaml

The file contains the machine, the configuration, the claims of this node, the expected and the
published ResourceSlices, CDI specs, the results of `drakit doctor`, and the metrics, readiness and
rejections of a running driver; with --log also its last warnings and errors. It contains names of
claims and namespaces, but no credentials. An existing file is never overwritten.
"""

_WARNING: Final = re.compile(r'^\S+Z (?:WARNING|ERROR) |^\{.*"level":"(?:warning|error)"')
_MOST_LINES: Final = 300
Document = dict[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EXAMPLES
    parser.add_argument("--file", metavar="FILE", help="file to write (- for standard output)")
    parser.add_argument("--output", choices=("yaml", "json"), default="yaml")
    parser.add_argument(
        "--log",
        metavar="FILE",
        help="the driver's log (- for standard input); its last warnings and errors are included",
    )
    add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Collect everything and write it."""
    settings = driver_settings(options)
    document = report(settings)
    if options.log is not None:
        document["log"] = _or_error(lambda: _log_warnings(options.log))
    text = format_document(document, options.output)
    if options.file == "-":
        print(text, end="")
        return 0
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = options.file or f"drakit-gather-{settings.node}-{stamp}.{options.output}"
    _write_new(path, text)
    print(f"wrote {path}", file=sys.stderr)
    return 0


def report(settings: DriverSettings) -> Document:
    """Return the state of this node as plain dictionaries, lists, strings and numbers."""
    config = settings.config
    driver = settings.driver()
    return {
        "layoutVersion": LAYOUT,
        "gathered": {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "drakit": __version__,
            "python": platform.python_version(),
            "bootId": boot_id(),
        },
        "node": settings.node,
        "configuration": {
            "effective": {
                one.key: getattr(config, one.field)
                for one in settings_of(type(config), settings.program.prefix)
            },
            "sources": dict(settings.sources),
            "warnings": list(driver.warnings),
        },
        "checks": list(examine(settings)),
        "ledger": _or_error(lambda: claims_document(config.checkpoint_dir(driver.name))),
        "slices": {
            "preview": _or_error(
                lambda: [to_builtins(each) for each in preview_slices(driver, settings.node)]
            ),
            "published": _or_error(lambda: asyncio.run(_published(settings, driver.name))),
        },
        "cdi": _or_error(lambda: cdi_document(config.cdi_dir, driver.cdi_kind)),
        "driver": _or_error(lambda: driver_document(config, driver.name)),
        "machine": topology_document(driver.cpus.machine),
    }


def _or_error(read: Callable[[], Any]) -> Any:
    """Return the result of *read*, or its error."""
    try:
        return read()
    except (OSError, ValueError, KubeError) as error:
        return {"problem": str(error)}


def claims_document(directory: str) -> Document:
    """Return the claims of a checkpoint, and the unreadable files with their error and content."""
    claims, unreadable = [], []
    for file in checkpoint_files(directory):
        if file.entry is not None:
            claims.append(msgspec.json.decode(file.data)["entry"])
            continue
        unreadable.append({"file": file.path, "problem": file.error})
        if file.data:
            content = file.data[:4096].decode("utf-8", "backslashreplace")
            unreadable[-1]["content"] = content
    return {"directory": directory, "claims": claims, "unreadable": unreadable}


def cdi_document(directory: str, kind: str) -> Document:
    """Return the CDI specs of this driver, and the names of all other files there."""
    entries = CdiDirectory(directory, kind).entries()
    own = {os.path.basename(entry.path) for entry in entries.values()}
    return {
        "directory": directory,
        "specs": [
            {"file": entry.path, "problem": entry.problem}
            if entry.spec is None
            else {"file": entry.path, "spec": to_builtins(entry.spec)}
            for entry in entries.values()
        ],
        "others": sorted(name for name in os.listdir(directory) if name not in own),
    }


def driver_document(config: CpuSettings, name: str) -> Document:
    """Return the readiness and metrics of the running driver."""
    if not config.bind_address:
        return {"problem": "the health endpoint is disabled (bindAddress is empty)"}
    status, readiness = ask_driver(config.bind_address, "/readyz")
    _status, metrics = ask_driver(config.bind_address, "/metrics")
    return {
        "address": config.bind_address,
        "ready": status == 200,
        "conditions": readiness.splitlines(),
        "refusals": [
            {"verb": m["verb"], "reason": m["reason"], "count": int(float(m["count"]))}
            for m in _rejections(name).finditer(metrics)
        ],
        "metrics": metrics.splitlines(),
    }


def _rejections(driver: str) -> re.Pattern[str]:
    """Return the pattern of the metrics that count rejections."""
    return re.compile(
        rf"^{driver.replace('.', '_')}_rejections_total"
        r'\{operation="(?P<verb>[^"]*)",reason="(?P<reason>[^"]*)"\} (?P<count>\S+)$',
        re.MULTILINE,
    )


async def _published(settings: DriverSettings, driver: str) -> list[Any]:
    """Return the slices of this driver and node from the API server."""
    cluster = find_cluster(kubeconfig=settings.config.kubeconfig or None)
    async with Client(cluster) as client:
        selection = Selection(fields=f"spec.driver={driver},spec.nodeName={settings.node}")
        return [item.raw for item in (await client.list(SLICES, selection)).items]


def last_warnings(lines: Iterable[str]) -> list[str]:
    """Return the last warnings and errors of a driver's log, in text or JSON."""
    found = (line.rstrip("\n") for line in lines if _WARNING.search(line))
    return list(deque(found, _MOST_LINES))


def _log_warnings(path: str) -> list[str]:
    if path == "-":
        return last_warnings(sys.stdin)
    with open(path, encoding="utf-8", errors="replace") as file:
        return last_warnings(file)


def _write_new(path: str, text: str) -> None:
    """Create a file that only its owner can read; an incomplete one is removed."""
    remedy = "name a new file with --file, or use --file - for standard output"
    with cli_errors(OSError, remedy, lambda error: f"cannot create {path!r}: {error.strerror}"):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        os.unlink(path)
        raise CliError(f"cannot write {path!r}: {error.strerror}", "name another file with --file") from None
