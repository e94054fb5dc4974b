"""What the runtime at the other end can do: a table of releases, with the evidence for each row.

A capability belongs to a runtime *and* its release, not to the NRI version alone: containerd 2.3 and
CRI-O 1.37 both have NRI 0.12, but only containerd reports CDI device names. From 0.12 a runtime
declares its NRI version; before, it follows from name and release. A field sent to a runtime that does
not know it is silently not applied, and an event bit it does not know makes it reject the plugin: so
nothing is assumed. What the table does not know is treated as absent; see :func:`capabilities_of`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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


class RuntimeRelease(NamedTuple):
    """A row of the table: what holds from this release on, until the next row."""

    first: tuple[int, int, int]
    nri: NriVersion
    reports_cdi_devices: bool
    """Whether ``Container.CDIDevices`` is filled in for plugins."""
    evidence: str
    """Where that was read or observed."""


_CONTAINERD: Final = (
    RuntimeRelease((1, 7, 0), NriVersion(0, 3), False, "go.mod of v1.7.0"),
    RuntimeRelease((1, 7, 7), NriVersion(0, 4), False, "go.mod of v1.7.7"),
    RuntimeRelease((1, 7, 14), NriVersion(0, 6), False, "go.mod of v1.7.14"),
    RuntimeRelease((1, 7, 16), NriVersion(0, 6, 1), False, "go.mod of v1.7.16; 1.7.24 observed"),
    RuntimeRelease((1, 7, 26), NriVersion(0, 8), False, "go.mod of v1.7.26"),
    RuntimeRelease((2, 0, 0), NriVersion(0, 8), False, "go.mod of v2.0.0 and v2.1.9"),
    RuntimeRelease((2, 2, 0), NriVersion(0, 10), False, "go.mod of v2.2.0"),
    RuntimeRelease((2, 2, 1), NriVersion(0, 11), False, "go.mod of v2.2.1; 2.2.1 observed"),
    RuntimeRelease((2, 3, 0), NriVersion(0, 12), True, "v2.3.0 internal/cri/nri fills CDIDevices"),
    RuntimeRelease((2, 4, 0), NriVersion(0, 12, 2), True, "go.mod of v2.4.0; 2.4.2 observed"),
)
_CRIO: Final = (
    RuntimeRelease((1, 26, 0), NriVersion(0, 2), False, "go.mod of v1.26.0"),
    RuntimeRelease((1, 27, 0), NriVersion(0, 3), False, "go.mod of v1.27.0"),
    RuntimeRelease((1, 29, 0), NriVersion(0, 5), False, "go.mod of v1.29.0"),
    RuntimeRelease((1, 30, 0), NriVersion(0, 6), False, "go.mod of v1.30.0"),
    RuntimeRelease((1, 31, 0), NriVersion(0, 6, 1), False, "go.mod of v1.31.0"),
    RuntimeRelease((1, 32, 0), NriVersion(0, 9), False, "go.mod of v1.32.0 and v1.33.0"),
    RuntimeRelease((1, 34, 0), NriVersion(0, 10), False, "go.mod of v1.34.11"),
    RuntimeRelease((1, 35, 0), NriVersion(0, 11), False, "go.mod of v1.35.6; 1.36.3 observed"),
    RuntimeRelease(
        (1, 37, 0), NriVersion(0, 12), False, "v1.37.0 internal/nri/container.go sets no CDIDevices"
    ),
)
RUNTIMES: Final[Mapping[str, tuple[RuntimeRelease, ...]]] = {
    "containerd": _CONTAINERD,
    "cri-o": _CRIO,
}
"""Every runtime that is known, its releases in ascending order."""


def _numbers(text: str) -> tuple[int, int, int] | None:
    found = _NUMBERS.match(text.strip())
    if found is None:
        return None
    return int(found[1]), int(found[2]), int(found[3] or 0)


def _row(runtime: str, release: str) -> RuntimeRelease | None:
    """The newest row that is not newer than *release*; None for what the table does not know."""
    numbers = _numbers(release)
    known = None
    if numbers is not None:
        for row in RUNTIMES.get(runtime.lower(), ()):
            if row.first <= numbers:
                known = row
    return known


def infer_version(runtime: str, release: str, declared: str) -> NriVersion:
    """The NRI version of the runtime *runtime* *release* that declares *declared*.

    Development builds declare nothing, ``(devel)`` or ``0.0.0-unknown``; then the newest row
    of the table that is not newer than the release counts, and :data:`OLDEST` without one.
    """
    numbers = _numbers(declared)
    if numbers is not None and numbers > (0, 0, 0):
        return NriVersion(*numbers)
    row = _row(runtime, release)
    return OLDEST if row is None else row.nri


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
"""What a driver that decides about CPUs and memory needs. Start is there to reject a container
whose creation was missed; its answer can carry an error but no change."""


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime honors and reports."""

    known_events: int
    """The event mask that covers everything it knows."""

    unsolicited_updates: bool
    """Whether updates may be pushed. Before NRI 0.12.1 a lock-order inversion deadlocks the runtime
    for good, so there it must not even be tried (containerd#13733, cri-o#9835)."""

    reports_cdi_devices: bool
    """Whether containers are known to carry the CDI device names the kubelet asked for.

    False for a runtime that is not in the table: its names count when they are there, but their
    absence proves nothing.
    """

    reports_current_resources: bool
    """Whether the resources reported in Synchronize include earlier updates. CRI-O keeps updates in
    memory only: after its restart it reports what containers were created with."""

    memory_policy: bool
    """Whether a memory policy in an adjustment is applied."""

    @classmethod
    def of(
        cls,
        version: NriVersion,
        *,
        reports_cdi_devices: bool = False,
        reports_current_resources: bool = False,
    ) -> Features:
        """The features that follow from the NRI *version*, and those that do not as given."""
        return cls(
            known_events=0x3FFF if version >= (0, 10) else 0x7FF,
            unsolicited_updates=version >= (0, 12, 1),
            reports_cdi_devices=reports_cdi_devices,
            reports_current_resources=reports_current_resources,
            memory_policy=version >= (0, 12),
        )


def capabilities_of(runtime: str, release: str, declared: str = "") -> tuple[NriVersion, Features]:
    """The NRI version and the features of a runtime, from what it says about itself.

    An unknown runtime, or a release older than the table, gets no feature that NRI does not imply: the
    driver then relies on checked marker variables and on what it sees (fail closed).
    """
    version = infer_version(runtime, release, declared)
    row = _row(runtime, release)
    features = Features.of(
        version,
        reports_cdi_devices=row is not None and row.reports_cdi_devices,
        reports_current_resources=runtime.lower() == "containerd",
    )
    return version, features


def event_mask(wanted: frozenset[Event], features: Features) -> int:
    """The mask to answer Configure with: what is *wanted* and known.

    Never zero, which would mean "everything", including the validation of other plugins'
    adjustments; raises ``ValueError`` then.
    """
    mask = sum(event.bit for event in wanted) & features.known_events
    if not mask:
        raise ValueError("a plugin that wants no event the runtime knows has no use")
    return mask
