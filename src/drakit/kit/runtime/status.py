"""Status of the connection to the runtime: synchronized, standby, off or disconnected."""

from __future__ import annotations

import asyncio

from drakit.core.log import get_logger
from drakit.wire.nri.handler import Cause, Disconnect

log = get_logger(__name__)


class RuntimeStatus:
    """Whether containers can be served now; *mode* is the option ``nri``."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._standby = False
        self._last_end: Disconnect | None = None
        self.synchronized = False
        self.ready = asyncio.Event()
        """Set once claims can be served: synchronized, standby, or NRI known to be off and optional."""

    @property
    def state(self) -> str:
        """``synchronized``, ``standby``, ``off`` or ``disconnected``."""
        if self._mode == "off" or self._standby:
            return "off" if self._mode == "off" else "standby"
        return "synchronized" if self.synchronized else "disconnected"

    @property
    def problem(self) -> str | None:
        """Why containers cannot be served now; None if they can, or if that is optional."""
        if self.state != "disconnected":
            return None
        if self._last_end is None:
            return "not yet synchronized with the container runtime"
        return None if self._is_optional(self._last_end) else str(self._last_end)

    def stand_by(self) -> None:
        """Wait while another instance serves the runtime."""
        if not self._standby:
            log.info("another instance serves the runtime, in standby until it ends")
        self._standby = True
        self.ready.set()

    def activate(self) -> None:
        """Serve the runtime from now on."""
        self._standby = False
        if self._mode == "required":
            self.ready.clear()

    def connect(self) -> None:
        """Record that the runtime is synchronized."""
        self.synchronized = True
        self.ready.set()

    def disconnect(self, end: Disconnect) -> None:
        """Record that the connection ended or cannot be made."""
        self.synchronized = False
        self._last_end = end
        if self._is_optional(end):
            log.warning("no NRI socket, not enforcing as configured (nri: optional)", error=end)
            self.ready.set()

    def _is_optional(self, end: Disconnect) -> bool:
        return self._mode == "optional" and end.cause is Cause.NO_SOCKET
