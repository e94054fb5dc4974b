"""The outside protocols, each alone: ``kubelet``, ``kube``, ``nri`` and ``cdi``."""
