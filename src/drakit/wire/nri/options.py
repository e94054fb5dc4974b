"""How a plugin reaches the runtime, and who it says it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from drakit.wire.nri.values import EVERY_VARIABLE
from drakit.wire.nri.versions import PINNING_EVENTS, Event

DEFAULT_SOCKET: Final = "/var/run/nri/nri.sock"

_NAME: Final = re.compile(r"[A-Za-z0-9_.+-]+")
_INDEX: Final = re.compile(r"[0-9]{2}", re.ASCII)


class PluginOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the runtime and who we are to it.

    *index* orders plugins: two digits, lower is asked first. *descriptor* is an already connected
    socket, inherited from a runtime that launched the plugin itself. *variables* are prefixes: of
    containers' environments only variables that begin with one are kept, which saves megabytes
    where a node has hundreds of containers. Raises ``ValueError``.
    """

    name: str
    index: str = "90"
    socket_path: str = DEFAULT_SOCKET
    descriptor: int | None = None
    events: frozenset[Event] = PINNING_EVENTS
    variables: tuple[str, ...] = EVERY_VARIABLE
    registration_timeout: float = 30.0
    synchronization_timeout: float = 30.0
    first_delay: float = 0.05
    longest_delay: float = 1.0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"NRI plugin name {self.name!r}: only letters, digits, '_', '.', '+' and '-'"
            )
        if not _INDEX.fullmatch(self.index):
            raise ValueError(f"NRI plugin index {self.index!r} is not two digits, like '90'")

    def with_environment(self, environment: Mapping[str, str]) -> PluginOptions:
        """These options as a runtime overrides them for a plugin it launched itself.

        Such a runtime sets ``NRI_PLUGIN_NAME``, ``NRI_PLUGIN_IDX`` and the descriptor in
        ``NRI_PLUGIN_SOCKET``. Without the latter nothing changes.
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
