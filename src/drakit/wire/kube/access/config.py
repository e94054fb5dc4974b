"""Which API server, believed how, as whom: from the pod's mount or from a kubeconfig."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from drakit.wire.kube.access.credentials import Credential, CredentialSource, Fixed, TokenFile
from drakit.wire.kube.access.endpoint import Endpoint
from drakit.wire.kube.access.tls import AuthorityFile, SystemTrust, Trust
from drakit.wire.kube.errors import ConfigError

SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Everything needed to talk to one API server."""

    endpoint: Endpoint
    credentials: CredentialSource
    trust: Trust = SystemTrust()
    server_name: str | None = None
    """Name to expect in the server's certificate, when it is not the host's."""
    namespace: str = "default"
    origin: str = ""
    """Where this came from, for messages."""

    @classmethod
    def plain(cls, url: str, *, token: str | None = None) -> ClusterAccess:
        """A server at *url* with the system's trust and perhaps a token; for tests and proxies."""
        return cls(Endpoint.parse(url), Fixed(Credential(token)), origin=url)


def in_cluster(
    environ: Mapping[str, str] = os.environ, *, mount: str = SERVICE_ACCOUNT
) -> ClusterAccess:
    """The cluster this pod runs in: address from the environment, the rest from the mount.

    Raises :class:`ConfigError` when this is no pod, or its token is not mounted.
    """
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ConfigError(
            "not in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"
        )
    token, authority = os.path.join(mount, "token"), os.path.join(mount, "ca.crt")
    for path in (token, authority):
        if not os.path.exists(path):
            raise ConfigError(
                f"{path} does not exist: is automountServiceAccountToken off for this pod?"
            )
    try:
        with open(os.path.join(mount, "namespace"), encoding="utf-8") as file:
            namespace = file.read().strip()
    except OSError:
        namespace = ""
    host = f"[{host}]" if ":" in host else host
    return ClusterAccess(
        Endpoint.parse(f"https://{host}:{port}"),
        TokenFile(token),
        AuthorityFile(authority),
        namespace=namespace or "default",
        origin="in-cluster",
    )


def find_cluster(
    *,
    kubeconfig: str | None = None,
    context: str | None = None,
    environ: Mapping[str, str] = os.environ,
    mount: str = SERVICE_ACCOUNT,
) -> ClusterAccess:
    """The cluster meant: *kubeconfig*, else ``$KUBECONFIG``, else the pod's, else ``~/.kube/config``.

    Raises :class:`ConfigError` that says where it looked.
    """
    if kubeconfig:
        return _from_files((kubeconfig,), context)
    if named := environ.get("KUBECONFIG", ""):
        return _from_files(tuple(path for path in named.split(":") if path), context)
    if environ.get("KUBERNETES_SERVICE_HOST") and os.path.exists(os.path.join(mount, "token")):
        return in_cluster(environ, mount=mount)
    home = os.path.join(environ.get("HOME", ""), ".kube", "config")
    if os.path.exists(home):
        return _from_files((home,), context)
    raise ConfigError(
        f"no cluster: neither --kubeconfig nor KUBECONFIG is set, this is no pod, and {home} does not exist"
    )


def _from_files(paths: tuple[str, ...], context: str | None) -> ClusterAccess:
    from drakit.wire.kube.access.kubeconfig import (
        load,  # brings YAML, which the daemon does without
    )

    return load(paths, context=context)
