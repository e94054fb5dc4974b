"""Trusts the marker variable of a claim in any pod."""

from __future__ import annotations

from drakit.kit.claims import cdi_names as names
from drakit.kit.driver import PreparedClaim
from drakit.kit.runtime.container_claims import ClaimOwners, ClaimResolver
from drakit.wire.nri.values import PodSandbox


def _requests(
    self: ClaimResolver, pod: PodSandbox, name: str, references: names.ClaimReferences
) -> tuple[names.ClaimRequest, ...]:
    every = [each for claim in self._prepared_claims() for each in names.requests_of(claim)]
    return tuple(each for each in every if names.marker_variable(each) in references.markers)


def _owner(self: ClaimOwners, claim: PreparedClaim, pod: PodSandbox) -> PodSandbox:
    return pod


ClaimOwners.owner = _owner  # type: ignore[method-assign]
ClaimResolver.requests = _requests  # type: ignore[method-assign]
