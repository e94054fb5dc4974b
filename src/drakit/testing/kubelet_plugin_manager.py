"""Plugin manager of the fake kubelet: registration, connections and health of DRA drivers.

Watches the registration directory, registers plugins within the kubelet's deadlines, keeps one
connection to each driver instance, and deletes the slices of drivers without a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from drakit.core.log import get_logger
from drakit.testing.kubelet_connection import CALL_FAILURES, Connection, Signal
from drakit.wire.kubelet import (
    dra_v1_pb2,
    dra_v1beta1_pb2,
    health_v1_pb2,
    health_v1alpha1_pb2,
    pluginregistration_pb2,
)

log = get_logger(__name__)

# Not shared with the plugin's side: a fake that uses the names of the code under test would hide
# mistakes there.
_CLAIMS: Final = {
    "v1.DRAPlugin": ("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", dra_v1_pb2),
    "v1beta1.DRAPlugin": ("k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin", dra_v1beta1_pb2),
}
_HEALTH: Final = {
    "v1.DRAResourceHealth": ("v1.DRAResourceHealth", health_v1_pb2),
    "v1alpha1.DRAResourceHealth": ("v1alpha1.DRAResourceHealth", health_v1alpha1_pb2),
}
_MOST_DEVICES: Final = 16_384
_HEALTH_SECONDS: Final = 30.0
_LONGEST_MESSAGE: Final = 1024
_STATES: Final = ("Unknown", "Healthy", "Unhealthy")


@dataclass(frozen=True, slots=True)
class Timing:
    """Deadlines and intervals of the kubelet in seconds; the defaults are the real ones."""

    poll: float = 0.05
    """Polling interval of the directory (the real kubelet uses inotify)."""
    dial: float = 10.0
    get_info: float = 1.0
    notify: float = 5.0
    call: float = 45.0
    back_off: float = 0.5
    back_off_cap: float = 122.0
    reconnect: float = 1.0
    wipe: float = 30.0
    health_retry: float = 5.0
    health_seconds: float = 1.0
    """Duration of one second of a health report's timeout."""
    reconcile: float = 60.0


QUICK: Final = Timing(
    poll=0.01,
    dial=0.3,
    get_info=30.0,
    notify=30.0,
    back_off=0.02,
    back_off_cap=1.0,
    reconnect=0.02,
    wipe=0.2,
    health_retry=0.05,
    reconcile=3600.0,
)
"""For tests: short intervals, reconciling on demand, and deadlines long enough for a busy machine."""


@dataclass(frozen=True, slots=True)
class KubeletRelease:
    """Differences between kubelet releases."""

    claims: tuple[str, ...]
    health: tuple[str, ...]
    """Versions of the health service, in the kubelet's order of preference."""
    trusts_advertised: bool
    """Whether it opens only advertised health services, and does not retry an unimplemented one."""


RELEASES: Final = {
    "1.33": KubeletRelease(("v1beta1.DRAPlugin",), (), trusts_advertised=True),
    "1.34": KubeletRelease(tuple(_CLAIMS), (), trusts_advertised=True),
    "1.35": KubeletRelease(tuple(_CLAIMS), (), trusts_advertised=True),
    "1.36": KubeletRelease(tuple(_CLAIMS), ("v1alpha1.DRAResourceHealth",), trusts_advertised=False),
    "1.37": KubeletRelease(tuple(_CLAIMS), tuple(_HEALTH), trusts_advertised=True),
    "1.38": KubeletRelease(tuple(_CLAIMS), tuple(_HEALTH), trusts_advertised=True),
}


class RegistrationRejectedError(Exception):
    """The kubelet rejects this plugin; the text is sent to the plugin."""


@dataclass(frozen=True, slots=True)
class HealthEntry:
    """The latest health report of a device, its arrival and validity."""

    state: str
    message: str
    arrived: float
    holds: float


@dataclass(slots=True)
class RegisteredPlugin:
    """A registered instance of a driver."""

    driver: str
    socket: str
    """Its registration socket."""
    service: str
    api: str
    """The claim service used: ``v1.DRAPlugin`` or ``v1beta1.DRAPlugin``."""
    health_api: str | None
    order: int
    connection: Connection
    health: dict[tuple[str, str], HealthEntry] = field(default_factory=dict)
    health_reports: int = 0
    listener: asyncio.Task[None] | None = None

    async def call(self, method: str, claims: list[tuple[str, str, str]], seconds: float) -> Any:
        """Call *method* for (namespace, name, UID)s; returns the response message."""
        service, pb = _CLAIMS[self.api]
        request = getattr(pb, f"{method}Request")(
            claims=[pb.Claim(namespace=ns, name=name, uid=uid) for ns, name, uid in claims]
        )
        response = getattr(pb, f"{method}Response")
        return await self.connection.call(f"/{service}/{method}", request, response, seconds)


@dataclass(slots=True)
class _Socket:
    """A socket seen in the registration directory."""

    path: str
    identity: tuple[int, int]
    failures: int = 0
    next_try: float = 0.0
    error: str = ""
    endpoint: RegisteredPlugin | None = None
    operation: asyncio.Task[None] | None = None


