"""Lists of several resources at once, for programs without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drakit.wire.kube.access.config import ClusterAccess
from drakit.wire.kube.client import EVERYTHING, Client, Selection
from drakit.wire.kube.errors import KubeError
from drakit.wire.kube.resources import Object, Resource


@dataclass(frozen=True, slots=True)
class ListResult:
    """The objects of one resource, or the error."""

    objects: tuple[Object[Any], ...] = ()
    error: KubeError | None = None


def read_all(
    cluster: ClusterAccess, *resources: Resource[Any], namespace: str | None = None
) -> Mapping[str, ListResult]:
    """List *resources* concurrently; the results are keyed by plural name.

    A resource that cannot be read (not served, forbidden) has an error instead. Cluster-scoped
    resources ignore *namespace*. Must not be called inside an event loop.
    """
    return asyncio.run(_read_all(cluster, resources, namespace))


async def _read_all(
    cluster: ClusterAccess, resources: tuple[Resource[Any], ...], namespace: str | None
) -> Mapping[str, ListResult]:
    async with Client(cluster) as client:
        found = await asyncio.gather(*(_read(client, resource, namespace) for resource in resources))
    return {resource.plural: result for resource, result in zip(resources, found, strict=True)}


async def _read(client: Client, resource: Resource[Any], namespace: str | None) -> ListResult:
    selection = Selection(namespace) if resource.namespaced and namespace else EVERYTHING
    try:
        return ListResult((await client.list(resource, selection)).items)
    except KubeError as error:
        return ListResult(error=error)
