"""The cluster itself as a source of objects, read-only, through a kubeconfig."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from drakit.cli.errors import Problem
from drakit.cluster.manifests import Manifests, objects_of
from drakit.wire.kube import (
    CLAIM_TEMPLATES,
    CLAIMS,
    CLASSES,
    NODES,
    PODS,
    SLICES,
    TAINT_RULES,
    ClusterAccess,
    ConfigError,
    ConnectionFailedError,
    CredentialError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    UnauthorizedError,
    find_cluster,
    read_all,
)
from drakit.wire.kube.watch.snapshot import ListResult

_PER_NAMESPACE: Final = (PODS, CLAIM_TEMPLATES)
"""Kinds of which those beside the pod will do: its own, and what the node's resources are used for."""


def read_live(kubeconfig: str | None, context: str | None, namespace: str) -> Manifests:
    """All objects the scheduler looks at. Raises :class:`Problem` if some cannot be read.

    Who may not list pods of the whole cluster gets along with those of *namespace*.
    """
    try:
        cluster = find_cluster(kubeconfig=kubeconfig, context=context)
    except ConfigError as error:
        raise Problem(str(error), "check --kubeconfig and --context") from None
    kinds = (NODES, SLICES, CLASSES, CLAIMS, CLAIM_TEMPLATES, PODS, TAINT_RULES)
    answers = dict(read_all(cluster, *kinds))
    answers.update(_of_namespace(cluster, answers, namespace))
    found = Manifests()
    for plural, answer in answers.items():
        if answer.error is not None:
            _complain(plural, answer.error)
        for entry in answer.objects:
            document = {"kind": entry.resource.kind, **entry.raw}
            found.found += objects_of(document, "the cluster", 0, namespace)
    return found


def _of_namespace(
    cluster: ClusterAccess, answers: Mapping[str, ListResult], namespace: str
) -> Mapping[str, ListResult]:
    rejected = [r for r in _PER_NAMESPACE if isinstance(answers[r.plural].error, ForbiddenError)]
    if not rejected:
        return {}
    _note(
        f"only {' and '.join(r.plural for r in rejected)} of namespace {namespace} can be read; "
        "what other pods request of CPU and memory is not counted"
    )
    return read_all(cluster, *rejected, namespace=namespace)


def _complain(plural: str, error: KubeError) -> None:
    """Say what it means that a kind could not be read; returns where one can do without."""
    if plural == TAINT_RULES.plural:
        if not isinstance(error, NotFoundError):  # not served before 1.37
            _note(f"{plural} cannot be read ({error}); devices they taint are taken for healthy")
        return
    way_out = "check your permissions"
    if isinstance(error, ConnectionFailedError):
        way_out = "check that the server of the kubeconfig can be reached from here"
    elif isinstance(error, UnauthorizedError | CredentialError):
        way_out = "check the credentials of the kubeconfig; they may have expired"
    elif isinstance(error, ForbiddenError):
        way_out = (
            "ask for the right to list it, or ask somebody who has it for a dump: `kubectl get "
            "nodes,resourceslices,deviceclasses,devicetaintrules,resourceclaims,pods -A -o json`; "
            "then use --from"
        )
    elif isinstance(error, NotFoundError):
        way_out = "this cluster does not serve resource.k8s.io/v1: Kubernetes 1.34 or later does"
    raise Problem(f"cannot list {plural}: {error}", way_out)


def _note(text: str) -> None:
    print(f"drakit: {text}", file=sys.stderr)
