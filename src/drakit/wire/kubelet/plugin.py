"""Kubelet plugin of a DRA driver: service socket, registration socket and their cleanup."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Callable, Iterable
from typing import Final

from drakit.core import atomicfile
from drakit.core.filelock import FileLock
from drakit.core.log import get_logger
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
from drakit.wire.kubelet.values import DraHandler, HealthReport, KubeletCall

log = get_logger(__name__)

DEFAULT_KUBELET_ROOT: Final = "/var/lib/kubelet"
_LOCK_SECONDS: Final = 10.0
_DRIVER_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?")


class KubeletPlugin:
    """Serves a driver's claims and health to the kubelet of this node.

    The constructor only checks its arguments. Call :meth:`start_service`, then :meth:`register` when
    the driver can handle calls, and finally :meth:`close`, which removes both sockets.

    *instance_uid* (the pod's UID) gives this instance its own sockets, so that two instances can run
    during a rolling update; without it a second instance is rejected. The directories must have the
    same path for the kubelet and this process.
    """

    def __init__(
        self,
        driver_name: str,
        handler: DraHandler,
        *,
        kubelet_root: str = DEFAULT_KUBELET_ROOT,
        instance_uid: str | None = None,
        on_call: Callable[[KubeletCall], None] = lambda call: None,
    ) -> None:
        _check_driver_name(driver_name)
        root = os.path.abspath(kubelet_root)
        self.driver_name = driver_name
        self.registry_dir = os.path.join(root, "plugins_registry")
        self.plugin_dir = os.path.join(root, "plugins", driver_name)
        self.service_path = sockets.service_socket(self.plugin_dir, instance_uid)
        self.registration_path = sockets.registration_socket(self.registry_dir, driver_name, instance_uid)
        self.registered = asyncio.Event()
        self.registration_error = ""
        """Why the kubelet rejected the registration, if it did."""
        self._handler = handler
        self._health = HealthFeed()
        self._on_call = on_call
        self._service: UnixServer | None = None
        self._registration: UnixServer | None = None

    @property
    def connections(self) -> int:
        """Open connections to the service socket.

        A kubelet keeps one; without any for 30 s it deletes the driver's ResourceSlices.
        """
        return self._service.connections if self._service else 0

    async def start_service(self) -> None:
        """Remove sockets of dead instances, then serve claims and health.

        Raises ``SocketInUseError`` when another instance uses the same path, ``FileNotFoundError``
        when the registration directory does not exist.
        """
        if self._service is not None:
            raise RuntimeError(f"{self.driver_name} already serves on {self.service_path}")
        self._service = await self._bind_service()

    async def _bind_service(self) -> UnixServer:
        _check_registry(self.registry_dir)
        atomicfile.ensure_directory(self.plugin_dir, 0o750)
        async with self._lock().hold(_LOCK_SECONDS):
            for path in sockets.clean_stale(self.plugin_dir, self.registry_dir, self.driver_name):
                log.info("removed stale socket", path=path)
            server = await self._serve(self.service_path, self._services())
        log.info("serving the kubelet", driver=self.driver_name, path=self.service_path)
        return server

    async def register(self) -> None:
        """Create the registration socket; from now on the kubelet may call.

        :attr:`registered` is set when the kubelet has accepted the plugin.
        """
        if self._service is None:
            raise RuntimeError("call start_service() before register(): the kubelet calls at once")
        if self._registration is not None:
            raise RuntimeError(f"{self.driver_name} already has a registration socket")
        self._registration = await self._bind_registration()

    async def _bind_registration(self) -> UnixServer:
        service = RegistrationService(self.driver_name, self.service_path, self._registration_status)
        async with self._lock().hold(_LOCK_SECONDS):
            server = await self._serve(self.registration_path, [service])
        log.info("waiting for registration", path=self.registration_path)
        return server

    def missing_sockets(self) -> list[str]:
        """Sockets of this instance whose files were removed or replaced.

        Without its registration socket a plugin is unregistered at once; without its service socket
        it is unreachable after the connection is lost.
        """
        servers = [server for server in (self._service, self._registration) if server]
        return [server.bound.path for server in servers if not server.bound.is_in_place()]

    async def restore_sockets(self) -> None:
        """Bind missing sockets again, service first; the kubelet has to reconnect.

        Raises ``SocketInUseError`` when another instance uses the path.
        """
        missing = set(self.missing_sockets())
        if self._service is not None and self.service_path in missing:
            lost, self._service = self._service, await self._bind_service()
            await lost.close(grace=1.0)
        if self._registration is not None and self.registration_path in missing:
            lost, self._registration = self._registration, await self._bind_registration()
            await lost.close(grace=0)

    def report_health(self, devices: Iterable[HealthReport], holds: float = math.inf) -> None:
        """Report the health of all devices; see :meth:`HealthFeed.publish`."""
        self._health.publish(devices, holds)

    async def close(self, grace: float = 1.0) -> None:
        """Unregister and stop, with *grace* seconds for running calls.

        ResourceSlices stay; the kubelet deletes them if no instance is back within 30 s. May be called
        repeatedly, and after a failed start.
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
        except asyncio.CancelledError:  # leave no socket behind
            await starting
            await server.close(0)
            raise
        return server

    def _services(self) -> list[Service]:
        return [
            *(ClaimService(a, self._handler, self._on_call) for a in CLAIM_APIS),
            *(HealthService(a, self._health) for a in HEALTH_APIS),
        ]

    def _registration_status(self, accepted: bool, error: str) -> None:
        if accepted:
            log.info("registered by the kubelet", driver=self.driver_name)
            self.registration_error = ""
            self.registered.set()
        else:
            log.error("kubelet rejected the plugin", driver=self.driver_name, error=error)
            self.registration_error = error
            self.registered.clear()


def _check_driver_name(name: str) -> None:
    if len(name) > 63 or not _DRIVER_NAME.fullmatch(name):
        raise ValueError(
            f"driver name {name!r} must be a DNS subdomain of at most 63 characters, "
            f"for example gpu.example.com"
        )


def _check_registry(path: str) -> None:
    if not os.path.isdir(path):
        raise FileNotFoundError(
            f"the kubelet's registration directory {path} does not exist: check that the kubelet "
            f"root is correct and mounted into this container under the same path"
        )
