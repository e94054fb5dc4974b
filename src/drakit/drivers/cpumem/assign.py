"""What exactly a claim gets: CPUs by number, memory and hugepages by NUMA node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from drakit.core.cpuset import EMPTY, CpuSet
from drakit.core.objects import Attribute, int_attribute, string_attribute
from drakit.core.quantity import Quantity
from drakit.drivers.cpumem.desired import notes
from drakit.drivers.cpumem.inventory import Inventory
from drakit.drivers.cpumem.kinds import CPU, DRIVER, Kind, amount_key
from drakit.drivers.cpumem.offer import place_attributes
from drakit.drivers.cpumem.places import Place
from drakit.drivers.models.cpu_enforcement import environment
from drakit.drivers.models.cpu_policy import wish
from drakit.drivers.models.cpu_share import Draw, by_request, share_out
from drakit.drivers.models.cpus import KIND as CPU_NUMBERS
from drakit.kit.config.settings import did_you_mean
from drakit.kit.driver import (
    AllocatedDevice,
    Assignment,
    Claim,
    PreparedClaims,
    PreparedDevice,
    RejectedError,
)

Drawn = dict[int, dict[Kind, int]]
"""What is taken of each NUMA node."""


@dataclass(frozen=True, slots=True)
class _Order:
    """An allocated device, understood: which device, how much of each kind."""

    claim: Claim
    allocated: AllocatedDevice
    place: Place
    amounts: Mapping[Kind, int]


def assign(
    inventory: Inventory, places: Sequence[Place], claim: Claim, prepared_claims: PreparedClaims
) -> Assignment:
    """The claim's CPUs and from which nodes its memory comes. Raises :class:`RejectedError`."""
    orders = [_order(places, claim, allocated) for allocated in claim.devices]
    cpus = share_out(inventory.cpus, claim, [_draw(order) for order in orders], prepared_claims)
    drawn = _draw_memory(inventory, list(zip(orders, cpus, strict=True)), prepared_claims)
    together = by_request(zip(claim.devices, cpus, strict=True))
    return Assignment(
        tuple(
            _prepared_device(inventory, order, own, parts, together[order.allocated.base_request])
            for order, own, parts in zip(orders, cpus, drawn, strict=True)
        )
    )


# -- what is asked -------------------------------------------------------------------------------


def _order(places: Sequence[Place], claim: Claim, allocated: AllocatedDevice) -> _Order:
    place = _place(places, claim, allocated)
    if allocated.admin_access:
        return _Order(claim, allocated, place, {})
    if not allocated.consumed_capacity:
        raise RejectedError(
            f"{claim}, request {allocated.request} has no amounts in its allocation: the cluster's "
            f"feature gate DRAConsumableCapacity is off; turn it on",
            reason="capacity",
        )
    kinds = {kind.key: kind for kind in place.amounts}
    amounts: dict[Kind, int] = {}
    for key, quantity in allocated.consumed_capacity.items():
        if key in kinds:
            amounts[kinds[key]] = _whole(kinds[key], quantity)
        elif quantity:
            # Zeros of kinds that have gone since the claim was allocated do no harm.
            raise RejectedError(
                f"{claim}, request {allocated.request} takes {quantity} of {key}, which device "
                f"{place.device} does not have{did_you_mean(key, kinds)}; correct the claim, or see "
                f"whether the node has lost its pages",
                reason="capacity",
            )
    if not any(amounts.values()):
        raise RejectedError(
            f"{claim}, request {allocated.request} asks for nothing of device {place.device}; name "
            f"amounts in the request's capacity.requests, by these keys: {', '.join(kinds)}",
            reason="capacity",
        )
    return _Order(claim, allocated, place, amounts)


