"""CEL functions and value types of the Kubernetes environment."""
