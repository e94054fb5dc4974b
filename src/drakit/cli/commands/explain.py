"""``drakit explain``: why a pod or claim is pending, by node and device."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from typing import Any, Final

from drakit.cli.cluster_options import add_options, read_cluster
from drakit.cli.errors import CliError, cli_errors
from drakit.cluster import Manifests, pod_of, pod_using, read_manifests
from drakit.core.objects import DeviceRequestAllocationResult, ResourceClaim, true_conditions
from drakit.core.pods import Node, Pod
from drakit.core.text import shortened
from drakit.scheduler import explain
from drakit.scheduler.explain import NodeReport, RequestReport
from drakit.scheduler.placement import (
    NOT_AVAILABLE_ON_NODE,
    ClaimNotFoundError,
    ClusterSnapshot,
    SchedulingCycle,
    SchedulingResult,
    check_node,
    choose,
    prepare,
)
from drakit.scheduler.requests import claim_name

EPILOG: Final = """\
examples:
  drakit explain my-pod --from cluster.yaml        # a pod in the dump
  drakit explain claim/my-claim --from cluster.yaml
  drakit explain -f pod.yaml --from cluster.yaml   # a pod that does not exist yet
  drakit explain my-pod --kubeconfig ~/.kube/config --node worker-3 --output json

exit code: 0 it fits or has its devices, 1 it does not fit or waits for its devices, 2 invalid input
"""
_MOST_DETAILED: Final = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.epilog = EPILOG
    parser.add_argument("name", nargs="?", metavar="POD|CLAIM", help="NAME, pod/NAME or claim/NAME")
    add_options(parser)
    parser.add_argument("-f", "--filename", metavar="FILE", action="append", default=[],
                        help="file with a pod and its claims or templates")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Explain the pod or claim and print the result."""
    if options.name is None and not options.filename:
        options.name = _misplaced_name(options.sources)
    wanted = read_manifests(options.filename, options.namespace)
    cluster = read_cluster(options, wanted)
    pod = _subject(options, cluster, wanted)
    with cli_errors(ClaimNotFoundError, "add the object with -f or --from"):
        scheduling = prepare(cluster, pod)
    nodes = [n for n in cluster.nodes if options.node in (None, n.metadata.name)]
    nodes.sort(key=lambda n: n.metadata.name)
    pending = [c for c in scheduling.claims if c.status.allocation is None]
    if not pending and scheduling.claims:
        held = [_held_document(claim, bound=bool(pod.spec.node_name)) for claim in scheduling.claims]
        _print_held(pod, held, options.output)
        if any(result["waitsFor"] for claim in held for result in claim["results"]):
            return 1
        return _still_waiting(pod, scheduling, nodes, options.output)
    if scheduling.blocked:
        _print_blocked(pod, scheduling, options.output)
        return 1
    reports = _reports(scheduling, nodes)
    placement = choose(scheduling, tuple(r.answer for r in reports))
    if options.output == "json":
        print(json.dumps(_document(pod, placement, reports), indent=2))
    else:
        _print(pod, placement, reports)
    return 0 if placement.feasible else 1


def _misplaced_name(sources: list[str]) -> str | None:
    """Remove and return the last argument of ``--from`` if it is a name, not a file."""
    if len(sources) > 1 and sources[-1] != "-" and not os.path.exists(sources[-1]):
        return sources.pop()
    return None


def _subject(options: argparse.Namespace, cluster: ClusterSnapshot, wanted: Manifests) -> Pod:
    if options.name is None:
        if not options.filename:
            raise CliError("nothing to explain", "name a pod or a claim, or give a file with -f")
        return pod_of(wanted)
    kind, _, name = options.name.rpartition("/")
    if kind not in ("", "pod", "pods", "claim", "resourceclaim", "resourceclaims"):
        raise CliError(f"{options.name!r} is not a pod or a claim", "write pod/NAME or claim/NAME")
    wanted_name = (options.namespace, name)
    if not kind.startswith(("claim", "resourceclaim")):
        for pod in cluster.pods:
            if (pod.metadata.namespace, pod.metadata.name) == wanted_name:
                return pod
    if not kind.startswith("pod"):
        for claim in cluster.claims:
            if (claim.metadata.namespace, claim.metadata.name) == wanted_name:
                return _consumer(cluster, claim)
    raise CliError(
        f"no pod or claim {name!r} found in namespace {options.namespace!r}",
        "check the name and -n, or add the object with --from",
    )


