"""Verification of a node's cgroups against the checkpoint, independent of the running driver. Reads only."""
