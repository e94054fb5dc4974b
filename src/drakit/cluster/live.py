"""Objects of a live cluster, read through a kubeconfig; nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from drakit.cluster.conversion import ClusterError
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
"""Kinds for which the objects of the pod's own namespace are enough for an answer."""


def read_live(
    kubeconfig: str | None, context: str | None, namespace: str, warn: Callable[[str], None]
) -> Manifests:
    """Read all objects the scheduler uses. Raises :class:`ClusterError` if some cannot be read.

    Without the permission to list pods of the whole cluster, only those of *namespace* are read.
    """
    try:
        cluster = find_cluster(kubeconfig=kubeconfig, context=context)
    except ConfigError as error:
        raise ClusterError(str(error), "check the kubeconfig and the context") from None
    kinds = (NODES, SLICES, CLASSES, CLAIMS, CLAIM_TEMPLATES, PODS, TAINT_RULES)
    answers = dict(read_all(cluster, *kinds))
    answers.update(_of_namespace(cluster, answers, namespace, warn))
    found = Manifests()
    for plural, answer in answers.items():
        if answer.error is not None:
            _report(plural, answer.error, warn)
        for entry in answer.objects:
            document = {"kind": entry.resource.kind, **entry.raw}
            found.found += objects_of(document, "the cluster", 0, namespace)
    return found


def _of_namespace(
    cluster: ClusterAccess, answers: Mapping[str, ListResult], namespace: str, warn: Callable[[str], None]
) -> Mapping[str, ListResult]:
    rejected = [r for r in _PER_NAMESPACE if isinstance(answers[r.plural].error, ForbiddenError)]
    if not rejected:
        return {}
    warn(
        f"only {' and '.join(r.plural for r in rejected)} of namespace {namespace} can be read; "
        "CPU and memory requests of other pods are not counted"
    )
    return read_all(cluster, *rejected, namespace=namespace)


def _report(plural: str, error: KubeError, warn: Callable[[str], None]) -> None:
    """Raise for a kind that could not be read; only warn for one that is not required."""
    if plural == TAINT_RULES.plural:
        if not isinstance(error, NotFoundError):  # not served before 1.37
            warn(f"{plural} cannot be read ({error}); the taints they set are ignored")
        return
    remedy = "check your permissions"
    if isinstance(error, ConnectionFailedError):
        remedy = "check that the server of the kubeconfig can be reached from here"
    elif isinstance(error, UnauthorizedError | CredentialError):
        remedy = "check the credentials of the kubeconfig; they may have expired"
    elif isinstance(error, ForbiddenError):
        remedy = (
            "ask for permission to list them, or for a dump by someone who has it: `kubectl get "
            "nodes,resourceslices,deviceclasses,devicetaintrules,resourceclaims,pods -A -o json`; "
            "then pass the dump with --from"
        )
    elif isinstance(error, NotFoundError):
        remedy = "the cluster does not serve resource.k8s.io/v1: it needs Kubernetes 1.34 or later"
    raise ClusterError(f"cannot list {plural}: {error}", remedy)
