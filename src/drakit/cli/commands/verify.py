"""``drakit verify``: whether the cgroups of this node match its claims."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

from drakit.cli.driver_settings import DriverSettings, add_options, driver_settings
from drakit.cli.errors import CliError, cli_errors
from drakit.core.text import count
from drakit.drivers.cpumem.audit.observed import CgroupScanner, ObservedPod
from drakit.drivers.cpumem.audit.verdict import Verdict, audit
from drakit.kit.claims.checkpoint_files import CheckpointView, read_checkpoint

RIGHT: Final = 0
WRONG: Final = 1
UNKNOWN: Final = 3

EXAMPLES: Final = """\
examples:
  drakit verify --driver cpumem                     this node, as root
  drakit verify --driver cpumem --output json
  drakit verify --pid 4711                          with the settings of a running driver
  drakit verify --driver cpumem --cgroup-root ./dump/cgroup --state-dir ./dump/claims

For every container and pod with a claim, and the cgroups above them, the values that the checkpoint
requires are compared with the kernel's (cpuset.cpus, cpuset.mems, hugetlb.*.max and rsvd.max for
every page size, memory.min, memory.low, memory.high). Containers without claims must not run on
claimed CPUs. Nothing is changed. [+] is correct, [-] is wrong, [?] is unknown.

The exit code is 0 if everything is correct, 1 if anything is wrong, 2 for invalid input, 3 if nothing
is wrong but something is unknown.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EXAMPLES
    parser.add_argument("--output", choices=("text", "json"), default="text")
    add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Compare the cgroups with the claims and print the differences."""
    settings = driver_settings(options)
    with cli_errors(OSError, "run as root, or give the checkpoint directory with --state-dir"):
        driver = settings.driver()
        view = read_checkpoint(settings.config.checkpoint_dir(driver.name))
    root = settings.config.cgroup_root
    if not os.path.exists(os.path.join(root, "cgroup.controllers")):
        raise CliError(
            f"{root or 'cgroupRoot'} is not a cgroup v2 hierarchy", "give its mount point with --cgroup-root"
        )
    proc = os.path.join(settings.config.sysfs_root, "proc")
    scanner = CgroupScanner(root, proc, driver.cdi_kind, view.entries)
    pods = scanner.pods()
    verdicts = audit(driver, driver.memory_policy, view.prepared_claims, pods, scanner.read)
    code = _code(verdicts, view)
    if options.output == "json":
        print(json.dumps(_document(settings, view, pods, verdicts, code), indent=2))
    else:
        for line in report(view, pods, verdicts):
            print(line)
        print(_SUMMARY[code])
    return code


def _code(verdicts: Iterable[Verdict], view: CheckpointView) -> int:
    found = {verdict.right for verdict in verdicts}
    if False in found or view.unreadable:
        return WRONG
    return UNKNOWN if None in found else RIGHT


_SUMMARY: Final = {
    RIGHT: "all cgroups match the claims",
    WRONG: "some cgroups do not match the claims: see the lines marked [-]",
    UNKNOWN: "no mismatch found, but some values are unknown: see the lines marked [?]",
}
_SIGNS: Final = {True: "[+]", False: "[-]", None: "[?]"}


def report(view: CheckpointView, pods: Sequence[ObservedPod], verdicts: Sequence[Verdict]) -> Iterable[str]:
    """Yield a line for each cgroup with requirements, followed by what is wrong."""
    for path, error in view.unreadable.items():
        yield f"[-] {path}: {error}"
    here = {pod.uid for pod in pods}
    for entry in view.entries:
        if not here.intersection(entry.consumers):
            yield f"[+] {entry}: none of its pods is running"
    for verdict in verdicts:
        if verdict.right and not verdict.claims and verdict.kind == "container":
            continue  # only counted below: most containers have no claims
        yield _line(verdict)
        if verdict.problem or verdict.unknown:
            yield f"      {verdict.problem or verdict.unknown}"
        yield from (f"      {check}" for check in verdict.checks if not check.right)
    others = sum(v.right is True and not v.claims and v.kind == "container" for v in verdicts)
    if others:
        yield f"[+] {count(others, 'container')} without claims not on claimed CPUs"


def _line(verdict: Verdict) -> str:
    claims = f" ({', '.join(verdict.claims)})" if verdict.claims else ""
    values = " ".join(f"{check.file}={check.found}" for check in verdict.checks if check.right)
    return f"{_SIGNS[verdict.right]} {verdict.kind} {verdict.path}{claims}{': ' if values else ''}{values}"


def _document(
    settings: DriverSettings,
    view: CheckpointView,
    pods: Sequence[ObservedPod],
    verdicts: Sequence[Verdict],
    code: int,
) -> dict[str, Any]:
    words = {True: "right", False: "wrong", None: "unknown"}
    here = {pod.uid for pod in pods}
    return {
        "layoutVersion": 1,
        "node": settings.node,
        "driver": settings.program.name,
        "verdict": {RIGHT: "right", WRONG: "wrong", UNKNOWN: "unknown"}[code],
        "unreadable": dict(view.unreadable),
        "claims": [
            {
                "uid": entry.uid,
                "name": f"{entry.namespace}/{entry.name}",
                "running": bool(here.intersection(entry.consumers)),
            }
            for entry in view.entries
        ],
        "cgroups": [
            {
                "kind": verdict.kind,
                "path": verdict.path,
                "claims": list(verdict.claims),
                "verdict": words[verdict.right],
                "problem": verdict.problem or verdict.unknown,
                "files": [
                    {
                        "file": check.file,
                        "relation": check.relation,
                        "wanted": check.wanted,
                        "found": check.found,
                        "verdict": words[check.right],
                    }
                    for check in verdict.checks
                ],
            }
            for verdict in verdicts
        ],
    }
