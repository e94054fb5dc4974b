"""The pod and the claims that manifests ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from drakit.cluster.conversion import ClusterError
from drakit.cluster.manifests import Manifests, read_manifests
from drakit.core.objects import DeviceClass, ObjectMeta, ResourceClaim, ResourceClaimTemplate
from drakit.core.pods import Pod, PodContainer, PodResourceClaim, PodSpec


def pod_of(manifests: Manifests) -> Pod:
    """Return the only pod; claims and templates without a pod get one that uses them all."""
    pods: tuple[Pod, ...] = manifests.values("Pod")
    if len(pods) > 1:
        names = ", ".join(pod.metadata.name for pod in pods)
        raise ClusterError(f"the files contain several pods: {names}", "give one pod")
    if pods:
        return pods[0]
    claims = manifests.values("ResourceClaim")
    templates = manifests.values("ResourceClaimTemplate")
    if not claims and not templates:
        raise ClusterError("the files contain no pod and no claim", "give a file with a pod")
    first = (*claims, *templates)[0]
    return pod_using("pod", first.metadata.namespace, claims, templates)


def pod_using(
    name: str,
    namespace: str,
    claims: Iterable[ResourceClaim],
    templates: Iterable[ResourceClaimTemplate] = (),
) -> Pod:
    """Return a pod whose only container uses *claims* and claims made from *templates*."""
    uses = [PodResourceClaim(name=c.metadata.name, resource_claim_name=c.metadata.name) for c in claims] + [
        PodResourceClaim(name=t.metadata.name, resource_claim_template_name=t.metadata.name)
        for t in templates
    ]
    return Pod(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=PodSpec(containers=(PodContainer(name="main"),), resource_claims=tuple(uses)),
    )


@dataclass(frozen=True)
class ClaimFile:
    """The claims that a file asks for and the DeviceClasses it defines."""

    claims: tuple[ResourceClaim, ...]
    classes: tuple[DeviceClass, ...]


def read_claims(path: str) -> ClaimFile:
    """Read the claims that a command needs which runs on this machine instead of in a pod.

    With a Pod in the file these are its claims, in its order; without one, all claims of the file, or
    its templates if it has no claims. ``-`` is standard input. Raises :class:`ClusterError`.
    """
    manifests = read_manifests([path])
    claims = _requested(path, manifests)
    if not claims:
        raise ClusterError(
            f"{path} contains no ResourceClaim",
            "give a file with a ResourceClaim, a ResourceClaimTemplate or a Pod with its claims",
        )
    return ClaimFile(tuple(claims), manifests.values("DeviceClass"))


def _requested(path: str, manifests: Manifests) -> list[ResourceClaim]:
    claims = {c.metadata.name: c for c in manifests.values("ResourceClaim")}
    templates = {
        t.metadata.name: ResourceClaim(metadata=ObjectMeta(name=t.metadata.name), spec=t.spec.spec)
        for t in manifests.values("ResourceClaimTemplate")
    }
    pods: tuple[Pod, ...] = manifests.values("Pod")
    if len(pods) > 1:
        raise ClusterError(f"{path} contains {len(pods)} pods", "give a file with one pod")
    if not pods:
        return list(claims.values()) or list(templates.values())
    requested = []
    for use in pods[0].spec.resource_claims:
        name = use.resource_claim_name or use.resource_claim_template_name or ""
        claim = (claims if use.resource_claim_name is not None else templates).get(name)
        if claim is None:
            raise ClusterError(
                f"{path}: pod {pods[0].metadata.name} uses {name!r}, which is not in the file",
                "put the claim or template into the same file",
            )
        requested.append(claim)
    return requested
