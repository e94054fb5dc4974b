"""The test bed: a real Kubernetes cluster on one small machine, as a library.

``docs/developers/testbed.md`` is the guide; ``tests/e2e/versions.toml`` says what is
built, ``tests/e2e/shapes.toml`` what the nodes look like.
"""
