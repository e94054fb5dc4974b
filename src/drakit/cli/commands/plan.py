"""``drakit plan``: where a pod fits and which devices it gets, without asking the cluster."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Final

from drakit.cli.chosen_cpus import Chosen, Unknown, chosen_cpus
from drakit.cli.errors import Problem
from drakit.cluster import manifests
from drakit.cluster.sources import add_sources, read_cluster, the_pod
from drakit.core.pods import Pod
from drakit.draw.machine_map import draw, legend
from drakit.draw.marks import Mark
from drakit.draw.terminal import Terminal
from drakit.scheduler.allocator.search_state import Pick
from drakit.scheduler.placement import (
    ClaimNotFoundError,
    ClusterSnapshot,
    NodeResult,
    SchedulingResult,
    place,
    rejected_selectors,
)
from drakit.scheduler.requests import claim_name

EPILOG: Final = """\
examples:
  kubectl get nodes,resourceslices,deviceclasses,resourceclaims -A -o yaml > cluster.yaml
  drakit plan --from cluster.yaml -f pod.yaml
  drakit plan --from dumps/ -f pod.yaml --node worker-3 --output json

exit code: 0 the pod fits, 1 it does not, 2 the input is wrong
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_sources(parser)
    parser.add_argument(
        "-f", "--filename", metavar="FILE", action="append", default=[],
        help="the pod with its claims or templates; may be given several times",
    )  # fmt: skip
    parser.add_argument("--node", help="only this node")
    parser.add_argument(
        "--machine", metavar="DIR",
        help="DIR/sys and DIR/proc of the node, to see which CPUs dra-driver-cpu would choose",
    )  # fmt: skip
    parser.add_argument(
        "--reserved-cpus", metavar="LIST", default="",
        help="with --machine: the CPUs the node's driver keeps for the system",
    )  # fmt: skip
    parser.add_argument("--output", choices=("text", "json"), default="text")
    parser.add_argument("strays", nargs="*", metavar="", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Plan and print."""
    _check_words(options)
    wanted = manifests.read(options.filename, options.namespace)
    cluster = read_cluster(options, wanted)
    pod = the_pod(wanted)
    rejected = _rejections(wanted, cluster)
    if rejected:
        if options.output == "json":
            print(
                json.dumps(
                    {**_document(SchedulingResult(False, None, rejected)), "error": rejected}
                )
            )
        raise Problem(f"the API server refuses this: {rejected}", "correct the expression")
    if options.node and options.node not in {n.metadata.name for n in cluster.nodes}:
        raise Problem(
            f"there is no node {options.node!r} in the given objects",
            "check --node, or add the Node object with --from",
        )
    try:
        placement = place(cluster, pod, options.node)
    except ClaimNotFoundError as error:
        raise Problem(str(error), "add the object with -f or --from") from None
    cpus = chosen_cpus(cluster, placement, options.machine, options.reserved_cpus)
    if options.output == "json":
        print(json.dumps({**_document(placement), **_cpu_document(cpus)}, indent=2))
    else:
        _print(placement, pod, cluster)
        _print_cpus(cpus)
    return 0 if placement.feasible else 1


def _check_words(options: argparse.Namespace) -> None:
    """Point out the usual slips: a file without -f, or one that --from has swallowed."""
    if options.strays:
        raise Problem(
            f"{options.strays[0]!r} stands alone",
            f"write -f {options.strays[0]} for the pod's file",
        )
    if options.filename:
        return
    way_out = "give the file with the pod with -f"
    if len(options.sources) > 1:
        way_out += (
            f"; --from takes all words behind it: write -f {options.sources[-1]} if that is it"
        )
    raise Problem("no pod is given", way_out)


def _rejections(wanted: manifests.Manifests, cluster: ClusterSnapshot) -> str:
    for claim in wanted.values("ResourceClaim"):
        if claim.status.allocation is not None:
            continue
        for path, error in rejected_selectors(claim, cluster.release.cel):
            return f"ResourceClaim {claim.metadata.name}, {path}: {error}"
    for template in wanted.values("ResourceClaimTemplate"):
        for path, error in rejected_selectors(template.spec, cluster.release.cel):
            return f"ResourceClaimTemplate {template.metadata.name}, spec.{path}: {error}"
    return ""


# -- JSON ---------------------------------------------------------------------------------------------------


def _document(placement: SchedulingResult) -> dict[str, Any]:
    """The document others rely on."""
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
    found: list[dict[str, Any]] = []
    for claim in placement.claims:
        meta = claim.metadata
        results: list[dict[str, Any]] = []
        allocation = new.get(claim_name(claim))
        if allocation is not None:
            results = [_result(pick) for pick in allocation.picks]
        elif claim.status.allocation is not None:
            results = [
                {
                    "request": r.request,
                    "driver": r.driver,
                    "pool": r.pool,
                    "device": r.device,
                    "consumedCapacity": {k: str(v) for k, v in r.consumed_capacity.items()},
                    "adminAccess": bool(r.admin_access),
                }
                for r in claim.status.allocation.devices.results
            ]
        found.append({"namespace": meta.namespace, "name": meta.name, "results": results})
    return found


def _result(pick: Pick) -> dict[str, Any]:
    return {
        "request": str(pick.request),
        "driver": pick.device.driver,
        "pool": pick.device.pool,
        "device": pick.device.device,
        "consumedCapacity": {key: str(amount) for key, amount in sorted(pick.consumed.items())},
        "adminAccess": pick.admin,
    }


def _reason(answer: NodeResult) -> str:
    return ". ".join(filter(None, (answer.reason, answer.effort)))


def _cpu_document(cpus: Chosen | Unknown | None) -> dict[str, Any]:
    """What is known about CPUs, behind the agreed keys."""
    if not isinstance(cpus, Chosen):
        return {}
    return {
        "cpus": [{"claim": holder.claim, "cpus": str(holder.cpus)} for holder in cpus.planned],
        "cpusLeft": str(cpus.left),
    }


# -- text ---------------------------------------------------------------------------------------------------


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
            print(f"  it would also fit on: {_few(others)}")
        for line in _left(placement, cluster):
            print(f"  {line}")
    else:
        print(f"pod {name} does not fit")
        groups: dict[str, list[str]] = {}
        for answer in placement.nodes:
            groups.setdefault(_reason(answer), []).append(answer.name)
        for reason, nodes in groups.items():
            print(f"  {_few(nodes)}: {reason}")
        print("  `drakit explain` with the same files says what is missing")
    sys.stdout.flush()


def _print_cpus(cpus: Chosen | Unknown | None) -> None:
    """The CPUs of the claims, drawn on their machine."""
    if cpus is None:
        return
    if isinstance(cpus, Unknown):
        print(f"  {cpus.reason}")
        return
    for holder in cpus.planned:
        print(f"  claim {holder.claim} gets CPUs {holder.cpus or 'none'}")
    print(f"  left for other claims: {len(cpus.left)} CPUs ({cpus.left or 'none'})")
    if cpus.remark:
        print(f"  ({cpus.remark})")
    marks: dict[int, Mark] = {}
    for letters, holders in (
        ("abcdefghijklmnopqrstuvwxyz", cpus.held),
        ("ABCDEFGHIJKLMNOPQRSTUVWXYZ", cpus.planned),
    ):
        for number, holder in enumerate(holders):
            mark = Mark(letters[number % 26], holder.claim, len(marks))
            marks.update(dict.fromkeys(holder.cpus, mark))
    terminal = Terminal.of(sys.stdout)
    print(
        draw(
            cpus.machine,
            marks,
            width=terminal.width,
            color=terminal.color,
            unicode=terminal.unicode,
        ),
        end="",
    )
    for line in legend(cpus.machine, marks):
        print(f"  {line}")


def _line(result: dict[str, Any]) -> str:
    amounts = ", ".join(f"{amount} {key}" for key, amount in result["consumedCapacity"].items())
    admin = " (admin access)" if result["adminAccess"] else ""
    where = f"{result['driver']}/{result['pool']}/{result['device']}"
    return f"{result['request']}: {where}{' – ' + amounts if amounts else ''}{admin}"


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def _left(placement: SchedulingResult, cluster: ClusterSnapshot) -> list[str]:
    """What remains of the capacities that were drawn from."""
    from drakit.core.quantity import Quantity
    from drakit.scheduler.allocator.node_devices import InUse

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
