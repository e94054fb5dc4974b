"""Container runtimes: NRI version and capabilities of each release, with the evidence for every row.

A capability belongs to a runtime *and* its release, not to the NRI version alone: containerd 2.3 and
CRI-O 1.37 both have NRI 0.12, but only containerd reports CDI device names. From 0.12 on a runtime
declares its NRI version; before, it follows from name and release. A runtime silently ignores a field it
does not know, so a capability that is not in the table is treated as absent; see :func:`capabilities_of`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
"""Assumed for an unknown runtime."""

_NUMBERS: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?![\d])")


class ReleaseCapabilities(NamedTuple):
    """One row of the table: valid from this release on, until the next row."""

    first: tuple[int, int, int]
    nri: NriVersion
    reports_cdi_devices: bool
    """Whether ``Container.CDIDevices`` is set for plugins."""
    evidence: str
    """Where that was read or observed."""


class RuntimeEntry(NamedTuple):
    """One container runtime and its releases in ascending order."""

    reports_current_resources: bool
    """See :attr:`Features.reports_current_resources`."""
    releases: tuple[ReleaseCapabilities, ...]


RUNTIMES: Final[Mapping[str, RuntimeEntry]] = {
    "containerd": RuntimeEntry(
        True,
        (
            ReleaseCapabilities((1, 7, 0), NriVersion(0, 3), False, "go.mod of v1.7.0"),
            ReleaseCapabilities((1, 7, 7), NriVersion(0, 4), False, "go.mod of v1.7.7"),
            ReleaseCapabilities((1, 7, 14), NriVersion(0, 6), False, "go.mod of v1.7.14"),
            ReleaseCapabilities((1, 7, 16), NriVersion(0, 6, 1), False, "go.mod of v1.7.16; 1.7.24 observed"),
            ReleaseCapabilities((1, 7, 26), NriVersion(0, 8), False, "go.mod of v1.7.26"),
            ReleaseCapabilities((2, 0, 0), NriVersion(0, 8), False, "go.mod of v2.0.0 and v2.1.9"),
            ReleaseCapabilities((2, 2, 0), NriVersion(0, 10), False, "go.mod of v2.2.0"),
            ReleaseCapabilities((2, 2, 1), NriVersion(0, 11), False, "go.mod of v2.2.1; 2.2.1 observed"),
            ReleaseCapabilities(
                (2, 3, 0), NriVersion(0, 12), True, "v2.3.0 internal/cri/nri fills CDIDevices"
            ),
            ReleaseCapabilities((2, 4, 0), NriVersion(0, 12, 2), True, "go.mod of v2.4.0; 2.4.2 observed"),
        ),
    ),
    "cri-o": RuntimeEntry(
        False,
        (
            ReleaseCapabilities((1, 26, 0), NriVersion(0, 2), False, "go.mod of v1.26.0"),
            ReleaseCapabilities((1, 27, 0), NriVersion(0, 3), False, "go.mod of v1.27.0"),
            ReleaseCapabilities((1, 29, 0), NriVersion(0, 5), False, "go.mod of v1.29.0"),
            ReleaseCapabilities((1, 30, 0), NriVersion(0, 6), False, "go.mod of v1.30.0"),
            ReleaseCapabilities((1, 31, 0), NriVersion(0, 6, 1), False, "go.mod of v1.31.0"),
            ReleaseCapabilities((1, 32, 0), NriVersion(0, 9), False, "go.mod of v1.32.0 and v1.33.0"),
            ReleaseCapabilities((1, 34, 0), NriVersion(0, 10), False, "go.mod of v1.34.11"),
            ReleaseCapabilities((1, 35, 0), NriVersion(0, 11), False, "go.mod of v1.35.6; 1.36.3 observed"),
            ReleaseCapabilities(
                (1, 37, 0), NriVersion(0, 12), False, "v1.37.0 internal/nri/container.go sets no CDIDevices"
            ),
        ),
    ),
}
"""Every known runtime by the name it reports, in lower case."""


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime applies and reports."""

    unsolicited_updates: bool
    """Whether updates may be pushed. Before NRI 0.12.1 a lock-order inversion deadlocks the runtime
    permanently, so pushing must not even be tried there (containerd#13733, cri-o#9835)."""

    reports_cdi_devices: bool
    """Whether containers are known to carry the CDI device names that the kubelet requested.

    False for a runtime that is not in the table: CDI device names count where they are present, but their
    absence proves nothing.
    """

    reports_current_resources: bool
    """Whether the resources reported in Synchronize include earlier updates. CRI-O keeps updates in
    memory only: after its restart it reports what containers were created with."""


def capabilities_of(runtime: str, release: str, declared: str = "") -> tuple[NriVersion, Features]:
    """The NRI version and the features of a runtime, from the names and versions it reports.

    An unknown runtime, or a release older than the table, gets no feature that NRI does not imply: the
    driver then relies on verified marker variables and on what it observes (fail closed).
    """
    version = infer_version(runtime, release, declared)
    row, entry = _row(runtime, release), RUNTIMES.get(runtime.lower())
    features = Features(
        unsolicited_updates=version >= (0, 12, 1),
        reports_cdi_devices=row is not None and row.reports_cdi_devices,
        reports_current_resources=entry is not None and entry.reports_current_resources,
    )
    return version, features


def infer_version(runtime: str, release: str, declared: str) -> NriVersion:
    """The NRI version of the runtime *runtime* *release* that declares *declared*.

    Development builds declare nothing, ``(devel)`` or ``0.0.0-unknown``; then the newest row of the table
    that is not newer than the release applies, and :data:`OLDEST` without one.
    """
    numbers = _numbers(declared)
    if numbers is not None and numbers > (0, 0, 0):
        return NriVersion(*numbers)
    row = _row(runtime, release)
    return OLDEST if row is None else row.nri


def _row(runtime: str, release: str) -> ReleaseCapabilities | None:
    """The newest row that is not newer than *release*; None if the table has none."""
    numbers, entry = _numbers(release), RUNTIMES.get(runtime.lower())
    if numbers is None or entry is None:
        return None
    return next((row for row in reversed(entry.releases) if row.first <= numbers), None)


def _numbers(text: str) -> tuple[int, int, int] | None:
    found = _NUMBERS.match(text.strip())
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))
