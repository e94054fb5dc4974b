"""Releases of container runtimes, as the fake runtime implements them."""

from __future__ import annotations

from typing import Final

import msgspec

from drakit.wire.nri.versions import NriVersion

_crio: Final = property(lambda release: release.name == "cri-o")
_not_crio: Final = property(lambda release: release.name != "cri-o")


def _since(*version: int) -> property:
    """True from this NRI version on."""
    return property(lambda release: release.nri >= version)


class FakeRuntimeRelease(msgspec.Struct, frozen=True):
    """A runtime release and its NRI version.

    Independent of the table that drivers use (:mod:`drakit.wire.nri.versions`), so that a wrong row
    there fails a test. The end-to-end tests compare this one with the real runtimes.
    """

    name: str
    version: str
    nri: NriVersion

    copies_pod_annotations = _crio
    """Whether containers carry their pod's annotations."""
    forgets_updates = _crio
    """Whether after a restart it reports containers as they were created."""
    undoes_rejected_creation = _not_crio
    """Whether plugins see the stop and removal of a container that a plugin rejected."""
    honors_start_errors = _not_crio
    """Whether a container does not start when a plugin returns an error for its start."""
    reports_timeouts = _since(0, 7)
    """Whether Configure carries the timeouts."""
    splits_synchronize = _since(0, 7)
    """Whether a long Synchronize is sent in parts; earlier ones send it whole."""
    closes_after_failed_sync = _since(0, 7)
    """Whether a plugin that failed to synchronize is closed; earlier ones only ignore it."""
    reports_nri_version = _since(0, 12)
    """Whether Configure carries the NRI version."""
    has_dedicated_methods = _since(0, 12)
    """Whether events without a response have separate methods."""
    checks_names = _since(0, 12)
    """Whether a plugin's name is checked; the index always is."""
    tolerates_unsolicited_updates = _since(0, 12, 1)
    """Whether an unsolicited update may coincide with an event; earlier ones deadlock."""

    @property
    def reports_cdi_devices(self) -> bool:
        """Whether plugins see CDI device names: containerd from 2.3 on, CRI-O up to 1.37 never."""
        return self.name != "cri-o" and self.nri >= (0, 12)

    @property
    def knows_events(self) -> int:
        """The mask of all events it accepts in a registration."""
        return 0x3FFF if self.nri >= (0, 10) else 0x7FF

    @property
    def container_cgroup_prefix(self) -> str:
        """Prefix of the container's ID in the name of its cgroup (cgroupfs driver)."""
        return "crio-" if self.name == "cri-o" else ""

    def __str__(self) -> str:
        return f"{self.name} {self.version} (NRI {self.nri})"


CONTAINERD_1_7: Final = FakeRuntimeRelease("containerd", "v1.7.20", NriVersion(0, 6, 1))
CONTAINERD_2_0: Final = FakeRuntimeRelease("containerd", "v2.0.2", NriVersion(0, 8))
CONTAINERD_2_2: Final = FakeRuntimeRelease("containerd", "v2.2.1", NriVersion(0, 11))
CONTAINERD_2_3: Final = FakeRuntimeRelease("containerd", "v2.3.0", NriVersion(0, 12))
CONTAINERD_2_4: Final = FakeRuntimeRelease("containerd", "v2.4.0", NriVersion(0, 12, 2))
CRIO_1_33: Final = FakeRuntimeRelease("cri-o", "1.33.4", NriVersion(0, 9))
CRIO_1_34: Final = FakeRuntimeRelease("cri-o", "1.34.1", NriVersion(0, 10))
CRIO_1_36: Final = FakeRuntimeRelease("cri-o", "1.36.3", NriVersion(0, 11))
CRIO_1_37: Final = FakeRuntimeRelease("cri-o", "1.37.0", NriVersion(0, 12))

EVERY_RELEASE: Final = (
    CONTAINERD_1_7,
    CONTAINERD_2_0,
    CONTAINERD_2_2,
    CONTAINERD_2_3,
    CONTAINERD_2_4,
    CRIO_1_33,
    CRIO_1_34,
    CRIO_1_36,
    CRIO_1_37,
)
