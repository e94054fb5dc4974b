"""Believes whoever carries a claim's marker variable, whosever pod it is."""

from __future__ import annotations

from drakit.kit.claims import cdi_names as names
from drakit.kit.driver import PreparedClaim
from drakit.kit.runtime.enforcer import Enforcer, TrackedContainer
from drakit.wire.nri.values import PodSandbox


def _parts(self: Enforcer, known: TrackedContainer) -> tuple[names.Part, ...]:
    every = [part for entry in self._prepared_claims() for part in names.parts_of(entry)]
    return tuple(part for part in every if names.marker_variable(part) in known.shown.markers)


def _owner(self: Enforcer, entry: PreparedClaim, asking: PodSandbox) -> PodSandbox:
    return asking


Enforcer._owner = _owner  # type: ignore[method-assign]
Enforcer._parts = _parts  # type: ignore[method-assign]
