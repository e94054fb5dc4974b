"""``drakit doctor``: whether this node meets the driver's requirements, and how to fix what is missing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Final

from drakit.cli.driver_settings import DriverSettings, add_options, ask_driver, driver_settings
from drakit.kit.preflight import CheckResult

EXAMPLES: Final = """\
examples:
  drakit doctor                                   this node, for dra-driver-cpu with its defaults
  drakit doctor --driver cpumem                   the same for dra-driver-cpumem
  drakit doctor --config /etc/drakit/config.yaml --kubeconfig ~/.kube/config
  drakit doctor --output json
  kubectl -n kube-system exec ds/dra-driver-cpu -- drakit doctor --pid 1

Nothing is changed. [+] is fine, [!] is worth knowing, [-] prevents the driver from starting.
The exit code is 1 if there is a [-], otherwise 0.
"""

_SIGNS: Final = {"good": "[+]", "note": "[!]", "problem": "[-]"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EXAMPLES
    parser.add_argument("--output", choices=("text", "json"), default="text")
    add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Check the node and print the results; returns 1 if a requirement is not met."""
    settings = driver_settings(options)
    remarks = list(examine(settings))
    ready = all(remark["level"] != "problem" for remark in remarks)
    if options.output == "json":
        print(json.dumps({"node": settings.node, "ready": ready, "remarks": remarks}, indent=2))
    else:
        for remark in remarks:
            print(f"{_SIGNS[remark['level']]} {remark['subject']}: {remark['text']}")
            if remark["wayOut"]:
                print(f"      {remark['wayOut']}")
        print("ready" if ready else "not ready: see the lines marked [-]")
    return 0 if ready else 1


def examine(settings: DriverSettings) -> Iterator[dict[str, str]]:
    """Yield the results of all checks of this node, with the level good, note or problem."""
    for result in settings.checks():
        if result.problem and result.subject.startswith("health"):
            result = _running_driver(settings.config.bind_address) or result
        good = not result.problem and not result.note
        yield {
            "level": "good" if good else "problem" if result.problem else "note",
            "subject": result.subject,
            "text": result.problem or result.note or result.detail,
            "wayOut": "" if good else result.remedy,
        }


def _running_driver(bind_address: str) -> CheckResult | None:
    """Check the driver that has the address of the health endpoint; None if it is not one."""
    try:
        status, text = ask_driver(bind_address, "/readyz")
    except OSError:
        return None
    if status == 200:
        return CheckResult("driver", f"runs on {bind_address} and is ready")
    missing = "; ".join(line[4:] for line in text.splitlines() if line.startswith("[-] "))
    if not missing:
        return None
    return CheckResult("driver", "", f"runs on {bind_address}, not ready: {missing}", "see its log")
