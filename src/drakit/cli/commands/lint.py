"""``drakit lint``: mistakes in manifests, with file, line and fix."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any, Final

from drakit.cli.cluster_options import add_output
from drakit.cluster import Manifest, Manifests, read_manifests
from drakit.core.objects import DeviceClaim
from drakit.core.pods import Pod
from drakit.core.text import count
from drakit.scheduler import lint
from drakit.scheduler.lint import LintFinding, Published

EPILOG: Final = """\
examples:
  drakit lint manifests/
  drakit lint pod.yaml --from cluster.yaml   # also check against published devices

exit code: 0 no findings, 1 findings, 2 invalid input
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EPILOG
    parser.add_argument("files", metavar="FILE", nargs="+", help="files or directories to check")
    add_output(parser, help_from="cluster objects (slices and classes) to check against")


def run(options: argparse.Namespace) -> int:
    """Check the manifests and print the findings."""
    checked = read_manifests(options.files, options.namespace)
    cluster = read_manifests(options.sources, options.namespace)
    both = Manifests([*cluster.found, *checked.found])
    published = Published(both.values("ResourceSlice"), both.values("DeviceClass"))
    found = [
        {
            "file": manifest.path,
            "line": _line(manifest, finding.where),
            "level": finding.level,
            "rule": finding.rule,
            "message": finding.message,
            "fix": finding.fix,
        }
        for manifest in checked.found
        for finding in dict.fromkeys(_findings(manifest, both, published))
    ]
    if options.output == "json":
        print(json.dumps(found, indent=2))
    else:
        for each in found:
            print("{file}:{line}: {level}: {message} [{rule}]\n    fix: {fix}".format_map(each))
        print(f"{count(len(checked.found), 'object')} checked, {count(len(found), 'finding')}")
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
    def named(kind: str, name: str | None) -> Iterator[Any]:
        wanted = (pod.metadata.namespace, name)
        for value in both.values(kind):
            if (value.metadata.namespace, value.metadata.name) == wanted:
                yield value.spec

    for use in pod.spec.resource_claims:
        for spec in named("ResourceClaim", use.resource_claim_name):
            yield use.name, spec.devices
        for template in named("ResourceClaimTemplate", use.resource_claim_template_name):
            yield use.name, template.spec.devices


def _line(manifest: Manifest, where: str) -> int:
    """Return the line of the file that contains the text *where*."""
    if where and manifest.path != "-":
        with open(manifest.path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                text = line.replace('\\"', '"')
                if number >= manifest.line and (where in line or where in text):
                    return number
    return manifest.line
