"""``drakit gather``: one file about this node and its driver, for a bug report.

Everything is read, nothing is changed: not even the checkpoint is opened the way the driver does it, which
would set damaged files aside. What cannot be read has its ``problem`` in its place.
"""

from __future__ import annotations

import argparse
import asyncio
import json
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
from drakit.cli.driver_settings import DriverSettings, add_options, ask_driver, driver_settings
from drakit.cli.errors import Problem
from drakit.cli.topology_document import topology_document
from drakit.core.objects import to_builtins
from drakit.drivers.cpu.config import CpuSettings
from drakit.kit.claims import checkpoint as checkpoint
from drakit.kit.config.settings import settings_of
from drakit.kit.driver import Driver
from drakit.kit.slices.preview import preview_slices
from drakit.wire.cdi.directory import CdiDirectory
from drakit.wire.kube import SLICES, Client, KubeError, Selection, find_cluster

LAYOUT: Final = 1
"""Version of the document; fields may be added without a new one."""

EXAMPLES: Final = """\
examples:
  drakit gather                              drakit-gather-<node>-<time>.yaml, here, mode 0600
  drakit gather --file - --output json       to standard output
  kubectl -n kube-system exec ds/dra-driver-cpu -- drakit gather --pid 1 --file - > report.yaml
  kubectl logs POD | kubectl exec -i POD -- drakit gather --pid 1 --log - --file - > report.yaml

In the file: the machine, the configuration, the claims held here, the slices as they would be and
as the API server has them, CDI specs, the findings of `drakit doctor`, and, where the driver
answers, its metrics, readiness and refusals; with --log the words of recent refusals and troubles.
No credentials; but names of claims and namespaces.
An existing file is never overwritten.
"""

_LARGEST_FILE: Final = 8 << 20
_TROUBLE: Final = re.compile(r'^\S+Z (?:WARNING|ERROR) |^\{.*"level":"(?:warning|error)"')
_MOST_LINES: Final = 300
Document = dict[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EXAMPLES
    parser.add_argument("--file", metavar="FILE", help="where to write (- for standard output)")
    parser.add_argument("--output", choices=("yaml", "json"), default="yaml")
    parser.add_argument("--kubelet-config", metavar="FILE", help="as for drakit doctor")
    parser.add_argument(
        "--log",
        metavar="FILE",
        help="the driver's log (- for standard input): its last warnings and errors are kept",
    )
    add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Gather everything and write it; 0 when it was written."""
    settings = driver_settings(options)
    document = report(settings, options.kubelet_config)
    if options.log is not None:
        document["log"] = _or_problem(lambda: _troubles(options.log))
    text = _spell(document, options.output)
    if options.file == "-":
        print(text, end="")
        return 0
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = options.file or f"drakit-gather-{settings.node}-{stamp}.{options.output}"
    _write_new(path, text)
    print(f"wrote {path}", file=sys.stderr)
    return 0


def report(settings: DriverSettings, kubelet_config: str | None = None) -> Document:
    """Everything about this node, in plain dictionaries, lists, texts and numbers."""
    config = settings.config
    driver = settings.driver()
    cpus = driver.cpus
    return {
        "layoutVersion": LAYOUT,
        "gathered": {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "drakit": __version__,
            "python": platform.python_version(),
            "bootId": checkpoint.boot_id(),
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
        "checks": [remark.document() for remark in examine(settings, kubelet_config)],
        "ledger": _or_problem(lambda: claims_document(config.checkpoint_dir(driver.name))),
        "slices": {
            "preview": _or_problem(lambda: _preview(driver, settings.node)),
            "published": _or_problem(lambda: asyncio.run(_published(settings, driver.name))),
        },
        "cdi": _or_problem(lambda: cdi_document(config.cdi_dir, driver.cdi_kind)),
        "driver": _or_problem(lambda: driver_document(config, driver.name)),
        "machine": topology_document(cpus.machine),
    }


def _or_problem(look: Callable[[], Any]) -> Any:
    """What *look* finds, or in its place why it cannot."""
    try:
        return look()
    except (OSError, ValueError, KubeError) as error:
        return {"problem": str(error)}


# -- the parts ---------------------------------------------------------------------------------------


def claims_document(directory: str) -> Document:
    """The claims of a checkpoint, read without touching it; damaged records with what is wrong."""
    claims, unreadable = [], []
    for name in sorted(os.listdir(directory)):
        if name.startswith(".") or ".json" not in name:
            continue
        path = os.path.join(directory, name)
        try:
            with open(path, "rb") as file:
                data = file.read(_LARGEST_FILE)
        except OSError as error:
            unreadable.append({"file": path, "problem": str(error)})
            continue
        try:
            checkpoint.decode(data)
            claims.append(msgspec.json.decode(data)["entry"])
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            content = data[:4096].decode("utf-8", "backslashreplace")
            unreadable.append({"file": path, "problem": str(error), "content": content})
    return {"directory": directory, "claims": claims, "unreadable": unreadable}


def cdi_document(directory: str, kind: str) -> Document:
    """The CDI specs of this driver, and the names of all other files beside them."""
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
    """What the running driver tells about itself on its health pages."""
    if not config.bind_address:
        return {"problem": "no health pages are served, by configuration (bindAddress)"}
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
    """The lines of a driver's metrics that count rejections."""
    return re.compile(
        rf"^{driver.replace('.', '_')}_rejections_total"
        r'\{operation="(?P<verb>[^"]*)",reason="(?P<reason>[^"]*)"\} (?P<count>\S+)$',
        re.MULTILINE,
    )


def _preview(driver: Driver, node: str) -> list[Any]:
    return [to_builtins(each) for each in preview_slices(driver, node)]


async def _published(settings: DriverSettings, driver: str) -> list[Any]:
    """The slices that the API server has of this driver on this node."""
    cluster = find_cluster(kubeconfig=settings.config.kubeconfig or None)
    async with Client(cluster) as client:
        selection = Selection(fields=f"spec.driver={driver},spec.nodeName={settings.node}")
        return [item.raw for item in (await client.list(SLICES, selection)).items]


def troubles(lines: Iterable[str]) -> list[str]:
    """The last warnings and errors of a driver's log, in either of its formats: rejections are such."""
    kept = deque((line.rstrip("\n") for line in lines if _TROUBLE.search(line)), _MOST_LINES)
    return list(kept)


def _troubles(path: str) -> list[str]:
    if path == "-":
        return troubles(sys.stdin)
    with open(path, encoding="utf-8", errors="replace") as file:
        return troubles(file)


# -- the file ----------------------------------------------------------------------------------------


def _spell(document: Document, form: str) -> str:
    if form == "json":
        return json.dumps(document, indent=2) + "\n"
    import yaml

    # The dumper in C, where PyYAML was built with it, takes a tenth of the time.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))


def _write_new(path: str, text: str) -> None:
    """Write a file that did not exist, for its owner alone; a half-written one is removed."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Problem(
            f"cannot create {path!r}: {error.strerror}",
            "name a new file with --file, or use --file - for standard output",
        ) from None
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        os.unlink(path)
        raise Problem(
            f"cannot write {path!r}: {error.strerror}", "name another place with --file"
        ) from None
