"""Settings of the CPU driver."""

from __future__ import annotations

from typing import Annotated, Literal

from drakit.drivers.models.cpu_settings import CpuSettings
from drakit.kit.config.settings import setting

DeviceMode = Literal["grouped", "individual"]


class CpuConfig(CpuSettings, frozen=True):
    """Settings of the CPU driver."""

    cpu_device_mode: Annotated[
        DeviceMode,
        setting(
            "grouped: one device per group of CPUs, claims take amounts of it; "
            "individual: one device per CPU, the scheduler chooses each of them"
        ),
    ] = "grouped"
