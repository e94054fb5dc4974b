"""``drakit doctor``: whether this node meets the driver's requirements, and how to fix what is missing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Final, NamedTuple

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


class Remark(NamedTuple):
    """The result of a check as it is printed; the level is good, note or problem."""

    level: str
    subject: str
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{_SIGNS[self.level]} {self.subject}: {self.text}"
        return f"{line}\n      {self.remedy}" if self.remedy else line

    def document(self) -> dict[str, str]:
        """Return the remark as JSON."""
        return dict(zip(("level", "subject", "text", "wayOut"), self, strict=True))


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EXAMPLES
    parser.add_argument("--output", choices=("text", "json"), default="text")
    add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Check the node and print the results; returns 1 if a requirement is not met."""
    settings = driver_settings(options)
    remarks = list(examine(settings))
    ready = all(remark.level != "problem" for remark in remarks)
    if options.output == "json":
        document = {
            "node": settings.node,
            "ready": ready,
            "remarks": [remark.document() for remark in remarks],
        }
        print(json.dumps(document, indent=2))
    else:
        for remark in remarks:
            print(remark)
        print("ready" if ready else "not ready: see the lines marked [-]")
    return 0 if ready else 1


def examine(settings: DriverSettings) -> Iterator[Remark]:
    """Yield the results of all checks of this node."""
    for finding in settings.checks():
        yield _remark(finding, settings.config.bind_address)


def _remark(finding: CheckResult, bind_address: str) -> Remark:
    if not finding.problem and not finding.note:
        return Remark("good", finding.subject, finding.detail)
    if not finding.problem:
        return Remark("note", finding.subject, finding.note, finding.remedy)
    running = _running_driver(bind_address) if finding.subject.startswith("health") else None
    return running or Remark("problem", finding.subject, finding.problem, finding.remedy)


def _running_driver(bind_address: str) -> Remark | None:
    """Report on the driver that has the address of the health endpoint; None if it is not one."""
    try:
        status, text = ask_driver(bind_address, "/readyz")
    except OSError:
        return None
    if status == 200:
        return Remark("good", "driver", f"runs on {bind_address} and is ready")
    missing = [line[4:] for line in text.splitlines() if line.startswith("[-] ")]
    if not missing:
        return None
    text = f"runs on {bind_address}, not ready: {'; '.join(missing)}"
    return Remark("problem", "driver", text, "see its log")
