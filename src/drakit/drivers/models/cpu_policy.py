"""What a claim or a class may say to the CPU driver: opaque configuration, strict and versioned.

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
            cpuset: 2-5             # exactly these (from the claim only, without other wishes)

Fields of a claim override those of its class, one by one. Whatever is unknown, misspelt or
contradictory is rejected: a wish that would be ignored is worse than none.
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


class Placement(enum.StrEnum):
    """How a claim's CPUs lie on cores."""

    PACKED = "packed"
    SPREAD = "spread"


class Distribute(enum.StrEnum):
    """Over what a claim's CPUs are shared out evenly."""

    NOTHING = "none"
    NUMA = "numa"


class SameL3(enum.StrEnum):
    """Whether a claim's CPUs must share their last-level cache."""

    PREFERRED = "preferred"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Policy:
    """What a claim asks of the choice beyond a number; see the module's order of preference."""

    whole_cores: bool = False
    placement: Placement = Placement.PACKED
    distribute: Distribute = Distribute.NOTHING
    same_l3: SameL3 = SameL3.PREFERRED

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for wishes that contradict each other."""
        if self.whole_cores and self.placement is Placement.SPREAD:
            raise ValueError("wholeCores: true takes every thread of a core, placement: spread one")
        if self.distribute is Distribute.NUMA and self.same_l3 is SameL3.REQUIRED:
            raise ValueError("distribute: numa and sameL3: required contradict each other")


DEFAULT: Final = Policy()


class _CpuConfig(Struct, frozen=True, forbid_unknown_fields=True):
    whole_cores: bool | None = None
    placement: Placement | None = None
    distribute: Distribute | None = None
    same_l3: SameL3 | None = msgspec.field(name="sameL3", default=None)
    cpuset: str | None = None


class _Parameters(Struct, frozen=True, forbid_unknown_fields=True):
    api_version: str = ""
    cpu_config: _CpuConfig = _CpuConfig()


class _NotUnderstoodError(ValueError):
    """Which field is wrong, and what would be right."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for a request except its amount."""

    policy: Policy = Policy()
    cpuset: CpuSet | None = None
    """Exactly these CPUs: an external scheduler has chosen."""


def wish(configs: Iterable[OpaqueConfig], *, driver: str = "dra.cpu") -> Wish:
    """The wish that a request's configurations add up to; later ones override earlier ones.

    Raises :class:`RejectedError`, saying which field is wrong and what would be right; *driver* is whom
    the configurations are for.
    """
    try:
        return _wish(configs)
    except _NotUnderstoodError as error:
        raise RejectedError(
            f"the configuration for {driver} is not understood: {error}", reason="policy"
        ) from error


def _wish(configs: Iterable[OpaqueConfig]) -> Wish:
    fields: dict[str, Any] = {}
    cpuset: CpuSet | None = None
    for config in configs:
        asked = _parse(config)
        named = {k: v for k, v in msgspec.structs.asdict(asked).items() if v is not None}
        if "cpuset" in named:
            cpuset = _explicit(config, named)
        fields |= named
    fields.pop("cpuset", None)
    if cpuset is not None:
        return Wish(cpuset=cpuset)
    try:
        return Wish(Policy(**fields))
    except ValueError as error:
        raise _NotUnderstoodError(str(error)) from error


def _parse(config: OpaqueConfig) -> _CpuConfig:
    parameters = config.parameters
    if not isinstance(parameters, Mapping):
        raise _NotUnderstoodError(
            f"expected an object with apiVersion and cpuConfig, found {parameters!r:.40}"
        )
    version = parameters.get("apiVersion")
    if version != API_VERSION:
        raise _NotUnderstoodError(f"apiVersion {version!r} is not known, only {API_VERSION!r} is")
    _only_known(parameters, _Parameters)
    inner = parameters.get("cpuConfig")
    if isinstance(inner, Mapping):
        _only_known(inner, _CpuConfig)
    try:
        return msgspec.convert(parameters, _Parameters).cpu_config
    except msgspec.ValidationError as error:
        raise _NotUnderstoodError(str(error)) from error


def _only_known(given: Mapping[str, Any], kind: type[Struct]) -> None:
    for key in given:
        if key not in kind.__struct_encode_fields__:
            known = kind.__struct_encode_fields__
            raise _NotUnderstoodError(f"unknown field {key!r}{did_you_mean(key, known)}")


def _explicit(config: OpaqueConfig, named: Mapping[str, Any]) -> CpuSet:
    if config.source == "FromClass":
        raise _NotUnderstoodError(
            "a class cannot name a cpuset: every claim of it would get the same CPUs"
        )
    if len(named) > 1:
        raise _NotUnderstoodError(
            "cpuset leaves nothing to choose; drop the other fields or the cpuset"
        )
    try:
        cpus = CpuSet.parse(named["cpuset"])
    except CpuSetError as error:
        raise _NotUnderstoodError(f"cpuset: {error}") from error
    if not cpus:
        raise _NotUnderstoodError("cpuset is empty; name the CPUs or leave the field out")
    return cpus