def _consumer(cluster: ClusterSnapshot, claim: ResourceClaim) -> Pod:
    """Return the pod that uses *claim*, or a made-up one."""
    meta = claim.metadata
    for pod in cluster.pods:
        names = {use.resource_claim_name for use in pod.spec.resource_claims}
        names |= {status.resource_claim_name for status in pod.status.resource_claim_statuses}
        if pod.metadata.namespace == meta.namespace and meta.name in names:
            return pod
    return pod_using(f"any-user-of-{meta.name}", meta.namespace, [claim])


def _reports(scheduling: SchedulingCycle, nodes: list[Node]) -> list[NodeReport]:
    """Report on all nodes; with remedies for the most promising, because each takes a search."""
    reports = [explain.report(scheduling, node) for node in nodes]
    if any(r.answer.fits for r in reports) and not any(r.answer.fatal for r in reports):
        return reports
    order = sorted(
        (i for i, r in enumerate(reports) if r.considered and not r.answer.fits),
        key=lambda i: -sum(len(q.suitable) for q in reports[i].requests),
    )
    for i in order[:_MOST_DETAILED]:
        reports[i] = explain.with_remedies(scheduling, nodes[i], reports[i])
    return reports


def _document(pod: Pod, placement: SchedulingResult, reports: list[NodeReport]) -> dict[str, Any]:
    return {
        "pod": _name(pod),
        "feasible": placement.feasible,
        "node": placement.node,
        "reason": placement.reason,
        "nodes": [_node_document(r) for r in reports],
    }


def _node_document(report: NodeReport) -> dict[str, Any]:
    answer = report.answer
    return {
        "name": answer.name,
        "fits": answer.fits,
        "reason": answer.reason,
        "fatal": answer.fatal,
        "schedulerSteps": answer.steps,
        "schedulerTimesOut": answer.would_time_out,
        "findings": list(report.findings),
        "remedies": list(report.remedies),
        "brokenPools": list(report.broken_pools),
        "requests": [
            {
                "claim": r.claim,
                "request": r.request,
                "wanted": r.wanted,
                "suitable": list(r.suitable),
                "rejected": [
                    {"kind": g.kind, "reason": g.text, "devices": list(g.devices)} for g in r.rejections
                ],
            }
            for r in report.requests
        ],
    }


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _print_held(pod: Pod, held: list[dict[str, Any]], output: str) -> None:
    if output == "json":
        print(json.dumps({"pod": _name(pod), "claims": held}, indent=2))
        return
    where = f" on node {pod.spec.node_name}" if pod.spec.node_name else ""
    print(f"pod {_name(pod)} has its devices{where}:")
    for claim in held:
        print(f"  claim {claim['name']}")
        for result in claim["results"]:
            amounts = "".join(f", {v} {k}" for k, v in result["consumedCapacity"].items())
            print(f"    {result['request']}: {result['device']}{amounts}")
            for line in _waiting_lines(result):
                print(f"      {line}")


def _waiting_lines(result: dict[str, Any]) -> Iterator[str]:
    """Explain why the scheduler does not bind the pod to its allocated device (KEP-5007)."""
    for condition, message in result["failed"].items():
        yield f"failed: {condition}: {message}"
    if result["failed"]:
        yield "the scheduler deallocates the device and selects another"
    elif result["waitsFor"]:
        yield f"waits for {', '.join(result['waitsFor'])}: the driver has not set the condition yet"


def _held_document(claim: ResourceClaim, *, bound: bool) -> dict[str, Any]:
    allocation = claim.status.allocation
    return {
        "name": claim_name(claim),
        "results": [
            {
                "request": r.request,
                "device": f"{r.driver}/{r.pool}/{r.device}",
                "consumedCapacity": {k: str(v) for k, v in r.consumed_capacity.items()},
                **_conditions(claim, r, bound=bound),
            }
            for r in (allocation.devices.results if allocation else ())
        ],
    }


def _conditions(
    claim: ResourceClaim, result: DeviceRequestAllocationResult, *, bound: bool
) -> dict[str, Any]:
    """Return unmet binding conditions and failures; conditions are ignored once the pod is bound."""
    true = {} if bound else true_conditions(claim, result)
    missing = [] if bound else [each for each in result.binding_conditions if each not in true]
    failures = {each: true[each] for each in result.binding_failure_conditions if each in true}
    return {"waitsFor": missing, "failed": failures}


