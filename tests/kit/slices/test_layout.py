"""The plan from offer to slices: limits, order, stability, generations."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core.kubernetes_releases import LATEST
from drakit.core.objects import (
    Attribute,
    Capacity,
    Counter,
    CounterSet,
    Device,
    ObjectMeta,
    OwnerReference,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
    Taint,
    to_builtins,
)
from drakit.core.quantity import Quantity
from drakit.kit.driver import PoolOffer
from drakit.kit.slices.comparison import keep_taint_times, same_content
from drakit.kit.slices.layout import Content, Identity, Slice, generate_name, index_of, lay_out
from drakit.kit.slices.pool_plan import PoolPlan, devices_by_slice, match_slices, plan_pool
from drakit.testing.apiserver_admission import validate_slice
from drakit.wire.kube import SLICES, Object

IDENTITY = Identity("dra.example.com", "node-1")
OWNER = OwnerReference(api_version="v1", kind="Node", name="node-1", uid="n", controller=True)
TAINT = Taint(key="example.com/t", effect="NoSchedule")


class Server:
    """Carries plans out, in memory, and counts what was written."""

    def __init__(self) -> None:
        self.slices: dict[str, Slice] = {}
        self.revision = 0

    def carry_out(self, plan: PoolPlan, limit: int | None = None) -> int:
        """Write the plan, or only its first *limit* steps; returns how many were made."""
        steps = [*plan.deletes, *plan.updates, *plan.creates][:limit]
        for step in steps:
            self.revision += 1
            if isinstance(step, Object):
                del self.slices[step.name]
            elif hasattr(step, "stored"):
                self._store(step.stored.name, step.stored.uid, step.spec)
            else:
                name = f"{step.generate_name}{self.revision:05d}"
                self._store(name, f"u{self.revision}", step.spec)
        return len(steps)

    def _store(self, name: str, uid: str, spec: ResourceSliceSpec) -> None:
        metadata = ObjectMeta(
            name=name, uid=uid, resource_version=str(self.revision), owner_references=(OWNER,)
        )
        raw = to_builtins(ResourceSlice(metadata=metadata, spec=spec))
        assert validate_slice(raw["spec"], None, LATEST) == []
        self.slices[name] = Object(SLICES, raw)

    @property
    def devices(self) -> list[str]:
        """As the scheduler would see the pool: slices by name."""
        return [d.name for _, s in sorted(self.slices.items()) for d in s.typed.spec.devices]


def plan_for(server: Server, pool: PoolOffer, *, may_taint: bool = False, floor: int = 0) -> PoolPlan:
    items = tuple(server.slices.values())
    contents = lay_out(pool, may_taint=may_taint, current=devices_by_slice(match_slices(items)))
    return plan_pool(
        IDENTITY, "pool", contents, match_slices(items, len(contents)), owner=OWNER, generation_floor=floor
    )


def devices(names: Sequence[str], advanced: frozenset[str] = frozenset()) -> tuple[Device, ...]:
    return tuple(Device(name=n, taints=(TAINT,) if n in advanced else ()) for n in names)


@st.composite
def pools(draw: st.DrawFn) -> PoolOffer:
    count = draw(
        st.integers(0, 10) | st.integers(0, 200) | st.sampled_from([63, 64, 65, 127, 128, 129, 256, 257])
    )
    names = [f"d{i}" for i in range(count)]
    share = draw(st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]))
    rng = draw(st.randoms(use_true_random=False))
    rng.shuffle(names)
    advanced = frozenset(name for name in names if rng.random() < share)
    sets = draw(st.integers(0, 20))
    counters = {"c": Counter(value=Quantity(1))}
    return PoolOffer(
        devices(names, advanced),
        tuple(CounterSet(name=f"s{i}", counters=counters) for i in range(sets)),
        name="pool",
    )


@given(pools(), st.booleans())
def test_slices_keep_limits_and_order(pool: PoolOffer, may_taint: bool) -> None:
    contents = lay_out(pool, may_taint=may_taint)
    assert contents
    assert tuple(d for c in contents for d in c.devices) == pool.devices
    assert tuple(s for c in contents for s in c.shared_counters) == pool.shared_counters
    for content in contents:
        assert not (content.devices and content.shared_counters)
        advanced = may_taint or any(device.taints for device in content.devices)
        assert len(content.devices) <= (64 if advanced else 128)
        assert len(content.shared_counters) <= 8
    if pool.devices or pool.shared_counters:
        assert all(content.devices or content.shared_counters for content in contents)
    else:
        assert contents == (Content(),)


@given(pools())
def test_a_pool_is_written_once(pool: PoolOffer) -> None:
    server = Server()
    plan = plan_for(server, pool)
    assert plan.generation == 1
    assert not plan.deletes
    assert not plan.updates
    server.carry_out(plan)
    assert server.devices == [d.name for d in pool.devices]
    assert plan_for(server, pool).empty


@given(pools(), st.data())
def test_one_changed_device_is_one_write_without_a_new_generation(
    pool: PoolOffer, data: st.DataObject
) -> None:
    server = Server()
    server.carry_out(plan_for(server, pool))
    if not pool.devices:
        return
    at = data.draw(st.integers(0, len(pool.devices) - 1))
    changed = msgspec.structs.replace(pool.devices[at], attributes={"x": Attribute(int_=1)})
    new = PoolOffer((*pool.devices[:at], changed, *pool.devices[at + 1 :]), pool.shared_counters, "pool")
    plan = plan_for(server, new)
    assert (len(plan.deletes), len(plan.updates), len(plan.creates)) == (0, 1, 0)
    assert plan.generation == 1
    server.carry_out(plan)
    assert plan_for(server, new).empty


@given(st.integers(2, 300), st.data())
def test_a_device_that_goes_changes_one_slice(count: int, data: st.DataObject) -> None:
    server = Server()
    pool = PoolOffer(devices([f"d{i}" for i in range(count)]), name="pool")
    server.carry_out(plan_for(server, pool))
    at = data.draw(st.integers(0, count - 1))
    fewer = PoolOffer((*pool.devices[:at], *pool.devices[at + 1 :]), name="pool")
    plan = plan_for(server, fewer)
    if len(lay_out(fewer)) == len(lay_out(pool)):
        assert (len(plan.deletes), len(plan.updates), len(plan.creates)) == (0, 1, 0)
        assert plan.generation == 1
    server.carry_out(plan)
    assert server.devices == [d.name for d in fewer.devices]
    # And it comes back to the place it had.
    plan = plan_for(server, pool)
    if len(server.slices) == len(lay_out(pool)):
        assert (len(plan.deletes), len(plan.updates), len(plan.creates)) == (0, 1, 0)
    server.carry_out(plan)
    assert server.devices == [d.name for d in pool.devices]


@given(st.lists(pools(), min_size=2, max_size=3), st.data())
def test_any_sequence_of_offers_converges_with_interrupted_plans(
    offers: list[PoolOffer], data: st.DataObject
) -> None:
    """Generations only rise, and a generation that is complete on the server is one that was meant."""
    server, highest = Server(), 0
    for pool in offers:
        for _ in range(data.draw(st.integers(0, 2))):
            plan = plan_for(server, pool)
            assert plan.generation >= highest
            highest = plan.generation
            server.carry_out(plan, data.draw(st.integers(0, 3)))
        plan = plan_for(server, pool)
        assert plan.generation >= highest
        highest = plan.generation
        server.carry_out(plan)
        assert plan_for(server, pool).empty
        assert server.devices == [d.name for d in pool.devices]
        stated = {
            (s.typed.spec.pool.generation, s.typed.spec.pool.resource_slice_count)
            for s in server.slices.values()
        }
        assert stated == {(highest, len(server.slices))}


def test_new_slices_raise_the_generation_of_all() -> None:
    server = Server()
    server.carry_out(plan_for(server, PoolOffer(devices([f"d{i}" for i in range(128)]))))
    plan = plan_for(server, PoolOffer(devices([f"d{i}" for i in range(129)])))
    assert plan.generation == 2
    assert (len(plan.updates), len(plan.creates)) == (1, 1)
    assert {u.spec.pool.generation for u in plan.updates} == {2}


def test_two_changed_slices_raise_the_generation() -> None:
    server = Server()
    names = [f"d{i}" for i in range(300)]
    server.carry_out(plan_for(server, PoolOffer(devices(names))))
    plan = plan_for(server, PoolOffer(devices(names, frozenset({"d0"}))))
    server.carry_out(plan)
    both = tuple(
        msgspec.structs.replace(d, attributes={"x": Attribute(int_=1)}) if d.name in ("d10", "d299") else d
        for d in devices(names, frozenset({"d0"}))
    )
    generation = plan.generation
    plan = plan_for(server, PoolOffer(both))
    assert plan.generation == generation + 1
    assert len(plan.updates) == len(server.slices)


def test_after_a_wipe_generations_continue() -> None:
    server = Server()
    pool = PoolOffer(devices(["a"]))
    server.carry_out(plan_for(server, pool))
    server.slices.clear()
    assert plan_for(server, pool, floor=7).generation == 8


@pytest.mark.parametrize("name", ["", "x", "0-a", "000000-a", "0000g-a", "0000A-a", "node-1-dra-x"])
def test_names_that_are_not_ours_are_obsolete(name: str) -> None:
    assert index_of(name, 5) is None
    server = Server()
    pool = PoolOffer(devices(["a"]))
    server.carry_out(plan_for(server, pool))
    spec = next(iter(server.slices.values())).typed.spec
    server._store(name, "odd", spec)
    plan = plan_for(server, pool)
    assert [item.name for item in plan.deletes] == [name]
    assert not plan.updates
    assert not plan.creates


@given(st.integers(1, 16**5 + 10), st.data())
def test_the_index_survives_name_truncation(count: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, count - 1))
    long = Identity("d" * 60, "n" * 60)
    base = generate_name(index, count, long)[:58] + "abcde"
    assert index_of(base, count) == index


def test_names_sort_as_their_numbers_do() -> None:
    names = [generate_name(i, 300, IDENTITY) for i in range(300)]
    assert names == sorted(names)
    assert names[0] == "00000-dra.example.com-node-1-"


def test_of_two_slices_with_one_index_one_is_deleted() -> None:
    server = Server()
    pool = PoolOffer(devices(["a"]))
    server.carry_out(plan_for(server, pool))
    first = next(iter(server.slices.values()))
    server._store("00000-zzz", "second", first.typed.spec)
    plan = plan_for(server, pool)
    assert [item.uid for item in plan.deletes] == ["second"]
    newer = msgspec.structs.replace(
        first.typed.spec, pool=ResourcePool(name="pool", generation=9, resource_slice_count=1)
    )
    server._store("00000-zzz", "second", newer)
    plan = plan_for(server, pool)
    assert [item.uid for item in plan.deletes] == [first.uid]
    assert plan.generation == 9


def test_a_slice_being_deleted_is_ignored_but_its_generation_exceeded() -> None:
    server = Server()
    pool = PoolOffer(devices(["a"]))
    server.carry_out(plan_for(server, pool))
    ((name, item),) = server.slices.items()
    metadata = {**item.raw["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    server.slices[name] = Object(SLICES, {**item.raw, "metadata": metadata})
    plan = plan_for(server, pool)
    assert (len(plan.deletes), len(plan.updates), len(plan.creates)) == (0, 0, 1)
    assert plan.generation == 2


def test_an_unreadable_slice_of_ours_is_replaced() -> None:
    server = Server()
    pool = PoolOffer(devices(["a"]))
    server.carry_out(plan_for(server, pool))
    ((name, item),) = server.slices.items()
    server.slices[name] = Object(SLICES, {**item.raw, "spec": {**item.raw["spec"], "devices": 5}})
    plan = plan_for(server, pool)
    assert (len(plan.deletes), len(plan.updates), len(plan.creates)) == (1, 0, 1)


def test_a_missing_owner_is_added_without_a_new_generation() -> None:
    server = Server()
    names = [f"d{i}" for i in range(300)]
    pool = PoolOffer(devices(names))
    server.carry_out(plan_for(server, pool))
    for name, item in server.slices.items():
        metadata = {k: v for k, v in item.raw["metadata"].items() if k != "ownerReferences"}
        server.slices[name] = Object(SLICES, {**item.raw, "metadata": metadata})
    plan = plan_for(server, pool)
    assert len(plan.updates) == 3
    assert plan.generation == 1


@pytest.mark.parametrize(
    "extra",
    [
        {"allNodes": True},
        {"perDeviceNodeSelection": True},
        {"partitionTypeAttribute": "a/b"},
        {"skipNodeOperations": ["*"]},
    ],
)
def test_fields_added_by_other_clients_are_removed(extra: dict[str, object]) -> None:
    server = Server()
    pool = PoolOffer(devices(["a"]))
    server.carry_out(plan_for(server, pool))
    ((name, item),) = server.slices.items()
    server.slices[name] = Object(SLICES, {**item.raw, "spec": {**item.raw["spec"], **extra}})
    assert len(plan_for(server, pool).updates) == 1


# -- comparing ----------------------------------------------------------------------------------------


def content(**fields: object) -> Content:
    return Content(devices=(Device(name="d", **fields),))  # type: ignore[arg-type]


def capacity(text: str) -> dict[str, Capacity]:
    return {"c": Capacity(value=Quantity(text))}


@pytest.mark.parametrize(
    ("desired", "stored"),
    [
        (content(capacity=capacity("1Gi")), content(capacity=capacity("1024Mi"))),
        (
            content(taints=(TAINT,)),
            content(taints=(msgspec.structs.replace(TAINT, time_added="2026-01-01T00:00:00Z"),)),
        ),
        (
            content(taints=(msgspec.structs.replace(TAINT, time_added="2026-01-01T01:00:00+01:00"),)),
            content(taints=(msgspec.structs.replace(TAINT, time_added="2026-01-01T00:00:00Z"),)),
        ),
        (
            content(node_allocatable_resources={"cpu": {"mapping": {"deviceMultiplier": "1000m"}}}),
            content(node_allocatable_resources={"cpu": {"mapping": {"deviceMultiplier": "1"}}}),
        ),
    ],
)
def test_same(desired: Content, stored: Content) -> None:
    assert same_content(desired, stored)


@pytest.mark.parametrize(
    ("desired", "stored"),
    [
        (content(), Content()),
        (content(capacity=capacity("1Gi")), content(capacity=capacity("1G"))),
        (content(), content(taints=(TAINT,))),
        (content(allow_multiple_allocations=False), content()),
        (
            content(taints=(msgspec.structs.replace(TAINT, time_added="2026-01-01T00:00:05Z"),)),
            content(taints=(msgspec.structs.replace(TAINT, time_added="2026-01-01T00:00:00Z"),)),
        ),
        (Content(devices=devices(["a", "b"])), Content(devices=devices(["b", "a"]))),
    ],
)
def test_different(desired: Content, stored: Content) -> None:
    assert not same_content(desired, stored)


def test_taints_keep_their_time_when_something_else_changes() -> None:
    old = msgspec.structs.replace(TAINT, time_added="2026-01-01T00:00:00Z")
    other = Taint(key="example.com/other", effect="NoExecute")
    kept = keep_taint_times(Device(name="d", taints=(TAINT, other)), Device(name="d", taints=(old,)))
    assert kept.taints == (old, other)
    # A different effect is a different taint.
    harder = msgspec.structs.replace(TAINT, effect="NoExecute")
    assert keep_taint_times(Device(name="d", taints=(harder,)), kept).taints == (harder,)
