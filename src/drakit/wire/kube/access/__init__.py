"""Access to an API server: kubeconfig, in-cluster configuration, credentials and TLS."""
