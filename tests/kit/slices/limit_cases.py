"""Offers at and beyond every limit of the API, and whether they are good.

Used three times: our own check must agree, the fake must agree, and a real kube-apiserver must.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from drakit.core.objects import (
    Attribute,
    Capacity,
    CapacityRange,
    Counter,
    CounterConsumption,
    CounterSet,
    Device,
    RequestPolicy,
    Taint,
)
from drakit.core.quantity import Quantity
from drakit.kit.driver import PoolOffer


class Case(NamedTuple):
    name: str
    pool: PoolOffer
    good: bool
    in_double: bool = True
    """Whether the fake knows this rule, too."""

    def __str__(self) -> str:
        return self.name


def devices(*items: Device, **more: Any) -> PoolOffer:
    return PoolOffer(items, name="pool", **more)


def with_attributes(count: int, capacities: int = 0) -> Device:
    return Device(
        name="d",
        attributes={f"a{i}": Attribute(int_=i) for i in range(count)},
        capacity={f"c{i}": Capacity(value=Quantity(1)) for i in range(capacities)},
    )


def attribute(value: Attribute, key: str = "a") -> PoolOffer:
    return devices(Device(name="d", attributes={key: value}))


def policy(*, value: str = "8", shared: bool | None = True, **fields: Any) -> PoolOffer:
    capacity = Capacity(value=Quantity(value), request_policy=RequestPolicy(**fields))
    return devices(Device(name="d", capacity={"c": capacity}, allow_multiple_allocations=shared))


def amounts(*texts: str) -> tuple[Quantity, ...]:
    return tuple(Quantity(text) for text in texts)


def in_range(
    low: str | None, high: str | None = None, step: str | None = None, default: str | None = "2"
) -> PoolOffer:
    def amount(text: str | None) -> Quantity | None:
        return None if text is None else Quantity(text)

    valid = CapacityRange(min=amount(low), max=amount(high), step=amount(step))
    return policy(default=amount(default), valid_range=valid)


def tainted(count: int = 1, **fields: str) -> PoolOffer:
    taint = {"key": "example.com/t", "effect": "NoSchedule"} | fields
    taints = tuple(Taint(**(taint | {"key": f"{taint['key']}{i or ''}"})) for i in range(count))
    return devices(Device(name="d", taints=taints))


def counter_set(name: str = "s", counters: int = 1) -> CounterSet:
    return CounterSet(name=name, counters={f"c{i}": Counter(value=Quantity(4)) for i in range(counters)})


def consuming(sets: int, counters: int = 1, *, device: str = "d") -> PoolOffer:
    wanted = tuple(
        CounterConsumption(
            counter_set=f"s{i}", counters={f"c{j}": Counter(value=Quantity(1)) for j in range(counters)}
        )
        for i in range(sets)
    )
    return devices(
        Device(name=device, consumes_counters=wanted),
        shared_counters=tuple(counter_set(f"s{i}", counters) for i in range(max(sets, 1))),
    )


def conditions(count: int) -> PoolOffer:
    return devices(
        Device(
            name="d",
            binding_conditions=tuple(f"example.com/c{i}" for i in range(count)),
            binding_failure_conditions=("example.com/f",),
        )
    )


CASES = [
    Case("no device", devices(), good=True),
    Case("plain device", devices(Device(name="d")), good=True),
    Case("longest device name", devices(Device(name="d" * 63)), good=True),
    Case("too long device name", devices(Device(name="d" * 64)), good=False),
    Case("upper case device name", devices(Device(name="D")), good=False),
    Case("device name with dot", devices(Device(name="a.b")), good=False),
    Case("device name ends with dash", devices(Device(name="a-")), good=False),
    Case("no device name", devices(Device(name="")), good=False),
    Case("two devices of one name", devices(Device(name="d"), Device(name="d")), good=False),
    Case("most attributes", devices(with_attributes(32)), good=True),
    Case("one attribute too many", devices(with_attributes(33)), good=False),
    Case("most attributes and capacities", devices(with_attributes(20, 12)), good=True),
    Case("one capacity too many", devices(with_attributes(20, 13)), good=False),
    Case("longest identifier", attribute(Attribute(int_=1), "a" * 32), good=True),
    Case("too long identifier", attribute(Attribute(int_=1), "a" * 33), good=False),
    Case("identifier begins with digit", attribute(Attribute(int_=1), "1a"), good=False),
    Case("identifier with dash", attribute(Attribute(int_=1), "a-b"), good=False),
    Case("identifier with underscore", attribute(Attribute(int_=1), "_a_B9"), good=True),
    Case("qualified", attribute(Attribute(int_=1), "example.com/a"), good=True),
    Case("longest domain", attribute(Attribute(int_=1), "d" * 63 + "/a"), good=True),
    Case("too long domain", attribute(Attribute(int_=1), "d" * 64 + "/a"), good=False),
    Case("upper case domain", attribute(Attribute(int_=1), "Example.com/a"), good=True),
    Case("empty domain", attribute(Attribute(int_=1), "/a"), good=False),
    Case("empty identifier", attribute(Attribute(int_=1), "example.com/"), good=False),
    Case("longest text", attribute(Attribute(string="é" * 32)), good=True),
    Case("too long text", attribute(Attribute(string="é" * 32 + "x")), good=False),
    Case("empty text", attribute(Attribute(string="")), good=True),
    Case("no value", attribute(Attribute()), good=False),
    Case("two values", attribute(Attribute(int_=1, string="x")), good=False),
    Case("largest number", attribute(Attribute(int_=2**63 - 1)), good=True),
    Case("smallest number", attribute(Attribute(int_=-(2**63))), good=True),
    Case("too large a number", attribute(Attribute(int_=2**63)), good=False, in_double=False),
    Case("false", attribute(Attribute(bool_=False)), good=True),
    Case("version", attribute(Attribute(version="1.2.3-rc.1+b-1")), good=True),
    Case("version without patch", attribute(Attribute(version="1.2")), good=False),
    Case("version with v", attribute(Attribute(version="v1.2.3")), good=False),
    Case("version with leading zero", attribute(Attribute(version="1.02.3")), good=False),
    Case("policy on unshared device", policy(shared=None, default=Quantity(1)), good=False),
    Case("policy with default only", policy(default=Quantity(1)), good=True),
    Case("valid values", policy(default=Quantity(2), valid_values=amounts("1", "2", "8")), good=True),
    Case(
        "most valid values",
        policy(value="20", default=Quantity(1), valid_values=amounts(*map(str, range(1, 11)))),
        good=True,
    ),
    Case(
        "one valid value too many",
        policy(value="20", default=Quantity(1), valid_values=amounts(*map(str, range(1, 12)))),
        good=False,
        in_double=False,
    ),
    Case(
        "valid values not ascending",
        policy(default=Quantity(2), valid_values=amounts("2", "1")),
        good=False,
        in_double=False,
    ),
    Case(
        "valid value twice",
        policy(default=Quantity(2), valid_values=amounts("2", "2")),
        good=False,
        in_double=False,
    ),
    Case(
        "valid value beyond capacity",
        policy(default=Quantity(2), valid_values=amounts("2", "9")),
        good=False,
        in_double=False,
    ),
    Case(
        "default is no valid value",
        policy(default=Quantity(3), valid_values=amounts("2", "4")),
        good=False,
        in_double=False,
    ),
    Case("valid values without default", policy(valid_values=amounts("2", "4")), good=False, in_double=False),
    Case("range", in_range("1", "8", "1"), good=True),
    Case("range without maximum and step", in_range("1"), good=True),
    Case("range without minimum", in_range(None, "8"), good=False, in_double=False),
    Case("range without default", in_range("1", default=None), good=False, in_double=False),
    Case("minimum beyond capacity", in_range("9", default="9"), good=False, in_double=False),
    Case("maximum beyond capacity", in_range("1", "9"), good=False, in_double=False),
    Case("minimum beyond maximum", in_range("4", "3", default="4"), good=False, in_double=False),
    Case("default below minimum", in_range("3", "8"), good=False, in_double=False),
    Case("default beyond maximum", in_range("1", "4", default="5"), good=False, in_double=False),
    Case("default off the steps", in_range("1", "7", "3"), good=False, in_double=False),
    Case("maximum off the steps", in_range("0", "7", "2"), good=False, in_double=False),
    Case("steps from the minimum", in_range("1", "7", "3", "4"), good=True),
    Case("step of zero", in_range("1", "8", "0"), good=False, in_double=False),
    Case("step beyond capacity", in_range("2", None, "8"), good=False, in_double=False),
    Case(
        "range and values",
        policy(default=Quantity(2), valid_values=amounts("2"), valid_range=CapacityRange(min=Quantity(1))),
        good=False,
        in_double=False,
    ),
    Case("taint", tainted(), good=True),
    Case("most taints", tainted(16), good=True),
    Case("one taint too many", tainted(17), good=False),
    Case("taint with value", tainted(value="x.y_z"), good=True),
    Case("taint without key", tainted(key=""), good=False, in_double=False),
    Case("taint with odd key", tainted(key="a b"), good=False, in_double=False),
    Case("taint with odd value", tainted(value="a b"), good=False, in_double=False),
    Case("taint without effect", tainted(effect=""), good=False, in_double=False),
    Case("taint without consequence", tainted(effect="None"), good=True),
    Case("taint with unknown effect", tainted(effect="Nap"), good=False, in_double=False),
    Case("counters", consuming(2, 3), good=True),
    Case("most counters", consuming(1, 32), good=True),
    Case("one counter too many", consuming(1, 33), good=False),
    Case("three counter sets consumed", consuming(3), good=False),
    Case(
        "nine counter sets offered",
        devices(Device(name="d"), shared_counters=tuple(counter_set(f"s{i}") for i in range(9))),
        good=True,
    ),
    Case(
        "counter set without counters",
        devices(Device(name="d"), shared_counters=(CounterSet(name="s"),)),
        good=False,
    ),
    Case(
        "upper case counter set", devices(Device(name="d"), shared_counters=(counter_set("S"),)), good=False
    ),
    Case("most binding conditions", conditions(4), good=True),
    Case("one binding condition too many", conditions(5), good=False),
    Case(
        "a device that names its node", devices(Device(name="d", node_name="n")), good=False, in_double=False
    ),
    Case("129 devices", devices(*(Device(name=f"d{i}") for i in range(129))), good=True),
    Case(
        "65 devices of which one is tainted",
        devices(
            *(Device(name=f"d{i}") for i in range(64)),
            msgspec.structs.replace(tainted().devices[0], name="last"),
        ),
        good=True,
    ),
]

# What only the publisher can see: the server looks at one slice at a time.
BEYOND_THE_SERVER = [
    Case(
        "unknown counter set",
        devices(
            Device(
                name="d",
                consumes_counters=(
                    CounterConsumption(counter_set="missing", counters={"c": Counter(value=Quantity(1))}),
                ),
            )
        ),
        good=False,
    ),
    Case(
        "unknown counter",
        devices(
            Device(
                name="d",
                consumes_counters=(
                    CounterConsumption(counter_set="s", counters={"other": Counter(value=Quantity(1))}),
                ),
            ),
            shared_counters=(counter_set(),),
        ),
        good=False,
    ),
    Case(
        "two devices of one name in different slices",
        devices(*(Device(name=f"d{i % 199}") for i in range(200))),
        good=False,
    ),
    Case(
        "two counter sets of one name in different slices",
        devices(Device(name="d"), shared_counters=tuple(counter_set(f"s{i % 10}") for i in range(11))),
        good=False,
    ),
    Case("too long pool name", PoolOffer((Device(name="d"),), name="p" * 254), good=False),
]
