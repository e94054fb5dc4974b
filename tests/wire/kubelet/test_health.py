"""The feed: newest report to everyone, repeated before it ages, nothing queued."""

from __future__ import annotations

import asyncio

import pytest

from drakit.wire.kubelet import health
from drakit.wire.kubelet.health import HealthFeed, repeat_after
from drakit.wire.kubelet.values import Health, HealthReport


def device(name, timeout=30):
    return HealthReport("pool", name, Health.HEALTHY, 0, timeout)


@pytest.mark.parametrize(
    ("timeouts", "seconds"), [([], 10), ([30], 10), ([90, 60], 20), ([0], 10), ([-5, 60], 10), ([1], 1.0)]
)
def test_repeated_at_a_third_of_the_shortest_timeout(timeouts, seconds):
    assert repeat_after([device("d", timeout) for timeout in timeouts]) == seconds


async def test_a_listener_gets_nothing_before_the_first_report_then_each_newest():
    feed = HealthFeed()
    reports = feed.reports()
    first = asyncio.ensure_future(anext(reports))
    await asyncio.sleep(0)
    assert not first.done()
    feed.publish([device("a")])
    assert await first == (device("a"),)
    feed.publish([device("b")])
    feed.publish([device("c")])
    assert await anext(reports) == (device("c"),)
    await reports.aclose()


async def test_the_report_is_repeated(monkeypatch):
    monkeypatch.setattr(health, "repeat_after", lambda devices: 0.001)
    feed = HealthFeed()
    feed.publish([device("a")])
    reports = feed.reports()
    assert [await anext(reports) for _ in range(3)] == [(device("a"),)] * 3
    await reports.aclose()


async def test_an_expired_report_is_not_repeated(monkeypatch):
    """Whoever looks after the devices hangs: the kubelet shall not take silence for good health."""
    now = [100.0]
    monkeypatch.setattr(health, "monotonic", lambda: now[0])
    monkeypatch.setattr(health, "repeat_after", lambda devices: 0.001)
    feed = HealthFeed()
    feed.publish([device("a")], holds=60)
    reports = feed.reports()
    now[0] += 59
    assert [await anext(reports) for _ in range(3)] == [(device("a"),)] * 3
    now[0] += 1
    later = asyncio.ensure_future(anext(reports))
    newcomer = feed.reports()
    first = asyncio.ensure_future(anext(newcomer))
    done, _ = await asyncio.wait({later, first}, timeout=0.05)
    assert not done
    feed.publish([device("b")], holds=60)
    assert await later == await first == (device("b"),)
    await reports.aclose()
    await newcomer.aclose()


async def test_all_listeners_get_the_same_reports():
    feed = HealthFeed()
    feed.publish([device("a")])
    listeners = [feed.reports() for _ in range(3)]
    assert [await anext(one) for one in listeners] == [(device("a"),)] * 3
    feed.publish([])
    assert [await anext(one) for one in listeners] == [()] * 3
    for one in listeners:
        await one.aclose()
