"""Verification of a node's cgroups against the checkpoint, independent of the running driver.

The driver knows its containers from the runtime and repairs drift. This check is for administrators and
scripts that do not rely on it: it reads only the checkpoint and the kernel's files, and changes nothing.
"""
