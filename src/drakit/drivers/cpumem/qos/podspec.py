"""What pods request and limit, by their specs; needed only to protect what is not claimed.

The runtime knows limits but not requests, so mode ``all`` reads the node's pods from the API server.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from drakit.core.quantity import Quantity, QuantityError

if TYPE_CHECKING:
    from drakit.wire.kube import Client

_LOG = logging.getLogger(__name__)
_MEMORY: Final = "memory"
_RELIST_SECONDS: Final = 60.0
"""How old a list may be whose pods are all known: a resize changes requests without a new pod."""
_RETRY_SECONDS: Final = 10.0
_PATIENCE_SECONDS: Final = 2.0


class _Resources(msgspec.Struct, frozen=True):
    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}

    @property
    def request(self) -> int:
        """Requested memory; the API server fills a missing one from the limit, pods in files may lack it."""
        return _bytes(self.requests.get(_MEMORY, self.limits.get(_MEMORY, 0)))

    @property
    def limit(self) -> int | None:
        return _bytes(self.limits[_MEMORY]) if _MEMORY in self.limits else None


class _Container(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    restart_policy: str = ""
    resources: _Resources = _Resources()


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()
    overhead: dict[str, str | int | float] = {}
    resources: _Resources | None = None


class _Metadata(msgspec.Struct, frozen=True):
    uid: str = ""
    annotations: dict[str, str] = {}


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()


_MIRROR: Final = "kubernetes.io/config.hash"
"""The UID that the kubelet and the runtime know a static pod by; its mirror in the API has another."""


@dataclass(frozen=True, slots=True)
class PodRequests:
    """What a pod asks for in memory: in all, and by container."""

    request: int
    pod_limit: int | None = None
    """The limit in the pod's own resources, if it has one."""
    containers: Mapping[str, int] = field(default_factory=dict)


def requests_of(document: Mapping[str, Any]) -> tuple[str, PodRequests]:
    """A pod's UID as the runtime has it, and its requests, from the API's document.

    Raises ``ValueError`` for what is no pod.
    """
    try:
        pod = msgspec.convert(document, _Pod)
        spec = pod.spec
        own = spec.resources
        request = _aggregate(spec)
        if own is not None and (_MEMORY in own.requests or _MEMORY in own.limits):
            request = own.request
        request += _bytes(spec.overhead.get(_MEMORY, 0))
        each = {c.name: c.resources.request for c in (*spec.init_containers, *spec.containers)}
        limit = own.limit if own is not None else None
    except (msgspec.ValidationError, QuantityError) as error:
        raise ValueError(f"no pod that can be understood: {error}") from error
    uid = pod.metadata.annotations.get(_MIRROR) or pod.metadata.uid
    return uid, PodRequests(request, limit, each)


def _aggregate(spec: _Spec) -> int:
    """As the scheduler counts: the containers together, or the costliest moment of initialization."""
    total = sum(container.resources.request for container in spec.containers)
    sidecars = peak = 0
    for container in spec.init_containers:
        request = container.resources.request
        if container.restart_policy == "Always":
            sidecars += request
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + request)
    return max(total + sidecars, peak)


def _bytes(value: str | float) -> int:
    return max(0, Quantity(value if isinstance(value, str | int) else f"{value:f}").ceil())


class ApiPodSpecs:
    """The requests of the node's pods, from the API server, read when a pod is new or time is up.

    *connect* makes a client for one list: they are rare. When the server cannot be reached, what was
    known stays; pods that are not known then have no protection beyond that of their claims.
    """

    def __init__(
        self,
        connect: Callable[[], Client],
        node: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._node = node
        self._clock = clock
        self._known: dict[str, PodRequests] = {}
        self._missing: frozenset[str] = frozenset()
        self._due = -math.inf

    async def __call__(self, pod_uids: Iterable[str]) -> Mapping[str, PodRequests]:
        """The requests of these pods, as far as they are known."""
        wanted = frozenset(pod_uids)
        if wanted - self._known.keys() - self._missing or self._clock() >= self._due:
            await self._list()
            self._missing = wanted - self._known.keys()
        return {uid: self._known[uid] for uid in wanted if uid in self._known}

    async def _list(self) -> None:
        from drakit.wire.kube import PODS, KubeError, Selection

        mine = Selection(fields=f"spec.nodeName={self._node}")
        try:
            # Limits of claims wait for this, and containers for them.
            async with asyncio.timeout(_PATIENCE_SECONDS), self._connect() as client:
                listing = await client.list(PODS, mine)
        except (KubeError, TimeoutError) as error:
            self._due = self._clock() + _RETRY_SECONDS
            _LOG.warning(
                "cannot read the node's pods, what they request is as last known: %s",
                str(error) or f"no answer in {_PATIENCE_SECONDS:g} seconds",
            )
            return
        self._known = dict(_understood(item.raw for item in listing.items))
        self._due = self._clock() + _RELIST_SECONDS


def _understood(documents: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, PodRequests]]:
    for document in documents:
        try:
            yield requests_of(document)
        except ValueError as error:
            _LOG.warning("a pod of the API server is passed over: %s", error)


ReadSpecs = Callable[[Iterable[str]], Awaitable[Mapping[str, PodRequests]]]
"""From pod UIDs to what those pods request, as far as it is known."""
