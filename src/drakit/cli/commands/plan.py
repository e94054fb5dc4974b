"""``drakit plan``: the node and the devices that a pod would get, computed without the cluster."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Final

from drakit.cli.cluster_options import DUMP_COMMAND, add_options, read_cluster
from drakit.cli.errors import CliError, cli_errors
from drakit.cluster import Manifests, pod_of, read_manifests
from drakit.core.pods import Pod
from drakit.core.quantity import Quantity
from drakit.core.text import count, cpu_list, shortened
from drakit.draw.machine_map import draw, legend
from drakit.draw.marks import Mark
from drakit.draw.terminal import Terminal
from drakit.local.planned_cpus import PlannedCpus, UnknownCpus, planned_cpus
from drakit.scheduler.allocator.node_devices import InUse
from drakit.scheduler.placement import (
    ClaimNotFoundError,
    ClusterSnapshot,
    NodeResult,
    SchedulingResult,
    place,
    rejected_selectors,
)
from drakit.scheduler.requests import claim_name

EPILOG: Final = f"""\
examples:
  {DUMP_COMMAND} > cluster.yaml
  drakit plan --from cluster.yaml -f pod.yaml
  drakit plan --from dumps/ -f pod.yaml --node worker-3 --output json

exit code: 0 the pod fits, 1 it does not fit, 2 invalid input
"""
_MOST_NAMES: Final = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EPILOG
    add_options(parser)
    parser.add_argument(
        "-f", "--filename", metavar="FILE", action="append", default=[],
        help="file with the pod and its claims or templates; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--machine", metavar="DIR",
        help="directory with sys/ and proc/ of the node, to show the CPUs dra-driver-cpu would select",
    )  # fmt: skip
    parser.add_argument(
        "--reserved-cpus", metavar="LIST", default="",
        help="with --machine: CPUs that the node's driver reserves for the system",
    )  # fmt: skip
    parser.add_argument("strays", nargs="*", metavar="", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Plan the pod and print the result."""
    _check_arguments(options)
    wanted = read_manifests(options.filename, options.namespace)
    cluster = read_cluster(options, wanted)
    pod = pod_of(wanted)
    rejected = _rejected_selector(wanted, cluster)
    if rejected:
        if options.output == "json":
            print(json.dumps({**_document(SchedulingResult(False, None, rejected)), "error": rejected}))
        raise CliError(f"the API server rejects this: {rejected}", "correct the expression")
    with cli_errors(ClaimNotFoundError, "add the object with -f or --from"):
        placement = place(cluster, pod, options.node)
    cpus = planned_cpus(cluster, placement, options.machine, options.reserved_cpus)
    if options.output == "json":
        print(json.dumps({**_document(placement), **_cpu_document(cpus)}, indent=2))
    else:
        _print(placement, pod, cluster)
        _print_cpus(cpus)
    return 0 if placement.feasible else 1


def _check_arguments(options: argparse.Namespace) -> None:
    """Detect common mistakes: a file without -f, or one after --from."""
    if options.strays:
        name = options.strays[0]
        raise CliError(f"unexpected argument {name!r}", f"write -f {name} for the pod's file")
    if options.filename:
        return
    remedy = "give the file with the pod with -f"
    if len(options.sources) > 1:
        remedy += f"; --from takes all arguments after it: write -f {options.sources[-1]} if that is it"
    raise CliError("no pod given", remedy)


def _rejected_selector(wanted: Manifests, cluster: ClusterSnapshot) -> str:
    specs = [
        (f"ResourceClaim {claim.metadata.name}, ", claim)
        for claim in wanted.values("ResourceClaim")
        if claim.status.allocation is None
    ] + [
        (f"ResourceClaimTemplate {template.metadata.name}, spec.", template.spec)
        for template in wanted.values("ResourceClaimTemplate")
    ]
    for name, value in specs:
        for path, error in rejected_selectors(value, cluster.release.cel):
            return f"{name}{path}: {error}"
    return ""


def _document(placement: SchedulingResult) -> dict[str, Any]:
    """Return the document; its keys are stable."""
    return {
        "feasible": placement.feasible,
        "node": placement.node,
        "nodes": [
            {"name": answer.name, "fits": answer.fits, "reason": _reason(answer)}
            for answer in placement.nodes
        ],
        "claims": _claims(placement) if placement.feasible else [],
    }


def _claims(placement: SchedulingResult) -> list[dict[str, Any]]:
    new = {claim_name(a.claim): a for a in placement.allocations}
    found = []
    for claim in placement.claims:
        allocated = claim.status.allocation
        results = []
        if claim_name(claim) in new:
            results = [
                _result(p.request, p.device, dict(sorted(p.consumed.items())), admin=p.admin)
                for p in new[claim_name(claim)].picks
            ]
        elif allocated is not None:
            results = [
                _result(r.request, r, r.consumed_capacity, admin=bool(r.admin_access))
                for r in allocated.devices.results
            ]
        meta = claim.metadata
        found.append({"namespace": meta.namespace, "name": meta.name, "results": results})
    return found


