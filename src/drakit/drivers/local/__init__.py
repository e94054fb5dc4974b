"""DRA on one machine without a cluster: what ``drakit run`` is made of.

The same driver, the same scheduler model and the same ledger as on a node; only the kubelet and the
container runtime are missing: a command is started on its claim's CPUs directly.
"""