def _still_waiting(pod: Pod, scheduling: SchedulingCycle, nodes: list[Node], output: str) -> int:
    """Report if no node can run a pod whose claims are allocated."""
    if pod.spec.node_name or pod not in scheduling.cluster.pods or output == "json":
        return 0
    answers = {node.metadata.name: (node, check_node(scheduling, node)) for node in nodes}
    if any(answer.fits for _, answer in answers.values()):
        return 0
    print("but the pod fits on no node:")
    groups: dict[str, list[str]] = {}
    for name, (node, answer) in answers.items():
        reason = answer.reason
        if reason == NOT_AVAILABLE_ON_NODE:
            reason = "; ".join(explain.allocated_elsewhere_texts(scheduling, node)) or reason
        groups.setdefault(reason, []).append(name)
    for reason, names in groups.items():
        print(f"  {_names(names)}: {reason}")
    return 1


def _print_blocked(pod: Pod, scheduling: SchedulingCycle, output: str) -> None:
    reason = scheduling.blocked
    if output == "json":
        print(json.dumps(_document(pod, SchedulingResult(False, None, reason), []), indent=2))
    else:
        print(f"pod {_name(pod)} cannot be scheduled on any node: {reason}")
        if "device class" in reason:
            known = sorted(c.metadata.name for c in scheduling.cluster.classes)
            print(f"  existing device classes: {shortened(known) or 'none'}")
            print("  correct deviceClassName, or install the class: it comes with the driver")


def _print(pod: Pod, placement: SchedulingResult, reports: list[NodeReport]) -> None:
    if placement.feasible:
        fitting = [r.answer.name for r in reports if r.answer.fits]
        of = f"{len(fitting)} of {len(reports)} nodes"
        print(f"pod {_name(pod)} fits on {of}: {shortened(fitting)}")
        return
    nodes = "the only node" if len(reports) == 1 else f"any of {len(reports)} nodes"
    print(f"pod {_name(pod)} does not fit on {nodes}")
    excluded: dict[str, list[str]] = {}
    alike: dict[tuple[Any, ...], list[NodeReport]] = {}
    for report in reports:
        if not report.considered:
            excluded.setdefault(report.answer.reason, []).append(report.answer.name)
        else:
            alike.setdefault(_signature(report), []).append(report)
    for group in sorted(alike.values(), key=lambda g: -len(g[0].remedies)):
        best = max(group, key=lambda r: len(r.remedies))
        _print_node(best, [r.answer.name for r in group])
    for reason, names in excluded.items():
        print(f"\n{_names(names)}: {reason}")


def _signature(report: NodeReport) -> tuple[Any, ...]:
    return (
        report.findings,
        report.answer.fits,
        tuple(
            (r.request, r.wanted, len(r.suitable), tuple((g.text, len(g.devices)) for g in r.rejections))
            for r in report.requests
        ),
    )


def _print_node(report: NodeReport, names: list[str]) -> None:
    print(f"\n{_names(names)}")
    for finding in report.findings:
        print(f"  ✗ {finding}")
    if report.answer.fits:
        print("  ✓ it would fit here, but the error on the other node stops scheduling")
    if report.answer.effort:
        print(f"  ! {report.answer.effort}")
    for pool in report.broken_pools:
        print(f"  ! {pool}; the pool is not used until its driver has published all of it")
    for request in report.requests:
        _print_request(request)
    if report.remedies:
        print("  it would fit if you")
        for remedy in report.remedies:
            print(f"    • {remedy}")


def _print_request(request: RequestReport) -> None:
    wanted = "all" if request.wanted is None else str(request.wanted)
    count = len(request.suitable)
    qualify = "none qualifies" if count == 0 else f"{count} qualif{'y' if count > 1 else 'ies'}"
    print(f"  request {request.request} of claim {request.claim}: wants {wanted}, "
          f"{qualify}{_listed(request.suitable)}")  # fmt: skip
    for group in request.rejections:
        print(f"    {len(group.devices):>4} × {group.text}{_listed(group.devices)}")


def _listed(names: tuple[str, ...]) -> str:
    return f" ({shortened(names)})" if names else ""


def _names(names: list[str]) -> str:
    return f"node {names[0]}" if len(names) == 1 else f"{len(names)} nodes ({shortened(names)})"
