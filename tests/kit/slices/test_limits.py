"""Our own check says what the API server would say, and says it better."""

from __future__ import annotations

import pytest

from drakit.core.objects import Attribute, Device, ObjectMeta, ResourceSlice
from drakit.kit.driver import Offer, PoolOffer
from drakit.kit.slices.layout import Identity, lay_out
from drakit.kit.slices.limits import OfferError, check_offer
from drakit.kit.slices.pool_plan import match_slices, plan_pool
from drakit.testing.apiserver import FakeApiServer
from drakit.wire.kube import SLICES, BadRequestError, Client, InvalidError
from tests.kit.slices.limit_cases import BEYOND_THE_SERVER, CASES, Case


@pytest.mark.parametrize("case", [*CASES, *BEYOND_THE_SERVER], ids=str)
def test_check_knows_the_limits(case: Case) -> None:
    offer = Offer((case.pool,))
    if case.good:
        check_offer("example.com", offer)
    else:
        with pytest.raises(OfferError) as caught:
            check_offer("example.com", offer)
        assert caught.value.problems


@pytest.mark.parametrize("case", [case for case in CASES if case.in_double], ids=str)
async def test_the_fake_server_has_the_same_limits(case: Case) -> None:
    async with FakeApiServer(version="1.37") as server, Client(server.cluster()) as client:
        assert await server_takes(client, case) == case.good


async def server_takes(client: Client, case: Case) -> bool:
    """Whether a server accepts the slices made of a case, without our check before them."""
    identity = Identity("example.com", "node")
    contents = lay_out(case.pool)
    plan = plan_pool(identity, case.pool.name, contents, match_slices((), len(contents)))
    assert not plan.updates
    try:
        for create in plan.creates:
            metadata = ObjectMeta(generate_name=create.generate_name)
            await client.create(SLICES, ResourceSlice(metadata=metadata, spec=create.spec))
    except (BadRequestError, InvalidError):
        return False
    return True


def test_a_problem_names_device_field_limit_and_remedy() -> None:
    device = Device(name="gpu-7", attributes={"model": Attribute(string="x" * 70)})
    with pytest.raises(OfferError) as caught:
        check_offer("example.com", Offer((PoolOffer((device,), name="n1"),)))
    text = str(caught.value)
    for word in ("gpu-7", "n1", "model", "70", "64", "shorten"):
        assert word in text


def test_many_problems_are_counted_but_not_all_listed() -> None:
    broken = tuple(Device(name=f"D{i}") for i in range(20))
    with pytest.raises(OfferError) as caught:
        check_offer("example.com", Offer((PoolOffer(broken, name="n1"),)))
    assert len(caught.value.problems) == 20
    assert "and 15 more" in str(caught.value)


@pytest.mark.parametrize("driver", ["", "UPPER", "a" * 64, "a..b", "-a"])
def test_driver_names(driver: str) -> None:
    with pytest.raises(OfferError, match="driver name"):
        check_offer(driver, Offer(()))


def test_pools_are_unique() -> None:
    pool = PoolOffer((), name="p")
    with pytest.raises(OfferError, match="offered 2 times"):
        check_offer("example.com", Offer((pool, pool)))
