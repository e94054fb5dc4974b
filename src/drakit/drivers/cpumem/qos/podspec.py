"""Requests and limits of pods, from the API server, for mode ``all``: the runtime reports no requests."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from drakit.core.log import get_logger
from drakit.core.quantity import Quantity, QuantityError

if TYPE_CHECKING:
    from drakit.wire.kube import Client

log = get_logger(__name__)
_MEMORY: Final = "memory"
_RELIST_SECONDS: Final = 60.0
"""How long a list is used if all pods are known: a resize changes requests without a new pod."""
_RETRY_SECONDS: Final = 10.0
_TIMEOUT_SECONDS: Final = 2.0


class _Resources(msgspec.Struct, frozen=True):
    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}

    @property
    def request(self) -> int:
        """Requested memory; static pods may lack it, then it is the limit."""
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
"""The UID of a static pod for the kubelet and the runtime; its mirror pod in the API has another."""


@dataclass(frozen=True, slots=True)
class PodRequests:
    """Requested memory of a pod and of its containers."""

    request: int
    pod_limit: int | None = None
    """The limit in the pod-level resources, if any."""
    containers: Mapping[str, int] = field(default_factory=dict)


def requests_of(document: Mapping[str, Any]) -> tuple[str, PodRequests]:
    """A pod's UID as in the runtime, and its requests. Raises ``ValueError`` for an invalid pod."""
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
        raise ValueError(f"not a valid pod: {error}") from error
    uid = pod.metadata.annotations.get(_MIRROR) or pod.metadata.uid
    return uid, PodRequests(request, limit, each)


def _aggregate(spec: _Spec) -> int:
    """As the scheduler counts: the sum of the containers, or the maximum during initialization."""
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
    """The requests of the node's pods, listed again for a new pod and once a minute.

    If the server cannot be reached, the last list is used; new pods have only their claims protected.
    """

    def __init__(
        self, connect: Callable[[], Client], node: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connect = connect
        self._node = node
        self._clock = clock
        self._known: dict[str, PodRequests] = {}
        self._missing: frozenset[str] = frozenset()
        self._due = -math.inf

    async def __call__(self, pod_uids: Iterable[str]) -> Mapping[str, PodRequests]:
        """The requests of these pods, as far as known."""
        wanted = frozenset(pod_uids)
        if wanted - self._known.keys() - self._missing or self._clock() >= self._due:
            await self._list()
            self._missing = wanted - self._known.keys()
        return {uid: self._known[uid] for uid in wanted if uid in self._known}

    async def _list(self) -> None:
        from drakit.wire.kube import PODS, KubeError, Selection

        mine = Selection(fields=f"spec.nodeName={self._node}")
        try:
            # Container creation waits for this.
            async with asyncio.timeout(_TIMEOUT_SECONDS), self._connect() as client:
                listing = await client.list(PODS, mine)
        except (KubeError, TimeoutError) as error:
            self._due = self._clock() + _RETRY_SECONDS
            reason = str(error) or f"no response in {_TIMEOUT_SECONDS:g} seconds"
            log.warning("cannot list the node's pods; using their last known requests", error=reason)
            return
        self._known = dict(_valid(item.raw for item in listing.items))
        self._due = self._clock() + _RELIST_SECONDS


def _valid(documents: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, PodRequests]]:
    for document in documents:
        try:
            yield requests_of(document)
        except ValueError as error:
            log.warning("skipping an invalid pod of the API server", error=error)


ReadSpecs = Callable[[Iterable[str]], Awaitable[Mapping[str, PodRequests]]]
"""From pod UIDs to the requests of those pods, as far as known."""
