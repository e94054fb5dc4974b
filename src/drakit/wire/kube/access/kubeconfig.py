"""Kubeconfig files, read as ``kubectl`` does.

If several files define a name, the first one wins; relative paths are relative to their file, and
inline data takes precedence over a path.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from drakit.core.log import get_logger
from drakit.core.objects import without_nulls
from drakit.wire.kube.access.config import ClusterAccess
from drakit.wire.kube.access.credentials import Certificate, Credential, CredentialSource, Fixed, TokenFile
from drakit.wire.kube.access.endpoint import Endpoint
from drakit.wire.kube.access.exec_plugin import API_VERSIONS, ExecCommand, ExecPlugin
from drakit.wire.kube.access.tls import Trust
from drakit.wire.kube.errors import ConfigError

log = get_logger(__name__)


class _Struct(msgspec.Struct, rename="kebab", frozen=True):
    """Most kubeconfig names have hyphens; exceptions are named explicitly."""


class _Cluster(_Struct, frozen=True):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _Variable(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class _Exec(msgspec.Struct, rename="camel", frozen=True):
    command: str
    args: tuple[str, ...] | None = None
    env: tuple[_Variable, ...] | None = None
    api_version: str = ""
    provide_cluster_info: bool = False
    install_hint: str = ""


class _User(_Struct, frozen=True):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    exec: _Exec | None = None
    auth_provider: Any = None
    username: str = ""


class _KubeContext(_Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _NamedCluster(_Struct, frozen=True):
    name: str
    cluster: _Cluster = _Cluster()


class _NamedUser(_Struct, frozen=True):
    name: str
    user: _User | None = None


class _NamedContext(_Struct, frozen=True):
    name: str
    context: _KubeContext = _KubeContext()


class _Kubeconfig(_Struct, frozen=True):
    current_context: str = ""
    clusters: tuple[_NamedCluster, ...] | None = None
    users: tuple[_NamedUser, ...] | None = None
    contexts: tuple[_NamedContext, ...] | None = None


class _At(NamedTuple):
    """A part of a kubeconfig and its file."""

    path: str
    part: Any

    def resolve(self, path: str) -> str:
        return os.path.join(os.path.dirname(os.path.abspath(self.path)), path)


def load(paths: Sequence[str], *, context: str | None = None) -> ClusterAccess:
    """The cluster of *context* (or of ``current-context``) in *paths*.

    Raises :class:`ConfigError` naming file and field when something is missing or malformed.
    """
    shown = ":".join(paths)
    files = [(path, _read(path)) for path in paths if len(paths) == 1 or os.path.exists(path)]
    if not files:
        raise ConfigError(f"kubeconfig {shown}: no such file")
    name = context or next((f.current_context for _, f in files if f.current_context), "")
    if not name:
        raise ConfigError(f"kubeconfig {shown}: no current-context; name one with --context")
    chosen = _find("context", name, shown, [_At(p, c) for p, f in files for c in f.contexts or ()])
    wanted: _KubeContext = chosen.part.context
    cluster = _find("cluster", wanted.cluster, shown, [_At(p, c) for p, f in files for c in f.clusters or ()])
    user = _At(cluster.path, _NamedUser("", _User()))
    if wanted.user:
        user = _find("user", wanted.user, shown, [_At(p, u) for p, f in files for u in f.users or ()])
    return _cluster(_At(cluster.path, cluster.part.cluster), user, wanted, f"{shown} ({name})")


def _find(what: str, name: str, shown: str, among: list[_At]) -> _At:
    for candidate in among:
        if candidate.part.name == name:
            return candidate
    known = ", ".join(sorted({c.part.name for c in among})) or "none"
    raise ConfigError(f"kubeconfig {shown}: there is no {what} {name!r} (there are: {known})")


def _read(path: str) -> _Kubeconfig:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigError(f"kubeconfig {path}: {error.strerror}") from error
    try:
        decode = msgspec.json.decode if data.lstrip()[:1] == b"{" else msgspec.yaml.decode
        document: Any = decode(data)
        return msgspec.convert(without_nulls(document or {}), _Kubeconfig)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"kubeconfig {path}: {error}") from error


def _cluster(cluster: _At, user: _At, context: _KubeContext, origin: str) -> ClusterAccess:
    part: _Cluster = cluster.part
    if part.proxy_url:
        raise ConfigError(f"kubeconfig {cluster.path}: proxy-url is not supported")
    if not part.server:
        raise ConfigError(f"kubeconfig {cluster.path}: cluster {context.cluster!r} has no server")
    return ClusterAccess(
        Endpoint.parse(part.server),
        _credentials(_At(user.path, user.part.user or _User()), cluster),
        _trust(cluster),
        part.tls_server_name or None,
        context.namespace or "default",
        origin,
    )


def _trust(cluster: _At) -> Trust:
    part: _Cluster = cluster.part
    if part.insecure_skip_tls_verify:
        log.warning(
            "TLS verification is disabled by insecure-skip-tls-verify", path=cluster.path, server=part.server
        )
        return Trust(insecure=True)
    if part.certificate_authority_data:
        pem = _decode(part.certificate_authority_data, cluster.path, "certificate-authority-data")
        return Trust(data=pem.decode("utf-8", "replace"))
    if part.certificate_authority:
        return Trust(file=cluster.resolve(part.certificate_authority))
    return Trust()


def _credentials(user: _At, cluster: _At) -> CredentialSource:
    part: _User = user.part
    if part.auth_provider is not None:
        raise ConfigError(
            f"kubeconfig {user.path}: auth-provider was removed from Kubernetes; use an exec plugin"
        )
    if part.username:
        raise ConfigError(f"kubeconfig {user.path}: basic authentication is not supported")
    certificate = _certificate(user)
    if part.exec is not None:
        return ExecPlugin(_exec(user, cluster))
    if part.token_file:
        return TokenFile(user.resolve(part.token_file), certificate=certificate)
    return Fixed(Credential(part.token or None, certificate))


def _certificate(user: _At) -> Certificate | None:
    part: _User = user.part
    certificate = _content(part.client_certificate_data, part.client_certificate, user, "client-certificate")
    key = _content(part.client_key_data, part.client_key, user, "client-key")
    if (certificate is None) != (key is None):
        raise ConfigError(f"kubeconfig {user.path}: client-certificate and client-key must both be set")
    if certificate is None or key is None:
        return None
    return Certificate(certificate, key)


def _content(data: str, path: str, at: _At, field: str) -> bytes | None:
    if data:
        return _decode(data, at.path, f"{field}-data")
    if not path:
        return None
    resolved = at.resolve(path)
    try:
        with open(resolved, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"kubeconfig {at.path}: {field} {resolved}: {error.strerror}") from error


def _decode(data: str, path: str, field: str) -> bytes:
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except binascii.Error as error:
        raise ConfigError(f"kubeconfig {path}: {field} is not valid base64: {error}") from error


def _exec(user: _At, cluster: _At) -> ExecCommand:
    wanted: _Exec = user.part.exec
    version = wanted.api_version
    if version not in API_VERSIONS:
        raise ConfigError(
            f"kubeconfig {user.path}: exec apiVersion {version!r} is not supported "
            f"(want {' or '.join(API_VERSIONS)})"
        )
    # A name without slash is searched in PATH; otherwise it is relative to the kubeconfig.
    command = user.resolve(wanted.command) if "/" in wanted.command else wanted.command
    info = None
    if wanted.provide_cluster_info:
        part: _Cluster = cluster.part
        known = {
            "server": part.server,
            "tls-server-name": part.tls_server_name,
            "certificate-authority-data": part.certificate_authority_data,
            "insecure-skip-tls-verify": part.insecure_skip_tls_verify,
        }
        info = {key: value for key, value in known.items() if value}
    return ExecCommand(
        command,
        wanted.args or (),
        {variable.name: variable.value for variable in wanted.env or ()},
        version,
        info,
        wanted.install_hint,
    )
