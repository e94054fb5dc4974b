"""The ResourceSlices a driver would publish, without an API server: for people and for planning."""

from __future__ import annotations

from drakit.core.objects import ObjectMeta, ResourcePool, ResourceSlice, ResourceSliceSpec
from drakit.kit.driver import Driver
from drakit.kit.slices.layout import Identity, generate_name, lay_out
from drakit.kit.slices.limits import check_offer


def preview_slices(driver: Driver, node: str) -> list[ResourceSlice]:
    """All slices of the driver's offer as their first publication on *node* would write them.

    Raises ``OfferError`` when the API server would reject them.
    """
    offer = driver.offer().named(node)
    check_offer(driver.name, offer)
    identity = Identity(driver.name, node)
    slices = []
    for pool in offer.pools:
        contents = lay_out(pool, may_taint=offer.may_taint)
        for index, content in enumerate(contents):
            spec = ResourceSliceSpec(
                driver=driver.name,
                pool=ResourcePool(
                    name=pool.name or node, generation=1, resource_slice_count=len(contents)
                ),
                node_name=node,
                devices=content.devices,
                shared_counters=content.shared_counters,
            )
            prefix = generate_name(index, len(contents), identity)
            # The server appends five random characters; any will do for a look at the order.
            metadata = ObjectMeta(name=f"{prefix}{index:05x}", generate_name=prefix)
            slices.append(ResourceSlice(metadata=metadata, spec=spec))
    return slices
