"""Kubeconfig files, as JSON (which every reader of YAML accepts)."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from .certificates import KeyPair


def _document(server: str, authority: Path, user: dict[str, Any]) -> str:
    cluster = {"server": server, "certificate-authority-data": _embedded(authority)}
    context = {"cluster": "drakit-e2e", "user": "user"}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "drakit-e2e", "cluster": cluster}],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "drakit-e2e", "context": context}],
            "current-context": "drakit-e2e",
        },
        indent=1,
    )


def _embedded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def with_certificate(server: str, authority: Path, pair: KeyPair) -> str:
    """A kubeconfig that authenticates by client certificate."""
    return _document(
        server,
        authority,
        {"client-certificate-data": _embedded(pair.certificate), "client-key-data": _embedded(pair.key)},
    )


def with_token_file(server: str, authority: Path, token_file: str) -> str:
    """A kubeconfig that reads a bearer token from a file each time it is needed."""
    return _document(server, authority, {"tokenFile": token_file})
