"""Cluster snapshots: nodes, ResourceSlices, claims and pods, from files or a live API server.

:func:`load_cluster` returns the value that :func:`drakit.scheduler.placement.place` works on::

    cluster = load_cluster(["dump.yaml", "manifests/"])

Every function raises :class:`ClusterError` for input that cannot be read or is not valid.
"""

from __future__ import annotations

from drakit.cluster.conversion import ClusterError
from drakit.cluster.manifests import Manifest, Manifests, read_manifests
from drakit.cluster.snapshot import load_cluster
from drakit.cluster.workload import ClaimFile, pod_of, pod_using, read_claims

__all__ = [
    "ClaimFile",
    "ClusterError",
    "Manifest",
    "Manifests",
    "load_cluster",
    "pod_of",
    "pod_using",
    "read_claims",
    "read_manifests",
]
