"""Options of the commands that work on a cluster snapshot."""

from __future__ import annotations

import argparse
import sys

from drakit.cli.errors import CliError
from drakit.cluster import Manifests, load_cluster
from drakit.core.kubernetes_releases import LATEST, RELEASES
from drakit.scheduler.placement import ClusterSnapshot

_RELEASES = tuple(r.name for r in reversed(RELEASES.values()) if r.minor <= LATEST.minor)
DUMP_COMMAND = "kubectl get nodes,resourceslices,deviceclasses,resourceclaims -A -o yaml"


def add_output(parser: argparse.ArgumentParser, *, help_from: str) -> None:
    """Add ``--from``, ``--namespace`` and ``--output``."""
    parser.add_argument(
        "--from", dest="sources", metavar="FILE_OR_DIR", nargs="+", action="extend", default=[],
        help=help_from,
    )  # fmt: skip
    parser.add_argument("-n", "--namespace", default="default", help="namespace of objects that name none")
    parser.add_argument("--output", choices=("text", "json"), default="text")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the cluster and the node."""
    add_output(parser, help_from="cluster objects: YAML or JSON files, directories, or - for standard input")
    parser.add_argument("--kubeconfig", help="read from this cluster (nothing is written)")
    parser.add_argument("--context", help="context of the kubeconfig")
    parser.add_argument(
        "--kubernetes-version", choices=_RELEASES, default=LATEST.name,
        help="version of the scheduler to simulate (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--node", help="consider only this node")


def read_cluster(options: argparse.Namespace, *more: Manifests) -> ClusterSnapshot:
    """Load the cluster that *options* select, with the objects of *more* files added."""
    cluster = load_cluster(
        options.sources,
        *more,
        live=bool(options.kubeconfig or options.context),
        kubeconfig=options.kubeconfig,
        context=options.context,
        namespace=options.namespace,
        release=RELEASES[options.kubernetes_version],
        warn=lambda text: print(f"drakit: {text}", file=sys.stderr),
    )
    if not cluster.nodes:
        raise CliError(
            "the given objects contain no nodes",
            f"add them with --from, for example the output of `{DUMP_COMMAND}`",
        )
    if options.node and options.node not in {node.metadata.name for node in cluster.nodes}:
        raise CliError(
            f"the given objects contain no node {options.node!r}",
            "check --node, or add the Node object with --from",
        )
    return cluster
