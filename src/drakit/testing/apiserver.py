"""Fake API server in memory, over real HTTP.

Supports resource versions, conflicts, preconditions, ``generateName``, status, server-side apply,
paged lists, watches with bookmarks, 410 after compaction, fields dropped by feature gate, the limits
of ResourceSlices, tokens, and injected faults.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import socket
import ssl
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Self
from urllib.parse import parse_qs, unquote, urlsplit

import h11

from drakit.core.kubernetes_releases import RELEASES
from drakit.testing.apiserver_objects import (
    KINDS,
    Document,
    Key,
    ObjectSelector,
    ObjectTable,
    RequestError,
    ResourceKind,
    merge_patch,
)
from drakit.testing.stream_server import StreamServer
from drakit.wire.kube.access.config import ClusterAccess
from drakit.wire.kube.access.credentials import Credential, Fixed
from drakit.wire.kube.access.endpoint import Endpoint
from drakit.wire.kube.access.tls import Trust

_REQUESTS_KEPT: Final = 10_000
_NOT_SERVED: Final = "the server could not find the requested resource"


class Trouble(Enum):
    """Kinds of injected faults."""

    ANSWER = "failure status, not executed"
    CUT_BEFORE = "connection closed, not executed"
    CUT_AFTER = "executed, then connection closed before the response"
    SLOW = "executed after a delay"
    GARBAGE = "response that is not HTTP"


@dataclass(frozen=True, slots=True)
class Fault:
    """An injected fault."""

    trouble: Trouble
    status: int = 500
    retry_after: int | None = None
    seconds: float = 0.0
    data: bytes = b"\x00\xffnot http\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Seen:
    """A received request."""

    method: str
    path: str
    query: Mapping[str, str]
    verb: str
    plural: str
    name: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@dataclass(slots=True)
class _Planned:
    fault: Fault
    times: int
    when: Callable[[Seen], bool]


class FakeApiServer:
    """The server; start it with ``async with``, or with :meth:`in_thread` without an event loop.

    Tests change objects with :meth:`add`, :meth:`change` and :meth:`remove`; :attr:`requests` has every
    request.
    """

    def __init__(
        self,
        *,
        version: str = "1.37",
        gates: Mapping[str, bool] | None = None,
        tokens: set[str] | None = None,
        tls: ssl.SSLContext | None = None,
        authority: str | None = None,
        seed: int = 0,
    ) -> None:
        """A server of Kubernetes *version* with its default feature gates, changed by *gates*.

        *tokens* are the accepted tokens (default: no authentication); the set may change at any time.
        *tls* enables HTTPS, with *authority* the path of the CA file for clients.
        """
        self.version = version
        self.tokens = tokens
        self.table = ObjectTable(RELEASES[version], gates or {}, seed)
        self.requests: deque[Seen] = deque(maxlen=_REQUESTS_KEPT)
        self.forbidden: set[tuple[str, str]] = set()
        """``(verb, plural)`` pairs that get a 403."""
        self.unserved: set[str] = set()
        """Plurals that this server does not know."""
        if not self.table.release.serves_taint_rules:
            self.unserved.add("devicetaintrules")
        self.gone_as_event = True
        """Whether 410 is an ERROR event in the stream, like the real one, or an HTTP status."""
        self.chance: Callable[[Seen], Fault | None] | None = None
        """Returns the fault for a request, if any."""
        self._tls = tls
        self._authority = authority
        self._planned: list[_Planned] = []
        self._server: StreamServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._port = 0
        self._watches: set[_Watch] = set()
        self._pages: dict[int, list[Document]] = {}
        self._numbers = itertools.count()

    async def start(self) -> None:
        """Listen; after a :meth:`stop` on the same port and with all objects."""
        self._loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._server = StreamServer(listener, self._serve, tls=self._tls)

    async def stop(self) -> None:
        """Stop listening and close all connections."""
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @contextlib.contextmanager
    def in_thread(self) -> Iterator[Self]:
        """Run in a separate thread, for tests without an event loop."""
        ready, stop = threading.Event(), asyncio.Event()
        loops: list[asyncio.AbstractEventLoop] = []

        async def serve() -> None:
            loops.append(asyncio.get_running_loop())
            async with self:
                ready.set()
                await stop.wait()

        thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
        thread.start()
        ready.wait()
        try:
            yield self
        finally:
            loops[0].call_soon_threadsafe(stop.set)
            thread.join()

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def cluster(self, token: str | None = None) -> ClusterAccess:
        """Access for the client of ``drakit.wire.kube``, by default with one of the tokens."""
        if token is None and self.tokens:
            token = min(self.tokens)
        trust = Trust(file=self._authority) if self._authority else Trust()
        credentials = Fixed(Credential(token))
        return ClusterAccess(Endpoint.parse(self.url), credentials, trust, origin="FakeApiServer")

    def kubeconfig(self) -> str:
        """A kubeconfig (JSON) for programs under test."""
        cluster: Document = {"server": self.url}
        if self._authority:
            with open(self._authority, "rb") as file:
                cluster["certificate-authority-data"] = base64.b64encode(file.read()).decode()
        user = {"token": min(self.tokens)} if self.tokens else {}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "fake",
                "clusters": [{"name": "fake", "cluster": cluster}],
                "users": [{"name": "fake", "user": user}],
                "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
            }
        )

    def add(self, plural: str, document: Document, *, namespace: str = "") -> Document:
        """Create an object under the same rules as a request, then write its status, if any."""
        kind = KINDS[plural]
        if kind.namespaced and not namespace:
            namespace = (document.get("metadata") or {}).get("namespace") or "default"
        created = self.table.create(kind, namespace, document)
        if kind.created_without_status and "status" in document:
            key = (plural, namespace, created["metadata"]["name"])
            status = {"status": document["status"]}
            created = self.table.update(kind, key, status, subresource="status")
        self._notify()
        return created

    def change(
        self, plural: str, name: str, patch: Document, *, namespace: str = "", subresource: str = ""
    ) -> Document:
        """Merge *patch* into an object, as another client."""
        key = self._key(plural, name, namespace)
        changed = merge_patch(self.table.get(key), patch)
        changed["metadata"].pop("resourceVersion", None)
        result = self.table.update(KINDS[plural], key, changed, subresource=subresource)
        self._notify()
        return result

    def remove(self, plural: str, name: str, *, namespace: str = "") -> None:
        """Delete an object."""
        self.table.delete(KINDS[plural], self._key(plural, name, namespace))
        self._notify()

    def objects(self, plural: str, *, fields: str = "", namespace: str = "") -> list[Document]:
        """The objects of a resource, by name."""
        selector = ObjectSelector.parse(plural, fields, "", self.table.release)
        return self.table.select(plural, namespace, selector)

    def wipe_slices(self, node: str, driver: str | None = None) -> int:
        """Delete the slices of *node*: all of them, as at kubelet start, or those of *driver*."""
        fields = f"spec.nodeName={node}" + (f",spec.driver={driver}" if driver else "")
        deleted = self.objects("resourceslices", fields=fields)
        for document in deleted:
            self.remove("resourceslices", document["metadata"]["name"])
        return len(deleted)

    @staticmethod
    def _key(plural: str, name: str, namespace: str) -> Key:
        return plural, (namespace or "default") if KINDS[plural].namespaced else "", name

    def plan(self, fault: Fault, *, times: int = 1, when: Callable[[Seen], bool] = lambda _: True) -> None:
        """Inject *fault* into the next *times* requests that match *when*."""
        self._planned.append(_Planned(fault, times, when))

    def compact(self) -> None:
        """Drop the history: watches from before now get 410."""
        self.table.compact()
        self._notify()

    def bookmark(self) -> None:
        """Send a bookmark to every watch that allows them."""
        for watch in self._watches:
            watch.bookmark_due = True
        self._notify()

    def end_watches(self) -> None:
        """End every watch as after its timeout."""
        for watch in self._watches:
            watch.ended = True
        self._notify()

    def disconnect(self) -> None:
        """Close every connection."""
        if self._server is not None:
            self._server.disconnect()

    @property
    def connections(self) -> int:
        """Connections since the last start."""
        return self._server.connections if self._server is not None else 0

    @property
    def watching(self) -> int:
        """The number of open watches."""
        return len(self._watches)

    def _notify(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake_watches)

    def _wake_watches(self) -> None:
        for watch in self._watches:
            watch.news.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The client may not send HTTP.
        with contextlib.suppress(h11.RemoteProtocolError, h11.LocalProtocolError):
            await self._converse(_ServerConnection(reader, writer))

    async def _converse(self, connection: _ServerConnection) -> None:
        while (seen := await connection.request()) is not None:
            self.requests.append(seen)
            fault = self._fault_for(seen)
            if fault is None or fault.trouble in (Trouble.SLOW, Trouble.CUT_AFTER):
                await asyncio.sleep(fault.seconds if fault else 0)
                if not await self._respond(seen, connection, fault):
                    return
            elif not await self._misbehave(fault, connection):
                return
            if not connection.next_cycle():
                return

    async def _respond(self, seen: Seen, connection: _ServerConnection, fault: Fault | None) -> bool:
        """Execute a request and respond; returns whether a response was sent."""
        try:
            self._authorize(seen)
            if seen.verb == "watch":
                await self._watch(seen, connection)
                return True
            code, document = self._answer(seen)
        except RequestError as rejection:
            code, document = rejection.code, rejection.status()
        if fault is not None and fault.trouble is Trouble.CUT_AFTER:
            return False
        await connection.reply(code, document)
        return True

    def _fault_for(self, seen: Seen) -> Fault | None:
        for planned in self._planned:
            if planned.times > 0 and planned.when(seen):
                planned.times -= 1
                return planned.fault
        return self.chance(seen) if self.chance is not None else None

    @staticmethod
    async def _misbehave(fault: Fault, connection: _ServerConnection) -> bool:
        """Inject a fault; returns whether the connection stays open."""
        if fault.trouble is Trouble.ANSWER:
            headers = [] if fault.retry_after is None else [("Retry-After", str(fault.retry_after))]
            rejection = RequestError(fault.status, "Injected", "injected by the test")
            await connection.reply(fault.status, rejection.status(), headers)
            return True
        if fault.trouble is Trouble.GARBAGE:
            await connection.raw(fault.data)
        return False

    def _authorize(self, seen: Seen) -> None:
        if self.tokens is not None:
            scheme, _, token = seen.headers.get("authorization", "").partition(" ")
            if scheme != "Bearer" or token not in self.tokens:
                raise RequestError(401, "Unauthorized", "Unauthorized")
        if seen.plural in self.unserved:
            raise RequestError(404, "NotFound", _NOT_SERVED)
        if (seen.verb, seen.plural) in self.forbidden:
            kind = KINDS[seen.plural]
            text = (
                f'{kind.qualified} is forbidden: User "test" cannot {seen.verb} resource '
                f'"{kind.plural}" in API group "{kind.group}" at the cluster scope'
            )
            details = {"group": kind.group, "kind": kind.plural, "name": seen.name}
            raise RequestError(403, "Forbidden", text, details)

    def _answer(self, seen: Seen) -> tuple[int, Document]:
        if seen.path == "/version":
            major, minor = self.version.split(".")[:2]
            return 200, {"major": major, "minor": minor, "gitVersion": f"v{self.version}.0"}
        if seen.path.endswith("/selfsubjectaccessreviews"):
            return 201, self._review(_body(seen))
        kind, namespace, name, subresource = _route(seen.path)
        try:
            return self._perform(seen, kind, (kind.plural, namespace, name), subresource)
        finally:
            self._notify()

    def _perform(self, seen: Seen, kind: ResourceKind, key: Key, subresource: str) -> tuple[int, Document]:
        if seen.verb == "list":
            return 200, self._list(seen, kind, key[1])
        if seen.verb == "get":
            return 200, self.table.get(key)
        if seen.verb == "create":
            if kind.namespaced and not key[1]:
                raise RequestError(405, "MethodNotAllowed", "the namespace is missing")
            keep = seen.query.get("dryRun") != "All"
            return 201, self.table.create(kind, key[1], _body(seen), keep=keep)
        if seen.verb == "update":
            return 200, self.table.update(kind, key, _body(seen), subresource=subresource)
        if seen.verb == "patch":
            return 200, self._patch(seen, kind, key, subresource)
        if seen.verb == "delete":
            options = _body(seen) if seen.body else {}
            self.table.delete(kind, key, options.get("preconditions"))
        elif seen.verb == "deletecollection":
            for document in self.table.select(kind.plural, key[1], self._selector(seen, kind)):
                self.table.delete(kind, (kind.plural, key[1], document["metadata"]["name"]))
        else:
            raise RequestError(405, "MethodNotAllowed", f"{seen.method} is not allowed here")
        return 200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def _selector(self, seen: Seen, kind: ResourceKind) -> ObjectSelector:
        fields, labels = seen.query.get("fieldSelector", ""), seen.query.get("labelSelector", "")
        return ObjectSelector.parse(kind.plural, fields, labels, self.table.release)

    def _list(self, seen: Seen, kind: ResourceKind, namespace: str) -> Document:
        start, revision = 0, self.table.revision
        if token := seen.query.get("continue"):
            number, revision, start = (int(part) for part in token.split("."))
            if revision < self.table.compacted or number not in self._pages:
                raise RequestError(410, "Expired", "The provided continue parameter is too old")
            found = self._pages[number]
        else:
            found = self.table.select(kind.plural, namespace, self._selector(seen, kind))
            number = next(self._numbers)
            self._pages[number] = found
        limit = int(seen.query.get("limit") or 0)
        metadata: Document = {"resourceVersion": str(revision)}
        if limit and len(found) > start + limit:
            metadata["continue"] = f"{number}.{revision}.{start + limit}"
            if not (seen.query.get("fieldSelector") or seen.query.get("labelSelector")):
                metadata["remainingItemCount"] = len(found) - start - limit
        else:
            del self._pages[number]
        page = found[start : start + limit] if limit else found[start:]
        items = [{k: v for k, v in d.items() if k not in ("apiVersion", "kind")} for d in page]
        head = {"apiVersion": kind.api_version, "kind": f"{kind.name}List"}
        return head | {"metadata": metadata, "items": items}

    def _patch(self, seen: Seen, kind: ResourceKind, key: Key, subresource: str) -> Document:
        how = seen.headers.get("content-type", "")
        body = _body(seen)
        if how == "application/apply-patch+yaml":
            manager = seen.query.get("fieldManager")
            if not manager:
                raise RequestError(422, "Invalid", "fieldManager: Required value: is required for apply")
            force = seen.query.get("force") == "true"
            return self.table.apply(kind, key, body, manager, subresource=subresource, force=force)
        if how != "application/merge-patch+json":
            raise RequestError(415, "UnsupportedMediaType", f"unsupported patch: {how}")
        changed = merge_patch(self.table.get(key), body)
        return self.table.update(kind, key, changed, subresource=subresource)

    def _review(self, body: Document) -> Document:
        asked = (body.get("spec") or {}).get("resourceAttributes") or {}
        denied = (asked.get("verb"), asked.get("resource")) in self.forbidden
        return body | {"metadata": {}, "status": {"allowed": not denied}}

    async def _watch(self, seen: Seen, connection: _ServerConnection) -> None:
        kind, namespace, _, _ = _route(seen.path)
        bookmarks = seen.query.get("allowWatchBookmarks") == "true"
        watch = _Watch(self.table, kind, namespace, self._selector(seen, kind), bookmarks)
        version = seen.query.get("resourceVersion", "")
        if version and int(version) < self.table.compacted and not self.gone_as_event:
            self.table.since(int(version))
        self._watches.add(watch)
        seconds = float(seen.query.get("timeoutSeconds") or 1800)
        closed = asyncio.create_task(connection.closed())
        try:
            await connection.begin_stream()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    async for event in watch.events(version, closed):
                        await connection.stream(event)
            await connection.end_stream()
        finally:
            self._watches.discard(watch)
            closed.cancel()
            await asyncio.gather(closed, return_exceptions=True)


@dataclass(slots=True, eq=False)
class _Watch:
    """A watch: reads the table's history from its position whenever there are changes."""

    _table: ObjectTable
    _kind: ResourceKind
    _namespace: str
    _selector: ObjectSelector
    _bookmarks: bool
    news: asyncio.Event = field(default_factory=asyncio.Event)
    bookmark_due: bool = False
    ended: bool = False

    async def events(self, version: str, closed: asyncio.Task[None]) -> AsyncIterator[Document]:
        position = int(version) if version else 0
        if position == 0:
            position = self._table.revision
            for document in self._table.select(self._kind.plural, self._namespace, self._selector):
                yield {"type": "ADDED", "object": document}
        while not self.ended and not closed.done():
            try:
                for change in list(self._table.since(position)):
                    position = change.revision
                    if event := self._event(change.key, change.before, change.after, position):
                        yield event
            except RequestError as rejection:
                yield {"type": "ERROR", "object": rejection.status()}
                return
            position = max(position, self._table.revision)
            if self.bookmark_due and self._bookmarks and self._table.revision == position:
                self.bookmark_due = False
                head = {"apiVersion": self._kind.api_version, "kind": self._kind.name}
                yield {"type": "BOOKMARK", "object": head | {"metadata": {"resourceVersion": str(position)}}}
            waiting = asyncio.ensure_future(self.news.wait())
            try:
                await asyncio.wait({waiting, closed}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
            self.news.clear()

    def _event(
        self, key: Key, before: Document | None, after: Document | None, revision: int
    ) -> Document | None:
        if key[0] != self._kind.plural:
            return None
        was = before is not None and self._selector.matches(key, before, self._namespace)
        now = after is not None and self._selector.matches(key, after, self._namespace)
        if now:
            return {"type": "MODIFIED" if was else "ADDED", "object": after}
        if was:
            assert before is not None
            metadata = before["metadata"] | {"resourceVersion": str(revision)}
            return {"type": "DELETED", "object": before | {"metadata": metadata}}
        return None


class _ServerConnection:
    """Server side of an HTTP/1.1 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER)

    async def _event(self) -> Any:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._http.receive_data(await self._reader.read(65536))

    async def request(self) -> Seen | None:
        head = await self._event()
        if not isinstance(head, h11.Request):
            return None
        body = b""
        while isinstance(event := await self._event(), h11.Data):
            body += bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            return None
        url = urlsplit(head.target.decode())
        parameters = {k: v[-1] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
        method = head.method.decode()
        verb, plural, name = _verb(method, url.path, parameters)
        headers = {k.decode(): v.decode("latin-1") for k, v in head.headers}
        return Seen(method, url.path, parameters, verb, plural, name, headers, body)

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def _send(self, *events: Any) -> None:
        # In one write, like the real one: a client is woken once per response.
        await self.raw(b"".join(self._http.send(event) or b"" for event in events))

    async def reply(
        self, code: int, document: Document, headers: list[tuple[str, str]] | None = None
    ) -> None:
        body = json.dumps(document).encode()
        fields = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        head = h11.Response(status_code=code, headers=fields + (headers or []))
        await self._send(head, h11.Data(data=body), h11.EndOfMessage())

    async def begin_stream(self) -> None:
        fields = [("Content-Type", "application/json"), ("Transfer-Encoding", "chunked")]
        await self._send(h11.Response(status_code=200, headers=fields))

    async def stream(self, document: Document) -> None:
        await self._send(h11.Data(data=json.dumps(document).encode() + b"\n"))

    async def end_stream(self) -> None:
        await self._send(h11.EndOfMessage())

    async def closed(self) -> None:
        """Wait until the client disconnects."""
        with contextlib.suppress(OSError):
            while await self._reader.read(65536):
                pass

    def next_cycle(self) -> bool:
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return not self._reader.at_eof()
        return False


def _body(seen: Seen) -> Any:
    try:
        return json.loads(seen.body)
    except ValueError as error:
        raise RequestError(400, "BadRequest", f"the body is not valid JSON: {error}") from error


def _route(path: str) -> tuple[ResourceKind, str, str, str]:
    """Kind, namespace, name and subresource of a path; raises 404 for an unknown one."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1] if parts[1:] else "", parts[3:])
    version = parts[1] if parts[0] == "api" and parts[1:] else (parts[2] if parts[2:] else "")
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    kind = KINDS.get(rest[0]) if rest else None
    if kind is None or (kind.group, kind.version) != (group, version) or len(rest) > 3:
        raise RequestError(404, "NotFound", _NOT_SERVED)
    _, name, subresource = (*rest, "", "")[:3]
    return kind, namespace, name, subresource


def _verb(method: str, path: str, parameters: Mapping[str, str]) -> tuple[str, str, str]:
    """The RBAC verb, plural and name of a request."""
    try:
        kind, _, name, _ = _route(path)
    except RequestError:
        return method.lower(), "", ""
    collection = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
    single = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    verb = (single if name else collection).get(method, method.lower())
    if verb == "list" and parameters.get("watch") in ("1", "true"):
        verb = "watch"
    return verb, kind.plural, name
