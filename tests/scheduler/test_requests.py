from __future__ import annotations

import pytest

from drakit.core.objects import DeviceRequest, from_builtins
from drakit.scheduler.errors import FatalError
from drakit.scheduler.requests import claim_name, request_specs
from tests.scheduler.factories import claim, exactly, plans
from tests.scheduler.problems import Json

FIRST_AVAILABLE: Json = {
    "name": "r",
    "firstAvailable": [
        {"name": "big", "deviceClassName": "c", "count": 4},
        {"name": "small", "deviceClassName": "c"},
    ],
}


def test_a_request_has_one_spec_or_its_alternatives_with_full_names() -> None:
    one = from_builtins(exactly("one"), DeviceRequest)
    several = from_builtins(FIRST_AVAILABLE, DeviceRequest)
    assert [name for name, _ in request_specs(one)] == ["one"]
    assert [(name, spec.count) for name, spec in request_specs(several)] == [("r/big", 4), ("r/small", 1)]


def test_variants_are_numbered_across_all_claims() -> None:
    first, second = plans(claim(exactly("a"), FIRST_AVAILABLE), claim(exactly("a"), name="y"))
    variants = [v for plan in (first, second) for r in plan.requests for v in r.variants]
    assert [v.number for v in variants] == [0, 1, 2, 3]
    assert [str(v.name) for v in variants] == ["a", "r/big", "r/small", "a"]
    assert [r.is_list for r in first.requests] == [False, True]
    assert claim_name(second.claim) == "default/y"


def test_the_variant_knows_admin_access_and_allocation_mode() -> None:
    (plan,) = plans(claim(exactly("a", adminAccess=True), exactly("b", allocationMode="All")))
    admin, everything = (r.variants[0] for r in plan.requests)
    assert (admin.admin, admin.wants_all) == (True, False)
    assert (everything.admin, everything.wants_all) == (False, True)


@pytest.mark.parametrize(
    ("request_spec", "message"),
    [
        (exactly(deviceClassName=""), "missing device class name"),
        (exactly(deviceClassName="no"), "could not retrieve device class no"),
        (exactly(allocationMode="Some"), "unsupported count mode Some"),
        (exactly(selectors=[{}]), "selector #0: CEL expression empty"),
    ],
)
def test_an_unsupported_request_fails_the_pod(request_spec: Json, message: str) -> None:
    with pytest.raises(FatalError, match=message) as caught:
        plans(claim(request_spec))
    assert str(caught.value).startswith("claim default/x, request r")
