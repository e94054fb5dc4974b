"""Driver of simulated GPUs: a template for drivers of whole devices.

Copy this file to start a driver of your own. ``discover`` reads the hardware (here: the configuration),
``offer`` lists it, ``assign`` decides what a claim gets, and ``enforce`` returns what a container must
have – nothing, if CDI provides the devices.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

from drakit.kit import (
    AllocatedDevice,
    Assignment,
    Attribute,
    Capacity,
    Claim,
    ContainerView,
    DesiredResources,
    Device,
    HostOptions,
    Offer,
    PoolOffer,
    PreparedClaims,
    PreparedDevice,
    Quantity,
    RejectedError,
    did_you_mean,
    int_attribute,
    setting,
    string_attribute,
)

NAME: Final = "gpu.example.com"
CDI_KIND: Final = "k8s.gpu.example.com/gpu"
PARAMETERS_VERSION: Final = "gpu.resource.example.com/v1alpha1"


class ExampleConfig(HostOptions, frozen=True):
    """Settings of the example driver."""

    device_count: Annotated[int, setting("number of simulated GPUs")] = 8
    device_memory: Annotated[str, setting("memory of each simulated GPU")] = "80Gi"
    device_model: Annotated[str, setting("model name of the simulated GPUs")] = "LATEST-GPU-MODEL"

    def __post_init__(self) -> None:
        HostOptions.__post_init__(self)
        if not 0 <= self.device_count <= 1024:
            raise ValueError(f"deviceCount must be between 0 and 1024, not {self.device_count}")
        Quantity(self.device_memory)


class Sharing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How containers of a pod share one GPU."""

    strategy: Literal["TimeSlicing", "SpacePartitioning"] = "TimeSlicing"


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Opaque configuration of a claim: strict, versioned, unknown fields rejected."""

    api_version: Literal["gpu.resource.example.com/v1alpha1"] = PARAMETERS_VERSION
    kind: Literal["GpuConfig"] = "GpuConfig"
    sharing: Sharing = Sharing()


@dataclass(frozen=True)
class ExampleDriver:
    """A node with :attr:`ExampleConfig.device_count` simulated GPUs."""

    config: ExampleConfig
    node: str
    name: str = NAME
    cdi_kind: str = CDI_KIND
    cpuset_kinds: frozenset[str] = frozenset()

    def offer(self) -> Offer:
        """One device per GPU; the UUID is stable for a node and an index."""
        devices = (
            Device(
                name=f"gpu-{index}",
                attributes={
                    "index": int_attribute(index),
                    "uuid": string_attribute(f"gpu-{self._uuid(index)}"),
                    "model": string_attribute(self.config.device_model),
                    "driverVersion": Attribute(version="1.0.0"),
                },
                capacity={"memory": Capacity(value=Quantity(self.config.device_memory))},
            )
            for index in range(self.config.device_count)
        )
        return Offer(pools=(PoolOffer(devices=tuple(devices)),))

    def assign(self, claim: Claim, prepared_claims: PreparedClaims) -> Assignment:
        """Exactly the allocated devices, with variables for the container."""
        return Assignment(tuple(self._prepared_device(allocated) for allocated in claim.devices))

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        """Nothing: CDI provides simulated devices."""
        return DesiredResources()

    def _prepared_device(self, allocated: AllocatedDevice) -> PreparedDevice:
        index = allocated.device.removeprefix("gpu-")
        if not index.isdecimal() or int(index) >= self.config.device_count:
            raise RejectedError(
                f"this node has no device {allocated.device}: it simulates "
                f"{self.config.device_count}, numbered from 0",
                reason="unknown-device",
            )
        parameters = _parameters(allocated)
        prefix = f"GPU_DEVICE_{index}"
        return allocated.prepare(
            env={prefix: allocated.device, f"{prefix}_SHARING_STRATEGY": parameters.sharing.strategy}
        )

    def _uuid(self, index: int) -> uuid.UUID:
        return uuid.uuid5(uuid.NAMESPACE_DNS, f"{index}.{self.node}.{NAME}")


def _parameters(allocated: AllocatedDevice) -> Parameters:
    """The last configuration applies: the claim's comes after its class's."""
    if not allocated.config:
        return Parameters()
    given = allocated.config[-1].parameters
    try:
        return msgspec.convert(given, Parameters)
    except msgspec.ValidationError as error:
        hint = ""
        if isinstance(given, dict):
            unknown = [key for key in given if key not in Parameters.__struct_encode_fields__]
            hint = did_you_mean(unknown[0], Parameters.__struct_encode_fields__) if unknown else ""
        raise RejectedError(
            f"the opaque configuration for request {allocated.request} is not understood: {error}{hint}",
            reason="policy",
        ) from error
