"""The test cluster: a real Kubernetes cluster on one small machine, as a library.

``docs/developers/testbed.md`` is the guide; ``tests/e2e/versions.toml`` pins the
versions, ``tests/e2e/shapes.toml`` defines the nodes.
"""
