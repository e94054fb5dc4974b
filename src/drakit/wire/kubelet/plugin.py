"""A DRA driver as the kubelet sees it: two sockets, in the right order, and nothing left behind."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterable
from typing import Final

from drakit.core import atomicfile
from drakit.core.filelock import FileLock
from drakit.wire.kubelet import sockets
from drakit.wire.kubelet.health import HealthFeed
from drakit.wire.kubelet.server import Service, UnixServer
from drakit.wire.kubelet.services import (
    CLAIM_APIS,
    HEALTH_APIS,
    ClaimService,
    HealthService,
    RegistrationService,
)
from drakit.wire.kubelet.values import (
    DraHandler,
    HealthReport,
    KubeletCall,
    RegistrationPhase,
    RegistrationState,
)

log = logging.getLogger(__name__)

DEFAULT_KUBELET_ROOT: Final = "/var/lib/kubelet"
_LOCK_SECONDS: Final = 10.0
_DRIVER_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?")


class KubeletPlugin:
    """Serves a driver's claims and health to the kubelet of this node.

    Making one touches nothing but checks everything that can be known: the driver's name and the
    length of the socket paths. Then, in this order: :meth:`start_service`, and once the driver can
    answer, :meth:`register`; at the end :meth:`close`, which removes both sockets.

    *instance_uid* (the pod's UID) gives this instance sockets of its own, so that an old and a new
    instance run side by side during a rolling update. Without it a second instance is rejected.
    The directories must have the same path for the kubelet as for this process.
    """

    def __init__(
        self,
        driver_name: str,
        handler: DraHandler,
        *,
        kubelet_root: str = DEFAULT_KUBELET_ROOT,
        registry_dir: str | None = None,
        plugin_dir: str | None = None,
        instance_uid: str | None = None,
        on_call: Callable[[KubeletCall], None] | None = None,
        on_registration: Callable[[RegistrationState], None] | None = None,
    ) -> None:
        _check_driver_name(driver_name)
        root = os.path.abspath(kubelet_root)
        self.driver_name = driver_name
        self.registry_dir = os.path.abspath(registry_dir or os.path.join(root, "plugins_registry"))
        self.plugin_dir = os.path.abspath(plugin_dir or os.path.join(root, "plugins", driver_name))
        self.service_path = sockets.service_socket(self.plugin_dir, instance_uid)
        self.registration_path = sockets.registration_socket(
            self.registry_dir, driver_name, instance_uid
        )
        self.registered = asyncio.Event()
        self._handler = handler
        self._state = RegistrationState()
        self._last_contact: float | None = None
        self._health = HealthFeed()
        self._on_call = on_call
        self._on_registration = on_registration
        self._service: UnixServer | None = None
        self._registration: UnixServer | None = None

    @property
    def state(self) -> RegistrationState:
        """What the kubelet last said about the registration."""
        return self._state

    @property
    def connections(self) -> int:
        """Open connections to the service socket; a kubelet that knows the plugin keeps one.

        None for 30 s, and the kubelet deletes the driver's ResourceSlices.
        """
        return self._service.connections if self._service else 0

    def seconds_since_contact(self) -> float | None:
        """Seconds since the kubelet last called, None when it never did."""
        return None if self._last_contact is None else time.monotonic() - self._last_contact

    async def start_service(self) -> None:
        """Serve claims and health; clean up after dead instances of this driver first.

        The kubelet does not know of it yet. Raises ``SocketInUseError`` when another instance
        lives at the same path, ``FileNotFoundError`` when there is no registration directory.
        """
        if self._service is not None:
            raise RuntimeError(f"{self.driver_name} already serves on {self.service_path}")
        _check_registry(self.registry_dir)
        atomicfile.ensure_directory(self.plugin_dir, 0o750)
        async with self._lock().hold(_LOCK_SECONDS):
            stale = sockets.clean_stale(self.plugin_dir, self.registry_dir, self.driver_name)
            for path in stale:
                log.info("removed %s, left behind by an instance that is gone", path)
            self._service = await self._serve(self.service_path, self._services())
        log.info("serving %s on %s", self.driver_name, self.service_path)

    async def register(self) -> None:
        """Make the plugin known: create the registration socket, where the kubelet looks for it.

        Only now may calls come, so the driver must be ready. Returns when the socket is there;
        :attr:`registered` is set when the kubelet has accepted.
        """
        if self._service is None:
            raise RuntimeError("start_service() comes before register(): the kubelet calls at once")
        if self._registration is not None:
            raise RuntimeError(f"{self.driver_name} is already offered for registration")
        service = RegistrationService(
            self.driver_name, self.service_path, self._heard_status, self._seen
        )
        async with self._lock().hold(_LOCK_SECONDS):
            self._registration = await self._serve(self.registration_path, [service])
        log.info("offered for registration on %s", self.registration_path)

    def missing_sockets(self) -> list[str]:
        """Sockets of this instance whose files somebody removed or replaced.

        Without its registration socket a plugin is unregistered at once; without its service
        socket it cannot be reached again once the connection is lost.
        """
        servers = [server for server in (self._service, self._registration) if server]
        return [server.bound.path for server in servers if not server.bound.is_in_place()]

    async def restore_sockets(self) -> None:
        """Bind missing sockets anew, service first; the kubelet has to connect anew.

        Raises ``SocketInUseError`` when another instance has taken the place.
        """
        missing = set(self.missing_sockets())
        if self._service is not None and self.service_path in missing:
            lost, self._service = self._service, None
            try:
                await self.start_service()
            except BaseException:
                self._service = lost
                raise
            await lost.close(grace=1.0)
        if self._registration is not None and self.registration_path in missing:
            lost, self._registration = self._registration, None
            try:
                await self.register()
            except BaseException:
                self._registration = lost
                raise
            await lost.close(grace=0)

    def report_health(self, devices: Iterable[HealthReport], holds: float = math.inf) -> None:
        """Tell the kubelet how all devices are; repeated before it would age, until replaced.

        A device left out of the newest report turns Unknown after its time-out, and all of them
        do when the newest report is older than *holds* seconds.
        """
        self._health.publish(devices, holds)

    async def close(self, grace: float = 1.0) -> None:
        """Unregister and stop: both socket files first, *grace* seconds for running calls.

        ResourceSlices stay; the kubelet removes them when no instance is back within 30 s.
        May be called twice, and after a start that failed.
        """
        servers = [server for server in (self._registration, self._service) if server]
        self._registration = self._service = None
        for server in servers:
            server.remove_file()
        for server in servers:
            await server.close(grace)
        self.registered.clear()

    def _lock(self) -> FileLock:
        return FileLock(os.path.join(self.plugin_dir, sockets.LOCK_NAME))

    async def _serve(self, path: str, services: list[Service]) -> UnixServer:
        sockets.record(self.plugin_dir, path)
        server = UnixServer(sockets.bind(path), services)
        starting = asyncio.ensure_future(server.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:  # told to stop at this very moment: leave nothing behind
            await starting
            await server.close(0)
            raise
        return server

    def _services(self) -> list[Service]:
        return [
            *(ClaimService(a, self._handler, self._seen, self._finished) for a in CLAIM_APIS),
            *(HealthService(a, self._health, self._seen) for a in HEALTH_APIS),
        ]

    def _seen(self) -> None:
        self._last_contact = time.monotonic()

    def _finished(self, call: KubeletCall) -> None:
        if self._on_call is not None:
            self._on_call(call)

    def _heard_status(self, accepted: bool, error: str) -> None:
        if accepted:
            log.info("the kubelet has registered %s", self.driver_name)
            self._state = RegistrationState(RegistrationPhase.REGISTERED)
            self.registered.set()
        else:
            log.error("the kubelet refuses %s: %s", self.driver_name, error)
            self._state = RegistrationState(RegistrationPhase.REFUSED, error)
            self.registered.clear()
        if self._on_registration is not None:
            self._on_registration(self._state)


def _check_driver_name(name: str) -> None:
    if len(name) > 63 or not _DRIVER_NAME.fullmatch(name):
        raise ValueError(
            f"driver name {name!r} must be a DNS subdomain of at most 63 characters, "
            f"for example gpu.example.com"
        )


def _check_registry(path: str) -> None:
    if not os.path.isdir(path):
        raise FileNotFoundError(
            f"the kubelet's registration directory {path} does not exist: is the kubelet root "
            f"right, and mounted into this container under the same path?"
        )
