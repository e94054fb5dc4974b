"""Claims on this machine without a cluster: the implementation of ``drakit run``.

The driver, the scheduler model and the checkpoint are the same as on a Kubernetes node. Without kubelet and
container runtime, a command is started directly on the CPUs of its claim.
"""
