"""Comparing the cgroups of a node with what the checkpoint says they must be, from outside.

The daemon knows its containers from the runtime and repairs what differs. This is for people and
scripts who do not believe it: nothing is asked but the checkpoint and the kernel, and nothing is changed.
"""
