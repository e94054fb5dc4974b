"""One snapshot of a cluster, put together from files and the API server."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

from drakit.cluster.manifests import Manifests, read_manifests
from drakit.core.kubernetes_releases import LATEST, KubernetesRelease
from drakit.scheduler.placement import ClusterSnapshot


def load_cluster(
    paths: Iterable[str] = (),
    *more: Manifests,
    live: bool = False,
    kubeconfig: str | None = None,
    context: str | None = None,
    namespace: str = "default",
    release: KubernetesRelease = LATEST,
    warn: Callable[[str], None] = warnings.warn,
) -> ClusterSnapshot:
    """Return the cluster of the objects in *paths* and *more*; with *live*, also of the API server.

    A later object replaces an earlier one of the same name. *namespace* is that of objects that name
    none. *warn* receives what is missing from an incomplete answer of the API server. Raises
    :class:`~drakit.cluster.ClusterError`.
    """
    found = Manifests()
    if live:
        from drakit.cluster.live import read_live

        found = read_live(kubeconfig, context, namespace, warn)
    found.found += read_manifests(paths, namespace).found
    return found.cluster(release, *more)
