"""Log of a driver's warnings, each once however often the machine is discovered."""

from __future__ import annotations

from collections.abc import Iterable

from drakit.core.log import get_logger
from drakit.drivers.models.node_driver import NodeDriver

log = get_logger(__name__)


class WarningLog:
    """Logs settings that do not fit the machine and inconsistencies in the kernel's files."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def log(self, driver: NodeDriver, more: Iterable[str] = ()) -> None:
        """Log the warnings of *driver* and its machine, and *more* about the configuration."""
        for reason in (*driver.warnings, *more):
            self._once("configuration does not fit this machine", "", reason)
        for warning in driver.cpus.machine.warnings:
            self._once("inconsistent kernel file", warning.file, warning.reason)

    def _once(self, message: str, path: str, reason: str) -> None:
        if (path, reason) not in self._logged:
            self._logged.add((path, reason))
            log.warning(message, **({"path": path} if path else {}), reason=reason)
