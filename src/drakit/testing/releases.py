"""Releases of container runtimes that differ in what they tell plugins and take from them."""

from __future__ import annotations

from typing import Final

import msgspec

from drakit.wire.nri.versions import NriVersion


class Release(msgspec.Struct, frozen=True):
    """A runtime release and the NRI it has."""

    name: str
    version: str
    nri: NriVersion

    @property
    def says_its_nri_version(self) -> bool:
        """Whether Configure carries the NRI version."""
        return self.nri >= (0, 12)

    @property
    def says_its_timeouts(self) -> bool:
        """Whether Configure carries the timeouts."""
        return self.nri >= (0, 7)

    @property
    def splits_synchronize(self) -> bool:
        """Whether a long Synchronize is sent in parts; earlier ones send it whole."""
        return self.nri >= (0, 7)

    @property
    def closes_after_failed_sync(self) -> bool:
        """Whether a plugin that failed to synchronise is closed; earlier ones leave it deaf."""
        return self.nri >= (0, 7)

    @property
    def has_dedicated_methods(self) -> bool:
        """Whether events without an answer have methods of their own."""
        return self.nri >= (0, 12)

    @property
    def checks_names(self) -> bool:
        """Whether a plugin's name is checked; the index always is."""
        return self.nri >= (0, 12)

    def __str__(self) -> str:
        return f"{self.name} {self.version} (NRI {self.nri})"


CONTAINERD_1_7: Final = Release("containerd", "v1.7.20", NriVersion(0, 6, 1))
CONTAINERD_2_0: Final = Release("containerd", "v2.0.2", NriVersion(0, 8))
CONTAINERD_2_2: Final = Release("containerd", "v2.2.1", NriVersion(0, 11))
CONTAINERD_2_3: Final = Release("containerd", "v2.3.0", NriVersion(0, 12))
CONTAINERD_2_4: Final = Release("containerd", "v2.4.0", NriVersion(0, 12, 2))
CRIO_1_34: Final = Release("cri-o", "1.34.1", NriVersion(0, 10))

EVERY_RELEASE: Final = (
    CONTAINERD_1_7,
    CONTAINERD_2_0,
    CONTAINERD_2_2,
    CONTAINERD_2_3,
    CONTAINERD_2_4,
    CRIO_1_34,
)
