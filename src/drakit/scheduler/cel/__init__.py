"""The Common Expression Language as Kubernetes evaluates it for devices."""
