"""Small client of the Kubernetes API for tests: apply, get, list, delete, without watches.

Tests poll (``waiting.wait_for``), so there is no watch and no cache; every response is the current
state of the API server.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from .certificates import KeyPair

Manifest = dict[str, Any]


class ApiError(Exception):
    """The API server returned an error; ``status`` is the HTTP status, the text its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """One API server, as one user; each call is one verified TLS connection."""

    def __init__(self, host: str, port: int, authority: Path, user: KeyPair | None, token: str = "") -> None:
        self._host, self._port, self._token = host, port, token
        self._authority = authority
        self._tls = ssl.create_default_context(cafile=str(authority))
        if user is not None:
            self._tls.load_cert_chain(user.certificate, user.key)
        self._kinds: dict[tuple[str, str], tuple[str, bool]] = {}

    def as_bearer(self, token: str) -> Api:
        """The same server, with the identity of this token."""
        return Api(self._host, self._port, self._authority, None, token)

    def raw(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        limit: float = 60.0,
    ) -> bytes:
        """One request; the body goes out as JSON. Raises ``ApiError`` on a status ≥ 400."""
        connection = http.client.HTTPSConnection(self._host, self._port, context=self._tls, timeout=limit)
        headers = {"Accept": "application/json", "Content-Type": content_type}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
            response = connection.getresponse()
            content = response.read()
        except (http.client.HTTPException, ssl.SSLError) as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        if response.status >= 400:
            raise ApiError(response.status, f"{method} {path}: {_message(content)}")
        return content

    def call(self, method: str, path: str, body: object = None, **options: Any) -> Any:
        """Like ``raw``, with the JSON answer decoded."""
        return json.loads(self.raw(method, path, body, **options))

    def path(self, api_version: str, kind: str, namespace: str = "", name: str = "") -> str:
        """The URL path of an object or, without ``name``, of its collection."""
        plural, namespaced = self._resource(api_version, kind)
        root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
        inside = f"/namespaces/{namespace}" if namespaced and namespace else ""
        return f"{root}{inside}/{plural}" + (f"/{name}" if name else "")

    def _resource(self, api_version: str, kind: str) -> tuple[str, bool]:
        if (api_version, kind) not in self._kinds:
            root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
            for entry in self.call("GET", root)["resources"]:
                if "/" not in entry["name"]:
                    found = (entry["name"], entry["namespaced"])
                    self._kinds[(api_version, entry["kind"])] = found
        try:
            return self._kinds[(api_version, kind)]
        except KeyError:
            raise ApiError(404, f"the server has no {kind} in {api_version}") from None

    def apply(self, manifests: Iterable[Manifest], namespace: str = "") -> list[Manifest]:
        """Server-side apply each manifest in order; ``namespace`` is the default."""
        query = "?" + urlencode({"fieldManager": "drakit-e2e", "force": "true"})
        applied = []
        for manifest in manifests:
            metadata = manifest["metadata"]
            where = metadata.get("namespace") or namespace
            path = self.path(manifest["apiVersion"], manifest["kind"], where, metadata["name"])
            kind = "application/apply-patch+yaml"
            applied.append(self.call("PATCH", path + query, manifest, content_type=kind))
        return applied

    def create(self, manifest: Manifest, namespace: str = "") -> Manifest:
        """Create one object (needed for ``generateName``)."""
        where = manifest["metadata"].get("namespace") or namespace
        path = self.path(manifest["apiVersion"], manifest["kind"], where)
        created: Manifest = self.call("POST", path, manifest)
        return created

    def get(self, api_version: str, kind: str, name: str, namespace: str = "") -> Manifest:
        """One object; ``ApiError`` 404 if it does not exist."""
        found: Manifest = self.call("GET", self.path(api_version, kind, namespace, name))
        return found

    def find(self, api_version: str, kind: str, name: str, namespace: str = "") -> Manifest | None:
        """One object, or ``None`` if it does not exist."""
        try:
            return self.get(api_version, kind, name, namespace)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, api_version: str, kind: str, namespace: str = "", **selectors: str) -> list[Manifest]:
        """All objects of a kind, in one namespace or (empty) everywhere."""
        query = "?" + urlencode(selectors) if selectors else ""
        path = self.path(api_version, kind, namespace) + query
        items: list[Manifest] = self.call("GET", path)["items"]
        return items

    def patch(self, api_version: str, kind: str, name: str, change: object, namespace: str = "") -> Manifest:
        """Merge ``change`` into one object."""
        path = self.path(api_version, kind, namespace, name)
        kind_of_patch = "application/merge-patch+json"
        patched: Manifest = self.call("PATCH", path, change, content_type=kind_of_patch)
        return patched

    def delete(
        self, api_version: str, kind: str, name: str, namespace: str = "", *, grace: int | None = None
    ) -> None:
        """Delete an object if it exists. ``grace=0`` is a force delete of a pod."""
        options: Manifest = {"propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            self.raw("DELETE", self.path(api_version, kind, namespace, name), options)
        except ApiError as error:
            if error.status != 404:
                raise

    def token(
        self, namespace: str, account: str, *, bound_to: Manifest | None = None, seconds: int = 7200
    ) -> str:
        """A real token of a service account, optionally bound to an object (a Node or a Pod)."""
        path = self.path("v1", "ServiceAccount", namespace, account) + "/token"
        spec: Manifest = {"expirationSeconds": seconds}
        if bound_to is not None:
            metadata = bound_to["metadata"]
            identity = {"name": metadata["name"], "uid": metadata["uid"]}
            kind = {"kind": bound_to["kind"], "apiVersion": bound_to["apiVersion"]}
            spec["boundObjectRef"] = {**kind, **identity}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token: str = self.call("POST", path, request)["status"]["token"]
        return token


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")[:500]
