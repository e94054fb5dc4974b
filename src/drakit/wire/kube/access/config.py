"""Discovery of the API server: in-cluster configuration or kubeconfig."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from drakit.wire.kube.access.credentials import Credential, CredentialSource, Fixed, TokenFile
from drakit.wire.kube.access.endpoint import Endpoint
from drakit.wire.kube.access.tls import Trust
from drakit.wire.kube.errors import ConfigError

SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Address, credentials and trust of an API server."""

    endpoint: Endpoint
    credentials: CredentialSource
    trust: Trust = Trust()
    server_name: str | None = None
    """Name in the server's certificate, if it differs from the host."""
    namespace: str = "default"
    origin: str = ""
    """Source of this configuration, for messages."""

    @classmethod
    def plain(cls, url: str, *, token: str | None = None) -> ClusterAccess:
        """A server at *url* with the system's trust; for tests and proxies."""
        return cls(Endpoint.parse(url), Fixed(Credential(token)), origin=url)


def in_cluster(environ: Mapping[str, str] = os.environ, *, mount: str = SERVICE_ACCOUNT) -> ClusterAccess:
    """The cluster of this pod; raises :class:`ConfigError` outside of a pod or without a token."""
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ConfigError("not in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    token, authority = os.path.join(mount, "token"), os.path.join(mount, "ca.crt")
    for path in (token, authority):
        if not os.path.exists(path):
            raise ConfigError(f"{path} does not exist: check automountServiceAccountToken of this pod")
    try:
        with open(os.path.join(mount, "namespace"), encoding="utf-8") as file:
            namespace = file.read().strip()
    except OSError:
        namespace = ""
    host = f"[{host}]" if ":" in host else host
    return ClusterAccess(
        Endpoint.parse(f"https://{host}:{port}"),
        TokenFile(token),
        Trust(file=authority),
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
    """The cluster of *kubeconfig*, ``$KUBECONFIG``, this pod or ``~/.kube/config``, in this order.

    Raises :class:`ConfigError` when none of them exists.
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
        "no cluster: neither --kubeconfig nor KUBECONFIG is set, this is not a pod, "
        f"and {home} does not exist"
    )


def _from_files(paths: tuple[str, ...], context: str | None) -> ClusterAccess:
    from drakit.wire.kube.access.kubeconfig import load  # imports YAML, which a driver in a pod does not need

    return load(paths, context=context)
