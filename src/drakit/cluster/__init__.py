"""Cluster snapshots: nodes, ResourceSlices, claims and pods, from files or a live API server."""