def _result(request: object, device: Any, consumed: Mapping[str, Quantity], *, admin: bool) -> dict[str, Any]:
    return {
        "request": str(request),
        "driver": device.driver,
        "pool": device.pool,
        "device": device.device,
        "consumedCapacity": {key: str(amount) for key, amount in consumed.items()},
        "adminAccess": admin,
    }


def _reason(answer: NodeResult) -> str:
    return ". ".join(filter(None, (answer.reason, answer.effort)))


def _cpu_document(cpus: PlannedCpus | UnknownCpus | None) -> dict[str, Any]:
    if not isinstance(cpus, PlannedCpus):
        return {}
    return {
        "cpus": [{"claim": each.claim, "cpus": str(each.cpus)} for each in cpus.planned],
        "cpusLeft": str(cpus.left),
    }


def _print(placement: SchedulingResult, pod: Pod, cluster: ClusterSnapshot) -> None:
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    if placement.feasible:
        print(f"pod {name} fits on node {placement.node}")
        for claim in _claims(placement):
            print(f"  claim {claim['namespace']}/{claim['name']}")
            for result in claim["results"]:
                print(f"    {_line(result)}")
        chosen = next(a for a in placement.nodes if a.name == placement.node)
        if chosen.effort:
            print(f"  ! {chosen.effort}")
        others = [a.name for a in placement.nodes if a.fits and a.name != placement.node]
        if others:
            print(f"  it would also fit on: {shortened(others, _MOST_NAMES)}")
        for line in _left(placement, cluster):
            print(f"  {line}")
    else:
        print(f"pod {name} does not fit")
        groups: dict[str, list[str]] = {}
        for answer in placement.nodes:
            groups.setdefault(_reason(answer), []).append(answer.name)
        for reason, nodes in groups.items():
            print(f"  {shortened(nodes, _MOST_NAMES)}: {reason}")
        print("  run `drakit explain` with the same files for details")
    sys.stdout.flush()


def _print_cpus(cpus: PlannedCpus | UnknownCpus | None) -> None:
    """Print the CPUs of the claims and draw them on the machine."""
    if cpus is None:
        return
    if isinstance(cpus, UnknownCpus):
        print(f"  {cpus.reason}")
        return
    for each in cpus.planned:
        print(f"  claim {each.claim} gets {cpu_list(each.cpus)}")
    print(f"  left for other claims: {count(len(cpus.left), 'CPU')} ({cpus.left or 'none'})")
    if cpus.remark:
        print(f"  ({cpus.remark})")
    marks: dict[int, Mark] = {}
    for letters, claims in ((ascii_lowercase, cpus.existing), (ascii_uppercase, cpus.planned)):
        for number, each in enumerate(claims):
            mark = Mark(letters[number % 26], each.claim, len(marks))
            marks.update(dict.fromkeys(each.cpus, mark))
    print(draw(cpus.machine, marks, Terminal.of(sys.stdout)), end="")
    for line in legend(cpus.machine, marks):
        print(f"  {line}")


def _line(result: dict[str, Any]) -> str:
    amounts = ", ".join(f"{amount} {key}" for key, amount in result["consumedCapacity"].items())
    admin = " (admin access)" if result["adminAccess"] else ""
    where = f"{result['driver']}/{result['pool']}/{result['device']}"
    return f"{result['request']}: {where}{' – ' + amounts if amounts else ''}{admin}"


def _left(placement: SchedulingResult, cluster: ClusterSnapshot) -> list[str]:
    """Describe the remaining capacity of the devices that the pod would use."""
    used = InUse.of(cluster.claims, cluster.release).capacity
    lines: list[str] = []
    seen: dict[Any, dict[str, int]] = {}
    for allocation in placement.allocations:
        for pick in allocation.picks:
            totals = seen.setdefault(pick.device, dict(used.get(pick.device, {})))
            for key, amount in pick.consumed.items():
                totals[key] = totals.get(key, 0) + amount.nanos
    for entry in cluster.slices:
        for device in entry.spec.devices:
            where = (entry.spec.driver, entry.spec.pool.name, device.name)
            for capacity, taken in seen.get(where, {}).items():
                total = device.capacity[capacity].value
                left = Quantity.from_nanos(total.nanos - taken, total.family)
                lines.append(f"left on {'/'.join(where)}: {left} of {total} {capacity}")
    return lines
