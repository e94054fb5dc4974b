"""drakit: Dynamic Resource Allocation for a Kubernetes node's own resources."""

__version__ = "0.1.0"