def _whole(kind: Kind, quantity: Quantity) -> int:
    """An amount in whole steps; the scheduler gives no others, an older policy might have."""
    return -(-quantity.ceil() // kind.step) * kind.step


def _place(places: Sequence[Place], claim: Claim, allocated: AllocatedDevice) -> Place:
    for place in places:
        if place.device == allocated.device:
            return place
    known = ", ".join(place.device for place in places) or "none"
    raise RejectedError(
        f"this node has no device {allocated.device}, which {claim} was given (it has: {known}); "
        f"was the driver configured otherwise when the claim was allocated? Delete the pod and "
        f"the claim, then they are allocated anew",
        reason="unknown-device",
    )


def _draw(order: _Order) -> Draw:
    cpus = order.place.zone.cpus if CPU in order.place.amounts else EMPTY
    asked = wish(order.allocated.config, driver=DRIVER)
    return Draw(order.allocated, cpus, order.amounts.get(CPU, 0), asked, CPU.key)


# -- from which nodes ----------------------------------------------------------------------------


def _draw_memory(
    inventory: Inventory, orders: Sequence[tuple[_Order, CpuSet]], prepared_claims: PreparedClaims
) -> list[Drawn]:
    """For each order the nodes its memory and hugepages come from, nearest to its CPUs."""
    free = {
        (stock.node, kind): amount - prepared_claims.amount(amount_key(stock.node, kind))
        for stock in inventory.stocks
        for kind, amount in stock.amounts.items()
    }
    together = by_request((order.allocated, cpus) for order, cpus in orders)
    found = []
    for order, cpus in orders:
        # In the split layout a request has memory only: the claim's other CPUs tell where it is.
        near = cpus or together[order.allocated.base_request] or CpuSet.union(together.values())
        drawn: Drawn = {}
        wanted = {kind: n for kind, n in order.amounts.items() if kind != CPU and n}
        for node, kind, amount in _shares(inventory, order, wanted, near, free):
            drawn.setdefault(node, {})[kind] = amount
            free[node, kind] -= amount
        found.append(drawn)
    return found


def _shares(
    inventory: Inventory,
    order: _Order,
    wanted: Mapping[Kind, int],
    cpus: CpuSet,
    free: Mapping[tuple[int, Kind], int],
) -> Iterable[tuple[int, Kind, int]]:
    """The nearest node that has all that is wanted; if none has, each kind from the nearest on."""
    nodes = _nearest_first(inventory, order.place, cpus)
    for node in nodes:
        if all(free.get((node, kind), 0) >= amount for kind, amount in wanted.items()):
            return [(node, kind, amount) for kind, amount in wanted.items()]
    shares = []
    for kind, amount in wanted.items():
        left = amount
        for node in nodes:
            part = min(left, kind.whole(free.get((node, kind), 0)))
            if part > 0:
                shares.append((node, kind, part))
                left -= part
        if left:
            raise RejectedError(
                f"{order.claim}, request {order.allocated.request} needs {kind.quantity(amount)} of "
                f"{kind.key} on device {order.place.device}, but only "
                f"{kind.quantity(amount - left)} are free; it can be prepared when another claim ends",
                reason="capacity",
            )
    return shares


def _nearest_first(inventory: Inventory, place: Place, cpus: CpuSet) -> list[int]:
    """The place's nodes: those with most of the CPUs, then the least distant, then by number."""
    homes = inventory.machine.nodes_of(cpus)

    def rank(node: int) -> tuple[int, int, int]:
        here = len(cpus & inventory.machine.node_cpus.get(node, EMPTY))
        distances = inventory.stock_of[node].distances
        return (-here, min((distances.get(home, 255) for home in homes), default=0), node)

    return sorted((stock.node for stock in place.zone.stocks), key=rank)


# -- the prepared device -----------------------------------------------------------------------------------


def _prepared_device(
    inventory: Inventory, order: _Order, cpus: CpuSet, drawn: Drawn, request_cpus: CpuSet
) -> PreparedDevice:
    allocated = order.allocated
    return allocated.prepare(
        exclusive={CPU_NUMBERS: cpus} if cpus else {},
        amounts={
            amount_key(node, kind): amount
            for node, kinds in sorted(drawn.items())
            for kind, amount in kinds.items()
        },
        env=environment(order.claim.uid, request_cpus) if request_cpus else {},
        attributes=place_attributes(inventory, order.place) | _given(order, cpus, drawn),
        data=notes(_near(inventory, order, cpus)),
    )


def _near(inventory: Inventory, order: _Order, cpus: CpuSet) -> CpuSet:
    """Nodes whose memory is the prepared device's without being claimed: near its CPUs.

    Who has administrator's access looks on, and may do so from the memory of the whole zone.
    """
    if order.allocated.admin_access:
        return CpuSet(stock.node for stock in order.place.zone.stocks) & inventory.memory_nodes
    return inventory.cpus.memory_nodes(cpus)


def _given(order: _Order, cpus: CpuSet, drawn: Drawn) -> dict[str, Attribute]:
    """What the container's metadata file tells beside the device's attributes."""
    given = {
        f"{DRIVER}/allocated_{kind.name}": int_attribute(amount)
        for kind, amount in order.amounts.items()
        if kind != CPU and amount
    }
    if cpus:
        given[f"{DRIVER}/allocatedNumCPUs"] = int_attribute(len(cpus))
        given[f"{DRIVER}/cpuset"] = string_attribute(str(cpus))
    if drawn:
        given[f"{DRIVER}/memoryNodes"] = string_attribute(str(CpuSet(drawn)))
    return given
