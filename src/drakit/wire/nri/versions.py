"""What the runtime at the other end can do.

From 0.12 a runtime says which NRI it has; before, the version follows from its name and release.
A field sent to a runtime that does not know it is silently not applied, and an event bit it does
not know makes it refuse the plugin: so nothing is assumed.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec


class NriVersion(NamedTuple):
    """A release of NRI; compares as versions do."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


OLDEST: Final = NriVersion(0, 2)
"""What is assumed of a runtime nobody knows."""

_NUMBERS: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?![\d])")

_CONTAINERD: Final = (
    ((1, 7, 0), NriVersion(0, 3)),
    ((1, 7, 7), NriVersion(0, 4)),
    ((1, 7, 14), NriVersion(0, 6)),
    ((1, 7, 16), NriVersion(0, 6, 1)),
    ((1, 7, 26), NriVersion(0, 8)),
    ((2, 0, 0), NriVersion(0, 8)),
    ((2, 2, 0), NriVersion(0, 10)),
    ((2, 2, 1), NriVersion(0, 11)),
    ((2, 3, 0), NriVersion(0, 12)),
    ((2, 4, 0), NriVersion(0, 12, 2)),
)
_CRIO: Final = (
    ((1, 26, 0), NriVersion(0, 2)),
    ((1, 27, 0), NriVersion(0, 3)),
    ((1, 29, 0), NriVersion(0, 5)),
    ((1, 30, 0), NriVersion(0, 6)),
    ((1, 31, 0), NriVersion(0, 6, 1)),
    ((1, 32, 0), NriVersion(0, 9)),
    ((1, 34, 0), NriVersion(0, 10)),
    ((1, 35, 0), NriVersion(0, 11)),
    ((1, 37, 0), NriVersion(0, 12)),
)
_RELEASES: Final = {"containerd": _CONTAINERD, "cri-o": _CRIO}


def _numbers(text: str) -> tuple[int, int, int] | None:
    found = _NUMBERS.match(text.strip())
    if found is None:
        return None
    return int(found[1]), int(found[2]), int(found[3] or 0)


def infer_version(runtime: str, release: str, declared: str) -> NriVersion:
    """The NRI version of the runtime *runtime* *release* that declares *declared*.

    Development builds declare nothing, ``(devel)`` or ``0.0.0-unknown``; then the newest entry
    of the table that is not newer than the release counts, and :data:`OLDEST` without one.
    """
    said = _numbers(declared)
    if said is not None and said > (0, 0, 0):
        return NriVersion(*said)
    numbers = _numbers(release)
    known = OLDEST
    if numbers is not None:
        for first, version in _RELEASES.get(runtime.lower(), ()):
            if first <= numbers:
                known = version
    return known


class Event(IntEnum):
    """What happens to pods and containers, by NRI's numbers."""

    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    POST_START_CONTAINER = 7
    UPDATE_CONTAINER = 8
    POST_UPDATE_CONTAINER = 9
    STOP_CONTAINER = 10
    REMOVE_CONTAINER = 11
    UPDATE_POD_SANDBOX = 12
    POST_UPDATE_POD_SANDBOX = 13
    VALIDATE_CONTAINER_ADJUSTMENT = 14

    @property
    def bit(self) -> int:
        """Its place in the event mask."""
        return 1 << (self - 1)


PINNING_EVENTS: Final = frozenset(
    {
        Event.REMOVE_POD_SANDBOX,
        Event.CREATE_CONTAINER,
        Event.START_CONTAINER,
        Event.POST_START_CONTAINER,
        Event.UPDATE_CONTAINER,
        Event.STOP_CONTAINER,
        Event.REMOVE_CONTAINER,
    }
)
"""What a driver that decides about CPUs and memory needs. Start is there to refuse a container
whose creation was missed; its answer can carry an error but no change."""


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime of a certain NRI version honours."""

    known_events: int
    """The event mask that covers everything it knows."""

    unsolicited_updates: bool
    """Whether updates may be pushed. Before 0.12.1 a lock-order inversion wedges the runtime
    for good, so there it must not even be tried (containerd#13733)."""

    reports_cdi_devices: bool
    """Whether containers carry the CDI device names the kubelet asked for."""

    memory_policy: bool
    """Whether a memory policy in an adjustment is applied."""

    @classmethod
    def of(cls, version: NriVersion) -> Features:
        """The features of *version*."""
        return cls(
            known_events=0x3FFF if version >= (0, 10) else 0x7FF,
            unsolicited_updates=version >= (0, 12, 1),
            reports_cdi_devices=version >= (0, 12),
            memory_policy=version >= (0, 12),
        )


def event_mask(wanted: frozenset[Event], features: Features) -> int:
    """The mask to answer Configure with: what is *wanted* and known.

    Never zero, which would mean "everything", including the validation of other plugins'
    adjustments; raises ``ValueError`` then.
    """
    mask = sum(event.bit for event in wanted) & features.known_events
    if not mask:
        raise ValueError("a plugin that wants no event the runtime knows has no use")
    return mask
