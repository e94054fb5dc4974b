"""``drakit lint``: mistakes in manifests that only show at run time, with file, line and fix."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from drakit.cluster import manifests
from drakit.cluster.manifests import Manifest, Manifests
from drakit.core.objects import DeviceClaim
from drakit.core.pods import Pod
from drakit.scheduler import lint
from drakit.scheduler.lint import LintFinding, Published

EPILOG: Final = """\
examples:
  drakit lint manifests/
  drakit lint pod.yaml --from cluster.yaml   # also check against what drivers publish

exit code: 0 nothing found, 1 something found, 2 the input is wrong
"""


class Located(NamedTuple):
    """A finding and its place."""

    path: str
    line: int
    finding: LintFinding


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", metavar="FILE", nargs="+", help="files or directories to check")
    parser.add_argument(
        "--from", dest="sources", metavar="FILE_OR_DIR", nargs="+", action="extend", default=[],
        help="objects of the cluster (slices and classes) to check against",
    )  # fmt: skip
    parser.add_argument("-n", "--namespace", default="default", help="for objects that name none")
    parser.add_argument("--output", choices=("text", "json"), default="text")


def run(options: argparse.Namespace) -> int:
    """Check and print."""
    checked = manifests.read(options.files, options.namespace)
    cluster = manifests.read(options.sources, options.namespace)
    both = Manifests([*cluster.found, *checked.found])
    published = Published(both.values("ResourceSlice"), both.values("DeviceClass"))
    found = [
        Located(m.path, _line(m, finding.where), finding)
        for m in checked.found
        for finding in dict.fromkeys(_findings(m, both, published))
    ]
    if options.output == "json":
        print(json.dumps([_document(f) for f in found], indent=2))
    else:
        for path, line, finding in found:
            print(f"{path}:{line}: {finding.level}: {finding.message} [{finding.rule}]")
            print(f"    fix: {finding.fix}")
        print(f"{len(checked.found)} objects checked, {len(found)} findings")
    return 1 if found else 0


def _findings(m: Manifest, both: Manifests, published: Published) -> Iterator[LintFinding]:
    value: Any = m.value
    match m.kind:
        case "Pod":
            yield from lint.lint_pod(value)
            for entry, claim in _claims_of(value, both):
                yield from lint.lint_uses(value, entry, claim)
        case "ResourceClaim":
            yield from lint.lint_claim(value.spec.devices, published)
        case "ResourceClaimTemplate":
            yield from lint.lint_claim(value.spec.spec.devices, published)
        case "DeviceClass":
            yield from lint.lint_class(value)
        case "ResourceSlice":
            yield from lint.lint_slice(value)
        case "DeviceTaintRule":
            yield from lint.lint_taint_rule(value)


def _claims_of(pod: Pod, both: Manifests) -> Iterator[tuple[str, DeviceClaim]]:
    namespace = pod.metadata.namespace
    for entry in pod.spec.resource_claims:
        for claim in both.values("ResourceClaim"):
            if (claim.metadata.namespace, claim.metadata.name) == (
                namespace,
                entry.resource_claim_name,
            ):
                yield entry.name, claim.spec.devices
        for template in both.values("ResourceClaimTemplate"):
            if (template.metadata.namespace, template.metadata.name) == (
                namespace,
                entry.resource_claim_template_name,
            ):
                yield entry.name, template.spec.spec.devices


def _line(m: Manifest, where: str) -> int:
    """The line of the object's file that has the text in question."""
    if not where or m.path == "-":
        return m.line
    with open(m.path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if number >= m.line and (where in line or where in line.replace('\\"', '"')):
                return number
    return m.line


def _document(found: Located) -> dict[str, Any]:
    finding = found.finding
    return {
        "file": found.path,
        "line": found.line,
        "level": finding.level,
        "rule": finding.rule,
        "message": finding.message,
        "fix": finding.fix,
    }
