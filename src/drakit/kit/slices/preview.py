"""ResourceSlices that a driver would publish, computed without an API server."""

from __future__ import annotations

from drakit.core.objects import ObjectMeta, ResourceSlice
from drakit.kit.driver import Driver
from drakit.kit.slices.layout import Identity, lay_out
from drakit.kit.slices.limits import check_offer
from drakit.kit.slices.pool_plan import match_slices, plan_pool


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
        plan = plan_pool(identity, pool.name, contents, match_slices(()))
        for create in plan.creates:
            # The server appends five random characters; the index keeps the order stable here.
            name = f"{create.generate_name}{create.index:05x}"
            metadata = ObjectMeta(name=name, generate_name=create.generate_name)
            slices.append(ResourceSlice(metadata=metadata, spec=create.spec))
    return slices
