"""Every remedy that is offered makes the pod fit."""

from __future__ import annotations

from typing import Any

import pytest

from drakit.core.objects import ResourceClaim
from drakit.scheduler.explain import report, with_remedies
from drakit.scheduler.placement import prepare
from drakit.scheduler.remedies import Change, fits_with, without_constraint
from tests.scheduler.factories import allocated, claim, device, exactly, node, pod, resource_slice, snapshot
from tests.scheduler.problems import Json

MODEL = 'device.attributes["d.io"].m == 1'
SHARED = {"allowMultipleAllocations": True, "capacity": {"k": {"value": "8"}}}


def remedies(wanted: ResourceClaim, *devices: Json, held: tuple[ResourceClaim, ...] = ()) -> tuple[str, ...]:
    cycle = prepare(snapshot(resource_slice(*devices), claims=(wanted, *held)), pod("x"))
    return with_remedies(cycle, node(), report(cycle, node())).remedies


@pytest.mark.parametrize(
    ("wanted", "devices", "held", "expected"),
    [
        (claim(exactly("r", MODEL)), [device("a"), device("b", attributes={"m": {"int": 1}})], (),
         f'write selector 1 of request r as has(device.attributes["d.io"].m) && ({MODEL})'),
        (claim(exactly()), [device("a", taints=[{"key": "k", "effect": "NoSchedule"}])], (),
         ("let request r tolerate the taint k:NoSchedule "
         "(tolerations: [{key: k, operator: Exists, effect: NoSchedule}])")),
        (claim(exactly(capacity={"requests": {"d.io/k": "1"}})), [device("a", **SHARED)], (),
         "in request r write the capacity 'd.io/k' as 'k'"),
        (claim(exactly(capacity={"requests": {"k": "9"}})), [device("a", **SHARED)], (),
         "ask for at most 8 k in request r"),
        (claim(exactly(count=3)), [device("a"), device("b")], (),
         "ask for 2 instead of 3 devices in request r"),
        (claim(exactly()), [device("a")], (allocated("a"),), "free the devices of claim default/held"),
        (claim(exactly(count=2), constraints=[{"distinctAttribute": "d.io/m"}]),
         [device(n, attributes={"m": {"int": 1}}) for n in "ab"], (),
         "ask for 1 instead of 2 devices in request r"),
        (claim(exactly("r", 'device.driver == "no"')), [device("a")], (),
         'change or drop selector 1 of request r: device.driver == "no"'),
    ],
)  # fmt: skip
def test_the_first_remedy(
    wanted: ResourceClaim, devices: list[Json], held: tuple[Any, ...], expected: str
) -> None:
    assert remedies(wanted, *devices, held=held)[0] == expected


def test_a_change_that_does_not_help_is_not_offered() -> None:
    tainted = device("a", taints=[{"key": "k", "effect": "NoSchedule"}])
    wanted = claim(exactly("r", "false"))
    assert remedies(wanted, tainted) == ()  # neither change alone is enough


def test_alternatives_are_changed_one_at_a_time() -> None:
    request = {
        "name": "r",
        "firstAvailable": [
            {"name": "a", "deviceClassName": "c", "count": 4},
            {"name": "b", "deviceClassName": "c", "count": 3},
        ],
    }
    assert remedies(claim(request), device("a"), device("b")) == (
        "ask for 2 instead of 4 devices in request r/a",
        "ask for 2 instead of 3 devices in request r/b",
    )


def test_without_constraint_drops_exactly_one() -> None:
    constraints = [{"matchAttribute": "d.io/a"}, {"matchAttribute": "d.io/b"}]
    devices = [device("a", attributes={"a": {"int": 1}})]
    wanted = claim(exactly(), constraints=constraints)
    cycle = prepare(snapshot(resource_slice(*devices), claims=(wanted,)), pod("x"))
    (changed,) = without_constraint(cycle, 0, 1)
    assert [c.match_attribute for c in changed.spec.devices.constraints] == ["d.io/a"]
    assert fits_with(cycle, node(), Change("", [changed]))
    assert not fits_with(cycle, node(), Change(""))
