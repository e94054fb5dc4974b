"""Releases of container runtimes, as the fake runtime implements them."""

from __future__ import annotations

from typing import Final

import msgspec

from drakit.wire.nri.versions import NriVersion


class FakeRuntimeRelease(msgspec.Struct, frozen=True):
    """A runtime release and its NRI version.

    Independent of the table that drivers use (:mod:`drakit.wire.nri.versions`), so that a wrong row
    there fails a test. The end-to-end tests compare this one with the real runtimes.
    """

    name: str
    version: str
    nri: NriVersion

    @property
    def is_crio(self) -> bool:
        """Whether this is CRI-O."""
        return self.name == "cri-o"

    @property
    def reports_cdi_devices(self) -> bool:
        """Whether plugins see CDI device names: containerd from 2.3 on, CRI-O up to 1.37 never."""
        return not self.is_crio and self.nri >= (0, 12)

    @property
    def tolerates_unsolicited_updates(self) -> bool:
        """Whether an unsolicited update may coincide with an event; earlier ones deadlock."""
        return self.nri >= (0, 12, 1)

    @property
    def knows_events(self) -> int:
        """The mask of all events it accepts in a registration."""
        return 0x3FFF if self.nri >= (0, 10) else 0x7FF

    @property
    def copies_pod_annotations(self) -> bool:
        """Whether containers carry their pod's annotations."""
        return self.is_crio

    @property
    def forgets_updates(self) -> bool:
        """Whether after a restart it reports containers as they were created."""
        return self.is_crio

    @property
    def undoes_rejected_creation(self) -> bool:
        """Whether plugins see the stop and removal of a container that a plugin rejected."""
        return not self.is_crio

    @property
    def honors_start_errors(self) -> bool:
        """Whether a container does not start when a plugin returns an error for its start."""
        return not self.is_crio

    @property
    def container_cgroup_prefix(self) -> str:
        """Prefix of the container's ID in the name of its cgroup (cgroupfs driver)."""
        return "crio-" if self.is_crio else ""

    @property
    def reports_nri_version(self) -> bool:
        """Whether Configure carries the NRI version."""
        return self.nri >= (0, 12)

    @property
    def reports_timeouts(self) -> bool:
        """Whether Configure carries the timeouts."""
        return self.nri >= (0, 7)

    @property
    def splits_synchronize(self) -> bool:
        """Whether a long Synchronize is sent in parts; earlier ones send it whole."""
        return self.nri >= (0, 7)

    @property
    def closes_after_failed_sync(self) -> bool:
        """Whether a plugin that failed to synchronize is closed; earlier ones only ignore it."""
        return self.nri >= (0, 7)

    @property
    def has_dedicated_methods(self) -> bool:
        """Whether events without a response have separate methods."""
        return self.nri >= (0, 12)

    @property
    def checks_names(self) -> bool:
        """Whether a plugin's name is checked; the index always is."""
        return self.nri >= (0, 12)

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
