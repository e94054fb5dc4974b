"""Per-claim CPU policy: opaque configuration of a claim or a DeviceClass, strict and versioned.

.. code-block:: yaml

    config:
    - opaque:
        driver: dra.cpu
        parameters:
          apiVersion: v1alpha1
          cpuConfig:
            wholeCores: true        # every thread of a core, or none; rounds up
            placement: packed       # or spread: one thread per core, as far as there are cores
            distribute: numa        # evenly over the NUMA nodes of the device; or none
            sameL3: required        # one last-level cache for all; or preferred
            cpuset: 2-5             # exactly these (from the claim only, without other fields)

Fields of a claim override those of its class, one by one. Unknown, misspelled and contradictory fields
are rejected: a policy that is silently ignored is worse than none.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from drakit.core.cpuset import CpuSet, CpuSetError
from drakit.core.objects import Struct
from drakit.kit.config.settings import did_you_mean
from drakit.kit.driver import OpaqueConfig, RejectedError

API_VERSION: Final = "v1alpha1"


class CorePlacement(enum.StrEnum):
    """How a claim's CPUs are placed on cores."""

    PACKED = "packed"
    SPREAD = "spread"


class Distribute(enum.StrEnum):
    """Over what a claim's CPUs are distributed evenly."""

    NOTHING = "none"
    NUMA = "numa"


class SameL3(enum.StrEnum):
    """Whether a claim's CPUs must share their last-level cache."""

    PREFERRED = "preferred"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class CpuPolicy:
    """What a request asks for in addition to the number of CPUs."""

    whole_cores: bool = False
    placement: CorePlacement = CorePlacement.PACKED
    distribute: Distribute = Distribute.NOTHING
    same_l3: SameL3 = SameL3.PREFERRED
    cpuset: CpuSet | None = None
    """Exactly these CPUs: an external scheduler has chosen them."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for fields that contradict each other."""
        if self.whole_cores and self.placement is CorePlacement.SPREAD:
            raise ValueError("wholeCores: true takes every thread of a core, placement: spread one")
        if self.distribute is Distribute.NUMA and self.same_l3 is SameL3.REQUIRED:
            raise ValueError("distribute: numa and sameL3: required contradict each other")


DEFAULT: Final = CpuPolicy()


class CpuParameters(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of ``cpuConfig``."""

    whole_cores: bool | None = None
    placement: CorePlacement | None = None
    distribute: Distribute | None = None
    same_l3: SameL3 | None = msgspec.field(name="sameL3", default=None)
    cpuset: str | None = None


class _Parameters(Struct, frozen=True, forbid_unknown_fields=True):
    api_version: str = ""
    cpu_config: CpuParameters = CpuParameters()


def cpu_policy(configs: Iterable[OpaqueConfig], *, driver: str = "dra.cpu") -> CpuPolicy:
    """The policy of a request's configurations for *driver*; later ones override earlier ones.

    Raises :class:`RejectedError` with the invalid field and a remedy.
    """
    try:
        return _merged(configs)
    except (ValueError, msgspec.ValidationError) as error:
        raise RejectedError(
            f"the configuration for {driver} is not understood: {error}", reason="policy"
        ) from error


def _merged(configs: Iterable[OpaqueConfig]) -> CpuPolicy:
    fields: dict[str, Any] = {}
    cpuset: CpuSet | None = None
    for config in configs:
        given = {k: v for k, v in msgspec.structs.asdict(_parse(config)).items() if v is not None}
        if "cpuset" in given:
            cpuset = _explicit(config, given)
        fields |= given
    return CpuPolicy(**fields) if cpuset is None else CpuPolicy(cpuset=cpuset)


def _parse(config: OpaqueConfig) -> CpuParameters:
    parameters = config.parameters
    if not isinstance(parameters, Mapping):
        raise msgspec.ValidationError(
            f"expected an object with apiVersion and cpuConfig, found {parameters!r:.40}"
        )
    version = parameters.get("apiVersion")
    if version != API_VERSION:
        raise ValueError(f"apiVersion {version!r} is not known, only {API_VERSION!r} is")
    _only_known(parameters, _Parameters)
    inner = parameters.get("cpuConfig")
    if isinstance(inner, Mapping):
        _only_known(inner, CpuParameters)
    return msgspec.convert(parameters, _Parameters).cpu_config


def _only_known(given: Mapping[str, Any], struct: type[Struct]) -> None:
    known = struct.__struct_encode_fields__
    for key in given:
        if key not in known:
            raise ValueError(f"unknown field {key!r}{did_you_mean(key, known)}")


def _explicit(config: OpaqueConfig, given: Mapping[str, Any]) -> CpuSet:
    if config.source == "FromClass":
        raise ValueError("a class cannot name a cpuset: every claim of it would get the same CPUs")
    if len(given) > 1:
        raise ValueError("cpuset leaves nothing to choose; drop the other fields or the cpuset")
    try:
        cpus = CpuSet.parse(given["cpuset"])
    except CpuSetError as error:
        raise ValueError(f"cpuset: {error}") from error
    if not cpus:
        raise ValueError("cpuset is empty; name the CPUs or leave the field out")
    return cpus
