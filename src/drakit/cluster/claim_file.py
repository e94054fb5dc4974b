"""Which claims a manifest file asks for, when a command runs on this machine instead of in a pod.

With a Pod in the file its claims are meant, in its order; without one, all claims of the file, and
templates where there are no claims.
"""

from __future__ import annotations

from dataclasses import dataclass

from drakit.cli.errors import Problem
from drakit.cluster.manifests import Manifests, read
from drakit.core.objects import DeviceClass, ObjectMeta, ResourceClaim, ResourceClaimTemplate
from drakit.core.pods import Pod


@dataclass(frozen=True)
class ClaimFile:
    """What a file asks for."""

    claims: tuple[ResourceClaim, ...]
    classes: tuple[DeviceClass, ...]


def read_claims(path: str) -> ClaimFile:
    """Read a file (``-`` is standard input). Raises :class:`Problem` with the file and the reason."""
    manifests = read([path])
    claims = _meant(path, manifests)
    if not claims:
        raise Problem(
            f"{path} holds no ResourceClaim",
            "give a file with a ResourceClaim, a ResourceClaimTemplate or a Pod with its claims",
        )
    return ClaimFile(tuple(claims), manifests.values("DeviceClass"))


def _meant(path: str, manifests: Manifests) -> list[ResourceClaim]:
    claims: dict[str, ResourceClaim] = {
        claim.metadata.name: claim for claim in manifests.values("ResourceClaim")
    }
    templates = {
        template.metadata.name: _from_template(template)
        for template in manifests.values("ResourceClaimTemplate")
    }
    pods: tuple[Pod, ...] = manifests.values("Pod")
    if len(pods) > 1:
        raise Problem(f"{path} holds {len(pods)} pods", "give a file with one pod")
    if not pods:
        return list(claims.values()) or list(templates.values())
    meant = []
    for entry in pods[0].spec.resource_claims:
        if entry.resource_claim_name is not None:
            chosen, what = claims.get(entry.resource_claim_name), entry.resource_claim_name
        else:
            what = entry.resource_claim_template_name or ""
            chosen = templates.get(what)
        if chosen is None:
            raise Problem(
                f"{path}: pod {pods[0].metadata.name} uses {what!r}, which is not in the file",
                "put the claim or template into the same file",
            )
        meant.append(chosen)
    return meant


def _from_template(template: ResourceClaimTemplate) -> ResourceClaim:
    return ResourceClaim(metadata=ObjectMeta(name=template.metadata.name), spec=template.spec.spec)