class PluginManager:
    """The registered drivers; *wipe* is called with a driver that has no connection any more."""

    def __init__(
        self, registry_dir: str, timing: Timing, release: KubeletRelease, wipe: Callable[[str], object]
    ) -> None:
        self.endpoints: list[RegisteredPlugin] = []
        self.changed = Signal()
        self.attempts: dict[str, int] = {}
        """Registration attempts per socket."""
        self._directory = registry_dir
        self._timing = timing
        self._release = release
        self._wipe = wipe
        self._sockets: dict[str, _Socket] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._orders = itertools.count(1)
        self._ending: set[asyncio.Task[None]] = set()
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the directory, and keep polling it."""
        self._watcher = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Close all connections and drop all state."""
        tasks = [s.operation for s in self._sockets.values() if s.operation]
        if self._watcher is not None:
            tasks.append(self._watcher)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._sockets.clear()
        while self.endpoints:
            self._close(self.endpoints.pop())
        await asyncio.gather(*self._ending, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in the next iteration of the loop

    def instances(self, driver: str) -> list[RegisteredPlugin]:
        """The registered instances of a driver, most recent first."""
        found = [endpoint for endpoint in self.endpoints if endpoint.driver == driver]
        return sorted(found, key=lambda endpoint: -endpoint.order)

    def pick(self, driver: str) -> RegisteredPlugin | None:
        """The instance to call: the most recent that is connected, else the most recent."""
        instances = self.instances(driver)
        connected = [endpoint for endpoint in instances if endpoint.connection.connected]
        return next(iter(connected or instances), None)

    def error(self, socket: str) -> str:
        """Why the last registration through *socket* failed; empty when it did not."""
        known = self._sockets.get(socket)
        return known.error if known else ""

    def health(self, driver: str, pool: str, device: str) -> tuple[str, str]:
        """(``Healthy``, ``Unhealthy`` or ``Unknown``, message) as a pod's status would show it."""
        now = time.monotonic()
        for endpoint in self.instances(driver):
            entry = endpoint.health.get((pool, device))
            if entry and now - entry.arrived <= entry.holds:
                return entry.state, entry.message
        return "Unknown", ""

    async def _watch(self) -> None:
        while True:
            self._scan()
            await asyncio.sleep(self._timing.poll)

    def _scan(self) -> None:
        found = dict(_sockets_below(self._directory))
        for path, socket in list(self._sockets.items()):
            if found.get(path) != socket.identity:  # removed or replaced
                del self._sockets[path]
                self._unregister(socket)
        for path, identity in found.items():
            socket = self._sockets.setdefault(path, _Socket(path, identity))
            idle = socket.operation is None or socket.operation.done()
            if idle and socket.endpoint is None and time.monotonic() >= socket.next_try:
                socket.operation = asyncio.create_task(self._register(socket))

    def _unregister(self, socket: _Socket) -> None:
        if socket.operation is not None:
            socket.operation.cancel()
            self._end(socket.operation)
        if socket.endpoint is not None:
            self._remove(socket.endpoint)

    async def _register(self, socket: _Socket) -> None:
        self.attempts[socket.path] = self.attempts.get(socket.path, 0) + 1
        try:
            await self._converse(socket)
            socket.failures, socket.error = 0, ""
        except (RegistrationRejectedError, *CALL_FAILURES) as error:
            socket.error = f"{type(error).__name__}: {error}"
            pause = min(self._timing.back_off * 2**socket.failures, self._timing.back_off_cap)
            socket.failures += 1
            socket.next_try = time.monotonic() + pause
            log.info("registration failed", path=socket.path, error=socket.error)
        self.changed.fire()

    async def _converse(self, socket: _Socket) -> None:
        channel = Channel(path=socket.path)
        try:
            await self._dial(channel)
            pb = pluginregistration_pb2
            seconds = self._timing.get_info
            info = await _call(channel, "GetInfo", pb.InfoRequest(), pb.PluginInfo, seconds)
            try:
                endpoint = self._accept(info, socket.path)
            except RegistrationRejectedError as error:
                await self._notify(channel, accepted=False, error=str(error))
                raise
            self.endpoints.append(endpoint)
            try:
                await self._notify(channel, accepted=True, error="")
            except BaseException:
                self._remove(endpoint)
                raise
            socket.endpoint = endpoint
        finally:
            channel.close()
            await asyncio.sleep(0)

    async def _dial(self, channel: Channel) -> None:
        async with asyncio.timeout(self._timing.dial):
            while True:
                try:
                    await channel.__connect__()
                except OSError:
                    await asyncio.sleep(self._timing.reconnect)
                else:
                    return

    async def _notify(self, channel: Channel, *, accepted: bool, error: str) -> None:
        pb = pluginregistration_pb2
        status = pb.RegistrationStatus(plugin_registered=accepted, error=error)
        response = pb.RegistrationStatusResponse
        await _call(channel, "NotifyRegistrationStatus", status, response, self._timing.notify)

    def _accept(self, info: Any, socket: str) -> RegisteredPlugin:
        """Like the kubelet's ValidatePlugin and RegisterPlugin."""
        if info.type != "DRAPlugin":
            raise RegistrationRejectedError(f"no handler registered for plugin type: {info.type}")
        offered = list(info.supported_versions)
        api = next((name for name in offered if name in self._release.claims), None)
        if api is None:
            raise RegistrationRejectedError(
                f"none of the DRA gRPC services {list(self._release.claims)} is supported by the "
                f"plugin, which offers {offered}"
            )
        service = info.endpoint or socket
        if any((e.driver, e.service) == (info.name, service) for e in self.endpoints):
            raise RegistrationRejectedError(f"endpoint {service} already registered for plugin {info.name}")
        endpoint = RegisteredPlugin(
            driver=info.name,
            socket=socket,
            service=service,
            api=api,
            health_api=self._health_api(offered),
            order=next(self._orders),
            connection=Connection(service, self._timing.reconnect, self._reconsider),
        )
        if endpoint.health_api is not None:
            endpoint.listener = asyncio.create_task(self._listen(endpoint, endpoint.health_api))
        return endpoint

    def _health_api(self, offered: list[str]) -> str | None:
        anyway = not self._release.trusts_advertised
        return next((name for name in self._release.health if name in offered or anyway), None)

    # Without await: a cancellation in between would leave a connection open.

    def _remove(self, endpoint: RegisteredPlugin) -> None:
        if endpoint in self.endpoints:
            self.endpoints.remove(endpoint)
            self._close(endpoint)
            self._reconsider(endpoint.driver)

    def _close(self, endpoint: RegisteredPlugin) -> None:
        if endpoint.listener is not None:
            endpoint.listener.cancel()
            self._end(endpoint.listener)
        self._end(endpoint.connection.close())

    def _end(self, task: asyncio.Task[None]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _reconsider(self, *also: str) -> None:
        """Start the timer of drivers that became unusable; stop it for those that are usable again."""
        for driver in {*also, *(endpoint.driver for endpoint in self.endpoints)}:
            usable = any(e.connection.connected for e in self.instances(driver))
            timer = self._timers.get(driver)
            if usable and timer is not None:
                timer.cancel()
                del self._timers[driver]
            elif not usable and timer is None:
                loop = asyncio.get_running_loop()
                self._timers[driver] = loop.call_later(self._timing.wipe, self._time_up, driver)
        self.changed.fire()

    def _time_up(self, driver: str) -> None:
        del self._timers[driver]
        self._wipe(driver)
        self.changed.fire()

    async def _listen(self, endpoint: RegisteredPlugin, api: str) -> None:
        service, pb = _HEALTH[api]
        # Closing the connection ends the stream with another error, which hides the cancellation.
        while not endpoint.connection.closed:
            request, response = pb.NodeWatchResourcesRequest(), pb.NodeWatchResourcesResponse
            method = endpoint.connection.stream(f"/{service}/NodeWatchResources", request, response)
            try:
                async with method.open() as stream:
                    await stream.send_message(request, end=True)
                    async for report in stream:
                        self._note_health(endpoint, report)
            except GRPCError as error:
                if error.status is Status.UNIMPLEMENTED and self._release.trusts_advertised:
                    return
            except (StreamTerminatedError, OSError):
                pass  # like any other end: clear and retry
            endpoint.health.clear()
            self.changed.fire()
            await asyncio.sleep(self._timing.health_retry)

    def _note_health(self, endpoint: RegisteredPlugin, report: Any) -> None:
        now = time.monotonic()
        for one in report.devices:
            key = (one.device.pool_name, one.device.device_name)
            if key not in endpoint.health and len(endpoint.health) >= _MOST_DEVICES:
                log.error("too many devices in health report", driver=endpoint.driver)
                continue
            seconds = one.health_check_timeout_seconds
            message = one.message
            if len(message) > _LONGEST_MESSAGE:
                message = message[: _LONGEST_MESSAGE - 3] + "..."
            endpoint.health[key] = HealthEntry(
                state=_STATES[one.health] if one.health < len(_STATES) else "Unknown",
                message=message,
                arrived=now,
                holds=(seconds if seconds > 0 else _HEALTH_SECONDS) * self._timing.health_seconds,
            )
        endpoint.health_reports += 1
        self.changed.fire()


async def _call(channel: Channel, method: str, request: Any, response: type[Any], seconds: float) -> Any:
    path = f"/pluginregistration.Registration/{method}"
    return await UnaryUnaryMethod(channel, path, type(request), response)(request, timeout=seconds)


def _sockets_below(directory: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Sockets in *directory* and below, except hidden ones, with their identity."""
    for folder, below, names in os.walk(directory):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in names:
            path = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(path)
                if stat.S_ISSOCK(found.st_mode) and not name.startswith("."):
                    yield path, (found.st_ino, found.st_ctime_ns)
