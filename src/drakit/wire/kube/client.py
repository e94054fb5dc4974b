"""Asynchronous client of the API server: get, list, watch, create, update, patch, apply, delete."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeVar

import msgspec

from drakit import __version__
from drakit.core import objects
from drakit.wire.kube import decoding
from drakit.wire.kube.access.config import ClusterAccess
from drakit.wire.kube.access.credentials import Certificate
from drakit.wire.kube.access.endpoint import query
from drakit.wire.kube.access.tls import TlsContexts
from drakit.wire.kube.errors import (
    LONGEST_RETRY_AFTER,
    ApiError,
    GoneError,
    ProtocolError,
    ServerBusyError,
    UnauthorizedError,
    api_error,
    failure_from_status,
)
from drakit.wire.kube.http import ConnectionPool, HttpLimits, HttpRequest, HttpResponse
from drakit.wire.kube.resources import Object, Resource
from drakit.wire.kube.watch.decoder import LineSplitter, WatchEvent, parse_event

T = TypeVar("T")
Document = Mapping[str, Any]

PAGE: Final = 250
"""Objects per page of a list. A full ResourceSlice has about 150 kB."""
WATCH_SECONDS: Final = 300
_LONGEST_WAIT: Final = 10.0
"""Seconds; a longer ``Retry-After`` is raised to the caller instead of waited for."""
_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class Selection:
    """Namespace and selectors of a list or watch."""

    namespace: str | None = None
    fields: str = ""
    """Field selector, e.g. ``spec.nodeName=n1,spec.driver=dra.cpu``."""
    labels: str = ""


EVERYTHING: Final = Selection()


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """The selected objects, and the resource version from which to watch."""

    items: tuple[Object[T], ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class _Call:
    """A request, with the verb and target that its errors name."""

    verb: str
    target: str
    method: str
    path: str
    body: bytes = b""
    content_type: str = "application/json"

    def __str__(self) -> str:
        return f"{self.verb} {self.target}"


class Client:
    """A client of one API server. Safe for concurrent use within one event loop.

    After a 401 the credential is read again and the request retried once; a 429 or 503 with a short
    ``Retry-After`` is retried a few times. All other errors are raised.
    """

    def __init__(
        self,
        cluster: ClusterAccess,
        *,
        component: str = "drakit",
        limits: HttpLimits | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.cluster = cluster
        self._sleep = sleep
        self._user_agent = f"{component}/{__version__}"
        self._tls = TlsContexts(cluster.trust)
        self._certificate: Certificate | None = None
        self._pool = ConnectionPool(
            cluster.endpoint, self._tls_context, server_name=cluster.server_name, limits=limits
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; requests in flight fail."""
        self._pool.close()

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> Object[T]:
        """Read one object; raises ``NotFoundError`` when it does not exist."""
        target, path = _target(resource, name, namespace), resource.path(namespace, name)
        return await self._send(resource, _Call("get", target, "GET", path))

    async def get_document(self, path: str) -> Any:
        """Read a JSON document that is not an object, such as ``/version``."""
        return await self._json(_Call("get", path, "GET", path))

    async def list(
        self, resource: Resource[T], selection: Selection = EVERYTHING, *, page: int = PAGE
    ) -> Listing[T]:
        """All selected objects as of one resource version, read in pages.

        If the pages expire meanwhile (410), everything is read again in one request.
        """
        try:
            return await self._list(resource, selection, page)
        except GoneError:
            return await self._list(resource, selection, 0)

    async def _list(self, resource: Resource[T], selection: Selection, page: int) -> Listing[T]:
        items: list[Object[T]] = []
        target, token = str(resource), ""
        while True:
            parameters = [
                ("fieldSelector", selection.fields),
                ("labelSelector", selection.labels),
                ("limit", str(page) if page else ""),
                ("continue", token),
            ]
            path = resource.path(selection.namespace) + query(parameters)
            document = await self._json(call := _Call("list", target, "GET", path))
            found, metadata = document.get("items") or [], document.get("metadata") or {}
            if not isinstance(found, list) or not isinstance(metadata, dict):
                raise ProtocolError(f"list of {target}: the response is not a list")
            for item in found:
                # Items of a list carry neither apiVersion nor kind.
                head = {"apiVersion": resource.api_version, "kind": resource.kind}
                items.append(self._object(resource, item, call, head))
            token = metadata.get("continue") or ""
            if not token:
                return Listing(tuple(items), str(metadata.get("resourceVersion") or ""))

    async def watch(
        self,
        resource: Resource[T],
        selection: Selection = EVERYTHING,
        *,
        resource_version: str,
        seconds: int = WATCH_SECONDS,
        opened: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Events after *resource_version*, with bookmarks, until the server ends the stream.

        A single stream: it ends without error after about *seconds*, and raises ``GoneError`` when the
        version is too old. *opened* is called when the server has accepted the watch.
        """
        target = str(resource)
        parameters = [
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", resource_version),
            ("timeoutSeconds", str(seconds)),
            ("fieldSelector", selection.fields),
            ("labelSelector", selection.labels),
        ]
        path = resource.path(selection.namespace) + query(parameters)
        splitter = LineSplitter(self._pool.limits.line_bytes)
        async with self._exchange(_Call("watch", target, "GET", path)) as response:
            opened()
            # The server ends the stream after `seconds`; one that does not is considered stuck.
            deadline = asyncio.get_running_loop().time() + seconds + self._pool.limits.request_seconds
            while True:
                async with asyncio.timeout_at(deadline):
                    chunk = await response.chunk()
                if chunk is None:
                    return
                for line in splitter.feed(chunk):
                    yield parse_event(line, resource, target)

    async def create(
        self,
        resource: Resource[T],
        body: T | Document,
        *,
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> Object[T]:
        """Create an object and return it as the server stored it."""
        path = resource.path(namespace) + query([("dryRun", "All" if dry_run else "")])
        target = _target(resource, _name_of(body), namespace)
        return await self._send(resource, _Call("create", target, "POST", path, objects.to_json(body)))

    async def update(
        self,
        resource: Resource[T],
        body: T | Document,
        *,
        name: str,
        namespace: str | None = None,
        subresource: str = "",
    ) -> Object[T]:
        """Replace an object; raises ``ConflictError`` if it is not at the body's resource version."""
        target, path = _target(resource, name, namespace), resource.path(namespace, name, subresource)
        return await self._send(resource, _Call("update", target, "PUT", path, objects.to_json(body)))

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        change: Document,
        *,
        namespace: str | None = None,
        subresource: str = "",
    ) -> Object[T]:
        """Apply a JSON merge patch."""
        target, path = _target(resource, name, namespace), resource.path(namespace, name, subresource)
        data, form = objects.to_json(change), "application/merge-patch+json"
        return await self._send(resource, _Call("patch", target, "PATCH", path, data, form))

    async def apply(
        self,
        resource: Resource[T],
        body: T | Document,
        *,
        name: str,
        field_manager: str,
        namespace: str | None = None,
        subresource: str = "",
        force: bool = False,
    ) -> Object[T]:
        """Server-side apply: own exactly the fields in *body*.

        *force* takes fields over from other managers; without it they cause a ``ConflictError``.
        """
        target, path = _target(resource, name, namespace), resource.path(namespace, name, subresource)
        path += query([("fieldManager", field_manager), ("force", "true" if force else "")])
        data, form = objects.to_json(body), "application/apply-patch+yaml"  # JSON is YAML
        return await self._send(resource, _Call("patch", target, "PATCH", path, data, form))

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        *,
        namespace: str | None = None,
        uid: str = "",
        resource_version: str = "",
    ) -> None:
        """Delete an object, with *uid* and *resource_version* as preconditions where given.

        Raises ``ConflictError`` when they do not match, ``NotFoundError`` when there is no such object.
        """
        given = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions := {key: value for key, value in given.items() if value}:
            options["preconditions"] = preconditions
        target, path = _target(resource, name, namespace), resource.path(namespace, name)
        await self._json(_Call("delete", target, "DELETE", path, msgspec.json.encode(options)))

    async def _send(self, resource: Resource[T], call: _Call) -> Object[T]:
        """Send a request whose response is an object."""
        return self._object(resource, await self._json(call), call)

    async def _tls_context(self) -> ssl.SSLContext:
        return self._tls.context(self._certificate)

    async def _json(self, call: _Call) -> Any:
        """The response as a JSON object, within the time limit of a request."""
        async with self._exchange(call) as response:
            async with asyncio.timeout(self._pool.limits.request_seconds):
                data = await response.body()
        try:
            document = decoding.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"{call}: the response is not valid JSON: {error}") from error
        if not isinstance(document, dict):
            raise ProtocolError(f"{call}: the response is not a JSON object")
        return document

    @contextlib.asynccontextmanager
    async def _exchange(self, call: _Call) -> AsyncIterator[HttpResponse]:
        """A successful response to *call*; handles 401 and short waits, raises all other failures."""
        rejected = False
        for attempt in range(1, _TRIES + 1):
            async with contextlib.AsyncExitStack() as stack:
                request = await self._request(call)
                response = await stack.enter_async_context(self._pool.exchange(request))
                if 200 <= response.status < 300:
                    yield response
                    return
                error = await self._failure(call, response)
            if isinstance(error, UnauthorizedError) and not rejected:
                rejected = True
                self.cluster.credentials.rejected()
                continue
            if attempt == _TRIES or not self._worth_waiting(error):
                raise error
            await self._sleep(error.retry_after or 0)

    @staticmethod
    def _worth_waiting(error: ApiError) -> bool:
        return (
            isinstance(error, ServerBusyError)
            and error.retry_after is not None
            and error.retry_after <= _LONGEST_WAIT
        )

    async def _request(self, call: _Call) -> HttpRequest:
        credential = await self.cluster.credentials.current()
        if credential.certificate != self._certificate:
            # Open connections still authenticate with the old certificate.
            self._certificate = credential.certificate
            self._pool.drop_idle()
        headers = [("Accept", "application/json"), ("User-Agent", self._user_agent)]
        if credential.token is not None:
            headers.append(("Authorization", f"Bearer {credential.token}"))
        if call.body:
            headers.append(("Content-Type", call.content_type))
        target = self.cluster.endpoint.prefix + call.path
        return HttpRequest(call.method, target, tuple(headers), call.body)

    async def _failure(self, call: _Call, response: HttpResponse) -> ApiError:
        async with asyncio.timeout(self._pool.limits.request_seconds):
            data = await response.body()
        try:
            document = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            document = {"message": data[:300].decode("utf-8", "replace").strip()}
        wait = _retry_after(response.headers.get("retry-after", ""))
        return api_error(
            failure_from_status(
                document, verb=call.verb, target=call.target, code=response.status, retry_after=wait
            )
        )

    @staticmethod
    def _object(
        resource: Resource[T], document: Any, call: _Call, head: Mapping[str, str] | None = None
    ) -> Object[T]:
        if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
            raise ProtocolError(f"{call}: the response is not a Kubernetes object")
        return Object(resource, {**head, **document} if head else document)


def _retry_after(text: str) -> float | None:
    """Seconds to wait. The HTTP-date form, which no API server uses, counts as one second."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        return 1.0
    return float(min(int(text), LONGEST_RETRY_AFTER) if len(text) < 9 else LONGEST_RETRY_AFTER)


def _target(resource: Resource[Any], name: str, namespace: str | None) -> str:
    place = f"{namespace}/{name}" if resource.namespaced and namespace else name
    return f"{resource} {place}".rstrip()


def _name_of(body: Any) -> str:
    if isinstance(body, Mapping):
        metadata: Any = body.get("metadata") or {}
        return str(metadata.get("name") or metadata.get("generateName") or "")
    metadata = getattr(body, "metadata", None)
    return metadata.name or metadata.generate_name if metadata is not None else ""
