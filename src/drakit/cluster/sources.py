"""Where the cluster and the pod of ``drakit plan`` and ``drakit explain`` come from."""

from __future__ import annotations

import argparse
import os
from typing import Final

from drakit.cli.errors import Problem
from drakit.cluster import manifests
from drakit.core.kubernetes_releases import LATEST, RELEASES
from drakit.core.objects import ObjectMeta
from drakit.core.pods import Pod, PodContainer, PodResourceClaim, PodSpec
from drakit.scheduler.placement import ClusterSnapshot

_RELEASES: Final = tuple(r.name for r in reversed(RELEASES.values()) if r.minor <= LATEST.minor)


def add_sources(parser: argparse.ArgumentParser) -> None:
    """The options that say which cluster is meant."""
    parser.add_argument(
        "--from", dest="sources", metavar="FILE_OR_DIR", nargs="+", action="extend", default=[],
        help="objects of the cluster: YAML or JSON files, directories, or - for standard input",
    )  # fmt: skip
    parser.add_argument("--kubeconfig", help="read the cluster itself (read-only) instead")
    parser.add_argument("--context", help="the context of the kubeconfig")
    parser.add_argument("-n", "--namespace", default="default", help="for objects that name none")
    parser.add_argument(
        "--kubernetes-version", choices=_RELEASES, default=LATEST.name,
        help="whose scheduler to follow (default: %(default)s)",
    )  # fmt: skip


def read_cluster(options: argparse.Namespace, *more: manifests.Manifests) -> ClusterSnapshot:
    """The cluster the options mean, with the objects of *more* files added."""
    release = RELEASES[options.kubernetes_version]
    if options.kubeconfig or options.context:
        from drakit.cluster.live import read_live

        base = read_live(options.kubeconfig, options.context, options.namespace)
        if options.sources:
            base.found += manifests.read(options.sources, options.namespace).found
    elif options.sources:
        base = manifests.read(options.sources, options.namespace)
    else:
        base = manifests.Manifests()
    cluster = base.cluster(release, *more)
    if not cluster.nodes:
        raise Problem(
            "there are no nodes in the given objects",
            "give them with --from, for example the output of "
            "`kubectl get nodes,resourceslices,deviceclasses,resourceclaims -A -o json`",
        )
    return cluster


def misplaced_name(sources: list[str]) -> str | None:
    """A last word behind ``--from`` that is no file: somebody meant it as a name. It is taken out."""
    if len(sources) > 1 and sources[-1] != "-" and not os.path.exists(sources[-1]):
        return sources.pop()
    return None


def the_pod(wanted: manifests.Manifests) -> Pod:
    """The one pod of the given files; bare claims make a pod that uses them all."""
    pods = wanted.values("Pod")
    if len(pods) > 1:
        names = ", ".join(p.metadata.name for p in pods)
        raise Problem(f"there are several pods: {names}", "give one pod with -f")
    if pods:
        pod: Pod = pods[0]
        return pod
    claims = wanted.values("ResourceClaim")
    templates = wanted.values("ResourceClaimTemplate")
    if not claims and not templates:
        raise Problem("there is no pod and no claim in the given files", "give a pod with -f")
    first = (*claims, *templates)[0]
    uses = [PodResourceClaim(name=c.metadata.name, resource_claim_name=c.metadata.name)
            for c in claims]  # fmt: skip
    uses += [
        PodResourceClaim(name=t.metadata.name, resource_claim_template_name=t.metadata.name)
        for t in templates
    ]
    return Pod(
        metadata=ObjectMeta(name="pod", namespace=first.metadata.namespace),
        spec=PodSpec(containers=(PodContainer(name="main"),), resource_claims=tuple(uses)),
    )
