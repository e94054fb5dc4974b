"""From places to published devices."""

from __future__ import annotations

from typing import Any, Final

from drakit.core.objects import (
    Attribute,
    Capacity,
    CapacityRange,
    Device,
    RequestPolicy,
    bool_attribute,
    int_attribute,
    string_attribute,
)
from drakit.core.quantity import ZERO
from drakit.drivers.cpumem.inventory import Inventory
from drakit.drivers.cpumem.kinds import DRIVER, Kind, hugepages
from drakit.drivers.cpumem.places import Place
from drakit.drivers.cpumem.zones import Zone
from drakit.drivers.models.cpus import pcie_roots

PAGES_READY: Final = f"{DRIVER}/HugepagesReady"
PAGES_UNAVAILABLE: Final = f"{DRIVER}/HugepagesUnavailable"
_MOST_DISTANCES: Final = 8
"""With more nodes the distances are left out: a device has 32 attributes and capacities at most."""


def device(inventory: Inventory, place: Place) -> Device:
    """The device that stands for a place."""
    attributes = place_attributes(inventory, place)
    attributes |= pcie_roots(inventory.cpus, place.zone.cpus, len(attributes))
    waits = waits_for_pages(inventory, place)
    return Device(
        name=place.device,
        attributes=attributes,
        capacity={kind.key: _capacity(kind, amount) for kind, amount in place.amounts.items()},
        allow_multiple_allocations=True,
        binds_to_node=True if waits else None,
        binding_conditions=(PAGES_READY,) if waits else (),
        binding_failure_conditions=(PAGES_UNAVAILABLE,) if waits else (),
        node_allocatable_resources=_mapping(inventory, place),
    )


def waits_for_pages(inventory: Inventory, place: Place) -> bool:
    """Whether pages of this place are added on demand, before a pod is bound to the node.

    By the settings, not by what is left to add: a device does not change with every claim.
    """
    config = inventory.config
    growing = {
        hugepages(size)
        for stock in place.zone.stocks
        for size, pages in config.hugepages.growth.of(stock.node).items()
        if pages
    }
    return config.hugepage_binding and not growing.isdisjoint(place.amounts)


def place_attributes(inventory: Inventory, place: Place) -> dict[str, Attribute]:
    """What can be selected and matched by. All but place-bound ones are always there.

    A selector that names an attribute which is not there fails, and with it the whole allocation.
    """
    zone, machine = place.zone, inventory.machine
    accounting = machine.cgroups.memory_hugetlb_accounting
    attributes = {
        f"{DRIVER}/kind": string_attribute(place.kind),
        f"{DRIVER}/memoryOnly": bool_attribute(zone.memory_only),
        f"{DRIVER}/smtEnabled": bool_attribute(machine.smt_active),
        f"{DRIVER}/numCPUs": int_attribute(len(zone.cpus)),
        f"{DRIVER}/numIsolatedCPUs": int_attribute(len(zone.cpus & machine.isolated)),
        f"{DRIVER}/hugetlbAccounting": string_attribute("memory" if accounting else "separate"),
        f"{DRIVER}/provisioning": string_attribute(_provisioning(inventory, zone)),
    }
    if zone.socket is not None:
        attributes[f"{DRIVER}/socketID"] = int_attribute(zone.socket)
    if zone.node is not None:
        attributes |= _node_attributes(zone, zone.node)
    return attributes


def _node_attributes(zone: Zone, node: int) -> dict[str, Attribute]:
    """A NUMA node under its standard name and the older ones, and how far the others are."""
    distances = zone.stocks[0].distances
    named = {
        "resource.kubernetes.io/numaNode": int_attribute(node),
        f"{DRIVER}/numaNodeID": int_attribute(node),
        "dra.net/numaNode": int_attribute(node),
    }
    if not 1 < len(distances) <= _MOST_DISTANCES:
        return named
    return named | {
        f"{DRIVER}/distance{other}": int_attribute(distance)
        for other, distance in sorted(distances.items())
    }


def _provisioning(inventory: Inventory, zone: Zone) -> str:
    """Where the zone's hugepages come from."""
    settings = inventory.config.hugepages
    if any(settings.growth.of(stock.node) for stock in zone.stocks):
        return "onDemand"
    if any(settings.pools.of(stock.node) for stock in zone.stocks):
        return "static"
    return "none"


def _capacity(kind: Kind, amount: int) -> Capacity:
    """So much, of which a request gets whole steps, and nothing if it does not say.

    Without a default of nothing the scheduler would give all of it to a claim of another kind.
    """
    limits = CapacityRange(min=ZERO, step=kind.quantity(kind.step))
    return Capacity(
        value=kind.quantity(amount), request_policy=RequestPolicy(default=ZERO, valid_range=limits)
    )


def _mapping(inventory: Inventory, place: Place) -> dict[str, Any]:
    if not inventory.config.publish_node_allocatable_resource_mapping:
        return {}
    return {
        kind.node_resource: {"mapping": {"capacityKey": kind.key, "capacityMultiplier": "1"}}
        for kind in place.amounts
    }
