"""The reconciler of pools, over a kernel that gives less than asked for, and through crashes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.core import atomicfile
from drakit.drivers.cpumem.hugepages.plan import OwnPages
from drakit.drivers.cpumem.hugepages.pools import HugepagePools, pages_by_amount
from drakit.drivers.cpumem.hugepages.record import (
    FILE_NAME,
    PoolRecord,
    RecordedPages,
    grown_pages,
    machine_and_grown_pages,
)
from drakit.drivers.cpumem.hugepages.settings import HugepageSettings, PageCounts, PoolKey, budget
from drakit.kit.driver import Driver, PreparedClaim, PreparedClaims, PreparedDevice, RejectedError
from drakit.machine.model import HugepagePool, Machine
from drakit.testing.synthetic import build
from tests.drivers.cpumem.hugepages.kernel import CrashError, FakeKernel, KernelPool

MI, GI = 1 << 20, 1 << 30
SMALL, LARGE = PoolKey(0, 2 * MI), PoolKey(1, GI)
NO_DRIVER = cast("Driver", None)


def machine() -> Machine:
    made = build(sockets=2, cores=1)
    pools = (HugepagePool(2 * MI, 0, 0), HugepagePool(GI, 0, 0))
    nodes = tuple(replace(n, memory_bytes=64 * GI, hugepages=pools) for n in made.numa_nodes)
    return replace(made, numa_nodes=nodes)


def kernel(**persistent: int) -> FakeKernel:
    pools = {PoolKey(node, size): KernelPool() for node in (0, 1) for size in (2 * MI, GI)}
    pools[SMALL].persistent = persistent.get("small", 0)
    pools[LARGE].persistent = persistent.get("large", 0)
    return FakeKernel(pools)


def claim(uid: str, **pages: int) -> PreparedClaim:
    amounts = {}
    if pages.get("small"):
        amounts["numa0/hugepages2Mi"] = pages["small"] * 2 * MI
    if pages.get("large"):
        amounts["numa1/hugepages1Gi"] = pages["large"] * GI
    prepared = PreparedDevice(request="r", pool="n", device="numa0", amounts=amounts)
    return PreparedClaim(uid=uid, namespace="default", name=uid, devices=(prepared,))


@dataclass
class Bench:
    """One node: its kernel and directory survive the reconciler."""

    directory: str
    kernel: FakeKernel
    settings: HugepageSettings
    boot: str = "boot-1"
    now: float = 1000.0
    prepared_claims: PreparedClaims = field(default_factory=PreparedClaims)
    withheld: dict[PoolKey, int] = field(default_factory=dict)
    used: dict[PoolKey, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.pools = HugepagePools(
            self.settings,
            machine(),
            self.kernel,
            self.record(),
            withheld=lambda _: self.withheld,
            used_pages=lambda _: self.used,
            clock=lambda: self.now,
        )

    def record(self) -> PoolRecord:
        return PoolRecord(self.directory, self.boot)

    async def provide(self, entry: PreparedClaim) -> None:
        await self.pools.provision(NO_DRIVER, entry, self.prepared_claims)
        self.prepared_claims = PreparedClaims([*self.prepared_claims, entry])

    async def settle(self, seconds: float = 0.0) -> None:
        self.now += seconds
        await self.pools.reconcile(NO_DRIVER, (), self.prepared_claims)

    def drop(self, uid: str) -> None:
        self.prepared_claims = PreparedClaims(entry for entry in self.prepared_claims if entry.uid != uid)

    def size(self, key: PoolKey = SMALL) -> int:
        return self.kernel.pools[key].persistent


def static(text: str) -> HugepageSettings:
    return HugepageSettings(pools=PageCounts.parse(text))


def growth(text: str, shrink_after: float = 300.0) -> HugepageSettings:
    return HugepageSettings(growth=PageCounts.parse(text), shrink_after=shrink_after)


def gauges(pools: HugepagePools) -> dict[tuple[str, str, str], float]:
    return {(g.name, g.labels[0][1], g.labels[1][1]): g.value for g in pools.gauges()}


# -- static -------------------------------------------------------------------------------------------


def test_vector_12_a_write_of_100_that_reads_back_60_is_60_of_100(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(str(tmp_path), kernel(), static("0:2Mi=100"))
    bench.kernel.room[SMALL] = 60
    (short,) = bench.pools.set_static_sizes()
    assert (short.wanted, short.obtained) == (100, 60)
    assert 'pool="2Mi pages on NUMA node 0" wanted=100 obtained=60' in caplog.text
    assert bench.kernel.read(SMALL).total == 60  # what discovery sees, hence what is offered
    assert bench.kernel.compactions == [0, 0]
    assert gauges(bench.pools) == {
        ("hugepages_wanted", "0", "2Mi"): 100,
        ("hugepages_obtained", "0", "2Mi"): 60,
    }


async def test_compaction_between_tries_can_make_it_whole(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(), static("0:2Mi=100"))
    bench.kernel.room[SMALL] = 60
    bench.kernel.after_compaction[SMALL] = 40
    assert bench.pools.set_static_sizes() == ()
    assert bench.size() == 100
    assert bench.kernel.compactions == [0]


async def test_a_shortage_is_made_good_when_memory_is_there_again(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(), static("0:2Mi=100"))
    bench.kernel.room[SMALL] = 60
    bench.pools.set_static_sizes()
    bench.kernel.room[SMALL] = 1000
    writes = len(bench.kernel.writes)
    await bench.settle(10)
    assert len(bench.kernel.writes) == writes  # not at every event
    await bench.settle(100)
    assert bench.size() == 100
    assert bench.pools.shortages == ()


async def test_a_pool_that_somebody_made_smaller_gets_its_size_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(str(tmp_path), kernel(), static("0:2Mi=100"))
    bench.pools.set_static_sizes()
    bench.kernel.pools[SMALL].persistent = 7
    await bench.settle(61)
    assert bench.size() == 100
    assert "pages=7 configured=100" in caplog.text
    writes = len(bench.kernel.writes)
    await bench.settle(61)
    assert len(bench.kernel.writes) == writes
    bench.kernel.pools[SMALL].persistent = 150
    await bench.settle(61)
    assert bench.size() == 150  # larger is somebody else's choice


def test_pages_of_the_administrator_are_not_taken_away(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(small=200), static("0:2Mi=100"))
    assert bench.pools.set_static_sizes() == ()
    assert bench.size() == 200
    assert bench.kernel.writes == []


def test_a_lowered_configuration_takes_back_only_free_and_unclaimed_pages(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(small=20), static("0:2Mi=100"))
    bench.pools.set_static_sizes()
    bench.kernel.pools[SMALL].used = 25
    bench.settings = static("0:2Mi=10")
    bench.start()
    bench.pools.set_static_sizes({SMALL: 15})
    assert bench.size() == 40  # 25 in use, 15 promised
    bench.kernel.pools[SMALL].used = 0
    bench.pools.set_static_sizes()
    assert bench.size() == 20  # the administrator's


def test_a_pool_that_cannot_be_written_is_short_not_fatal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(str(tmp_path), kernel(small=3), static("0:2Mi=100"))
    bench.kernel.reject_writes = True
    (short,) = bench.pools.set_static_sizes()
    assert str(short) == "3 of 100 2Mi pages on NUMA node 0"
    assert "Operation not permitted" in caplog.text


# -- on demand ----------------------------------------------------------------------------------------


async def test_existing_pages_are_used_before_any_is_grown(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(small=10), growth("0:2Mi=50"))
    await bench.provide(claim("a", small=10))
    assert bench.size() == 10
    await bench.provide(claim("b", small=30))
    assert bench.size() == 40
    assert grown_pages(bench.record()) == {SMALL: 30}
    assert gauges(bench.pools)["hugepages_grown", "0", "2Mi"] == 30


async def test_reserved_pages_are_not_counted_as_there(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(small=10), growth("0:2Mi=50"))
    bench.withheld = {SMALL: 4}
    await bench.provide(claim("a", small=10))
    assert bench.size() == 14


async def test_a_growth_that_fails_is_undone_and_told(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(small=10), growth("0:2Mi=50;1:1Gi=4"))
    bench.kernel.room[LARGE] = 1
    with pytest.raises(RejectedError, match="got 1 with 1 free") as rejection:
        await bench.provide(claim("a", small=20, large=2))
    assert rejection.value.reason == "hugepages"
    assert (bench.size(), bench.size(LARGE)) == (10, 0)
    assert not any(grown_pages(bench.record()).values())


async def test_beyond_the_budget_nothing_is_tried(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(), growth("0:2Mi=50"))
    with pytest.raises(RejectedError, match="50 more may be grown"):
        await bench.provide(claim("a", small=51))
    assert bench.kernel.writes == []


async def test_pages_taken_by_a_host_process_are_made_good_within_the_budget(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(small=10), growth("0:2Mi=50"))
    bench.kernel.pools[SMALL].used = 8
    await bench.provide(claim("a", small=10))
    assert bench.kernel.read(SMALL).free == 10


async def test_a_write_that_is_forbidden_is_rejected_with_a_way_out(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(), growth("0:2Mi=50"))
    bench.kernel.reject_writes = True
    with pytest.raises(RejectedError, match="allowed to write"):
        await bench.provide(claim("a", small=5))


async def test_spare_pages_are_given_back_late_and_only_the_grown_ones(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(small=10), growth("0:2Mi=50"))
    await bench.provide(claim("a", small=30))
    bench.drop("a")
    await bench.settle()
    await bench.settle(299)
    assert bench.size() == 30
    await bench.settle(1)
    assert bench.size() == 10
    await bench.settle(1000)
    assert bench.size() == 10


async def test_a_claim_that_comes_back_in_time_keeps_the_pages(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(), growth("0:2Mi=50"))
    await bench.provide(claim("a", small=30))
    bench.drop("a")
    await bench.settle(10)
    await bench.provide(claim("b", small=30))
    await bench.settle(290)
    bench.drop("b")
    await bench.settle(10)  # spare anew, the clock starts again
    assert bench.size() == 30


async def test_pages_in_use_or_promised_are_not_given_back(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(), growth("0:2Mi=50", shrink_after=0))
    await bench.provide(claim("a", small=20))
    await bench.provide(claim("b", small=20))
    bench.drop("b")
    bench.kernel.pools[SMALL].used = 25  # of a and of somebody else
    bench.used = {SMALL: 15}
    await bench.settle(1)
    await bench.settle(1)
    assert bench.size() == 30  # 25 in use, 5 more promised to a


async def test_nothing_is_given_back_while_a_claim_is_unreadable(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(), growth("0:2Mi=50", shrink_after=0))
    await bench.provide(claim("a", small=20))
    bench.prepared_claims = PreparedClaims((), {"a": {}})
    await bench.settle(1)
    await bench.settle(1)
    assert bench.size() == 20


async def test_a_restarted_driver_knows_its_pages(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(small=10), growth("0:2Mi=50", shrink_after=0))
    await bench.provide(claim("a", small=30))
    bench.start()
    bench.drop("a")
    await bench.settle(1)
    await bench.settle(1)
    assert bench.size() == 10


async def test_after_a_reboot_nothing_is_ours_and_live_claims_get_their_pages(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(small=10), growth("0:2Mi=50", shrink_after=0))
    await bench.provide(claim("a", small=30))
    bench.kernel.pools[SMALL].persistent = 25  # now of the kernel's command line
    bench.boot = "boot-2"
    bench.start()
    assert grown_pages(bench.record()) == {}
    await bench.settle(100)
    assert bench.size() == 30
    bench.drop("a")
    await bench.settle(100)
    await bench.settle(100)
    assert bench.size() == 25


async def test_pages_that_cannot_be_shown_to_be_ours_stay(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(), growth("0:2Mi=50", shrink_after=0))
    await bench.provide(claim("a", small=30))
    (tmp_path / FILE_NAME).write_text("{")
    bench.start()
    bench.drop("a")
    await bench.settle(1)
    await bench.settle(1)
    assert bench.size() == 30


async def test_two_instances_share_one_budget(tmp_path: Path) -> None:
    first = Bench(str(tmp_path), kernel(), growth("0:2Mi=50"))
    second = Bench(str(tmp_path), first.kernel, first.settings)
    await first.provide(claim("a", small=30))
    second.prepared_claims = first.prepared_claims
    await second.provide(claim("b", small=20))
    assert first.size() == 50
    first.prepared_claims = second.prepared_claims
    with pytest.raises(RejectedError):
        await first.provide(claim("c", small=1))


async def test_a_claim_that_is_prepared_again_need_not_have_its_pages_free(tmp_path: Path) -> None:
    """The kubelet repeats calls when it restarts, while the container has the pages in use."""
    bench = Bench(str(tmp_path), kernel(small=10), growth("0:2Mi=20"))
    entry = claim("a", small=30)
    await bench.provide(entry)
    bench.kernel.pools[SMALL].used = 30
    bench.start()
    await bench.pools.provision(NO_DRIVER, entry, PreparedClaims())
    assert bench.size() == 30


async def test_a_claim_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(small=10), growth("0:2Mi=20"))
    for name in ("a", "b"):
        await bench.provide(claim(name, small=1))
    bench.drop("a")
    await bench.provide(claim("c", small=1))
    assert bench.record().load().served == {"b", "c"}


async def test_a_claim_just_provided_for_keeps_its_pages_until_it_is_written_down(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(), growth("0:2Mi=20", shrink_after=0))
    await bench.pools.provision(NO_DRIVER, claim("a", small=5), bench.prepared_claims)
    await bench.settle()
    await bench.settle()
    assert bench.size() == 5


async def test_at_uninstall_every_free_page_goes_back(tmp_path: Path) -> None:
    settings = HugepageSettings(PageCounts.parse("0:2Mi=30"), PageCounts.parse("0:2Mi=20"))
    bench = Bench(str(tmp_path), kernel(small=10), settings)
    bench.pools.set_static_sizes()
    await bench.provide(claim("a", small=40))
    bench.kernel.pools[SMALL].used = 12
    await bench.pools.restore()
    assert bench.size() == 12
    bench.kernel.pools[SMALL].used = 0
    await bench.pools.restore()
    assert bench.size() == 10


async def test_pages_of_an_older_configuration_are_given_back(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(small=10), growth("0:2Mi=20", shrink_after=0))
    await bench.provide(claim("a", small=15))
    bench.drop("a")
    bench.settings = HugepageSettings(shrink_after=0)
    bench.start()
    for _ in range(3):
        await bench.settle(1)
    assert bench.size() == 10


def test_amounts_of_other_kinds_are_not_pages() -> None:
    prepared = PreparedDevice(
        request="r",
        pool="n",
        device="d",
        amounts={"numa0/memory": GI, "numa12/hugepages64Ki": 65537, "numa0/hugepages2Mi": 0},
    )
    assert pages_by_amount(prepared) == {PoolKey(12, 64 << 10): 2}


# -- all of it at random --------------------------------------------------------------------------------

BASE, BUDGET = 6, 12
steps = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.integers(1, 20)),
        st.tuples(st.just("drop"), st.integers(0, 5)),
        st.tuples(st.just("use"), st.integers(0, 20)),
        st.tuples(st.just("room"), st.integers(0, 20)),
        st.tuples(st.just("settle"), st.sampled_from([0, 70, 400])),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("crash"), st.integers(0, 12)),
    ),
    max_size=25,
)


@given(steps)
async def test_the_budget_and_the_pages_in_use_are_kept_whatever_happens(
    happenings: list[tuple[str, int]],
) -> None:
    """Random claims, drops, fragmentation and crashes between any two steps."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(directory, kernel(small=BASE), growth(f"0:2Mi={BUDGET}"))
        bench.kernel.room[SMALL] = 100
        pool = bench.kernel.pools[SMALL]
        names = iter(range(1000))

        def check() -> None:
            claimed = sum(g.amounts["numa0/hugepages2Mi"] for e in bench.prepared_claims for g in e.devices)
            assert BASE <= pool.persistent <= BASE + BUDGET
            assert pool.persistent >= pool.used
            assert claimed // (2 * MI) <= pool.persistent
            left = budget(bench.settings, machine(), grown_pages(bench.record()))
            assert left[0][2 * MI] <= BUDGET

        for what, number in happenings:
            try:
                if what == "claim":
                    await bench.provide(claim(f"c{next(names)}", small=number))
                elif what == "drop" and len(bench.prepared_claims):
                    held = sorted(bench.prepared_claims.entries)
                    bench.drop(held[number % len(held)])
                    pool.used = min(pool.used, _claimed(bench))
                elif what == "use":
                    pool.used = min(number, _claimed(bench))
                elif what == "room":
                    bench.kernel.room[SMALL] = number
                elif what == "settle":
                    await bench.settle(number)
                elif what == "restart":
                    bench.start()
                elif what == "crash":
                    bench.kernel.crash_in = number
            except RejectedError:
                pass
            except CrashError:
                bench.kernel.crash_in = None
                bench.start()
            check()
        bench.kernel.crash_in = None
        bench.prepared_claims = PreparedClaims()
        pool.used = 0
        await bench.settle(1000)
        await bench.settle(1000)
        assert pool.persistent == BASE  # every page that was grown is found again


