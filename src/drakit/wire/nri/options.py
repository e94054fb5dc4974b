"""Options of an NRI plugin: how to reach the runtime, name, index and events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from drakit.wire.nri.event_table import HANDLED_EVENTS, Event
from drakit.wire.nri.values import EVERY_VARIABLE

DEFAULT_SOCKET: Final = "/var/run/nri/nri.sock"

_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]+")
_INDEX: Final = re.compile(r"[0-9]{2}", re.ASCII)


class PluginOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Name of the plugin and how to reach the runtime.

    *index* orders plugins: two digits, the lowest is called first. *descriptor* is an already connected
    socket, inherited from a runtime that launched the plugin. *variables* are prefixes: of containers'
    environments only variables that begin with one are kept, which saves megabytes on a node with
    hundreds of containers. Raises ``ValueError``.
    """

    name: str
    index: str = "90"
    socket_path: str = DEFAULT_SOCKET
    descriptor: int | None = None
    events: frozenset[Event] = HANDLED_EVENTS
    variables: tuple[str, ...] = EVERY_VARIABLE
    registration_timeout: float = 30.0
    synchronization_timeout: float = 30.0
    first_delay: float = 0.05
    longest_delay: float = 1.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"NRI plugin name {self.name!r}: only letters, digits, '_', '.', '+' and '-' are allowed"
            )
        if not _INDEX.fullmatch(self.index):
            raise ValueError(f"NRI plugin index {self.index!r} is not two digits, like '90'")

    def with_environment(self, environment: Mapping[str, str]) -> PluginOptions:
        """These options with those of a runtime that launched the plugin itself.

        Such a runtime sets ``NRI_PLUGIN_NAME``, ``NRI_PLUGIN_IDX`` and the descriptor in
        ``NRI_PLUGIN_SOCKET``. Without the last one nothing changes.
        """
        text = environment.get("NRI_PLUGIN_SOCKET", "")
        if not text:
            return self
        if not text.isdecimal():
            raise ValueError(f"NRI_PLUGIN_SOCKET={text!r} is not a file descriptor")
        return msgspec.structs.replace(
            self,
            descriptor=int(text),
            name=environment.get("NRI_PLUGIN_NAME") or self.name,
            index=environment.get("NRI_PLUGIN_IDX") or self.index,
        )