def _claimed(bench: Bench) -> int:
    return sum(g.amounts["numa0/hugepages2Mi"] for e in bench.prepared_claims for g in e.devices) // (2 * MI)


@pytest.mark.parametrize("shrinking", [False, True])
async def test_a_crash_at_every_file_system_step_loses_no_page(tmp_path: Path, shrinking: bool) -> None:
    """The record is written before and after each change: whichever is there tells the truth."""
    for fatal in range(40):
        where = tmp_path / str(fatal)
        bench = Bench(str(where), kernel(small=BASE), growth("0:2Mi=12", shrink_after=0))
        if shrinking:
            await bench.provide(claim("a", small=BASE + 5))
            bench.drop("a")
        left = [fatal]

        def die(_name: str, _path: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise CrashError

        atomicfile.observers.append(die)
        try:
            if shrinking:
                await bench.settle(1)
                await bench.settle(1)
            else:
                await bench.provide(claim("a", small=BASE + 5))
            done = True
        except CrashError:
            done = False
        finally:
            atomicfile.observers.remove(die)
        bench.start()
        bench.prepared_claims = PreparedClaims()
        assert bench.size() <= BASE + 12
        await bench.settle(1)
        await bench.settle(1)
        assert bench.size() == BASE, f"died at step {fatal}"
        if done:
            break
    else:
        pytest.fail("there are more steps than were tried")
    assert fatal > 5
    assert os.listdir(tmp_path)


def test_a_growth_during_discovery_is_never_offered_twice(tmp_path: Path) -> None:
    """Between looking at the machine and at the record, pages may come or go."""
    key, settings = SMALL, growth("0:2Mi=50")
    record = PoolRecord(str(tmp_path), "boot")

    def share(grown: int) -> RecordedPages:
        return RecordedPages({key: OwnPages(grown=grown, seen=grown, aim=grown)})

    for before, after in ((0, 30), (30, 0)):
        for seen in (before, after):
            record.save(share(before))

            def discover(seen: int = seen, after: int = after) -> Machine:
                record.save(share(after))
                node, other = machine().numa_nodes
                pools = (HugepagePool(2 * MI, seen, seen),)
                return replace(machine(), numa_nodes=(replace(node, hugepages=pools), other))

            now, grown = machine_and_grown_pages(discover, record)
            total = now.numa_nodes[0].hugepages[0].total
            assert total + budget(settings, now, grown)[0][2 * MI] <= 50


# -- promises ---------------------------------------------------------------------------------------


async def test_promised_pages_are_grown_stay_and_must_be_free_when_the_pod_comes(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(), growth("0:2Mi=50", shrink_after=0))
    wanted = claim("a", small=20)
    await bench.pools.reserve(NO_DRIVER, wanted, bench.prepared_claims)
    assert bench.size() == 20
    bench.prepared_claims = PreparedClaims([wanted])  # what is owed
    await bench.settle(1000)
    assert bench.size() == 20, "not given back while it is owed"
    bench.kernel.pools[SMALL].used = 5  # somebody without a claim was quicker
    bench.prepared_claims = PreparedClaims()
    await bench.provide(wanted)
    assert bench.size() == 25, "twenty are free again for the pod"


async def test_a_broken_promise_leaves_nothing_and_is_doubted_for_a_while(tmp_path: Path) -> None:
    bench = Bench(str(tmp_path), kernel(small=10), growth("0:2Mi=50"))
    bench.kernel.room[SMALL] = 5
    node = replace(
        machine(),
        numa_nodes=tuple(
            replace(each, hugepages=(HugepagePool(2 * MI, 10, 10), HugepagePool(GI, 0, 0)))
            for each in machine().numa_nodes
        ),
    )
    may_grow = {0: {2 * MI: 50}, 1: {2 * MI: 50}}
    assert bench.pools.believed(node, may_grow)[0][2 * MI] == 50
    with pytest.raises(RejectedError, match="requested a pool of 40 from the kernel, got 15"):
        await bench.pools.reserve(NO_DRIVER, claim("a", small=40), bench.prepared_claims)
    assert bench.size() == 10, "what it got is given back"
    believed = bench.pools.believed(node, may_grow)
    assert (believed[0][2 * MI], believed[1][2 * MI]) == (5, 50)
    bench.now += 301
    assert bench.pools.believed(node, may_grow)[0][2 * MI] == 50, "worth another try"
