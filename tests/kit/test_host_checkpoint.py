"""The whole host with a checkpoint that cannot be read, is newer, or a runtime that is away."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

import drakit.kit.claims.checkpoint as checkpoint_module
import drakit.kit.host as host_module
from drakit.kit.config.options import HostOptions
from drakit.kit.host import Host
from drakit.testing.kubelet import PrepareError
from drakit.testing.node import SimulatedNode
from drakit.wire.kubelet import ClaimError, ClaimRef
from tests.kit.test_host import Pairs, at_work, eventually, pair, serving, world


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "_OTHER_INSTANCE_SECONDS", 0.05)
    monkeypatch.setattr(host_module, "_LOAD_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(host_module, "_RUNTIME_SECONDS", 0.05)


def host_of(node: SimulatedNode, **changes: object) -> Host:
    return node.host(Pairs, HostOptions(**{**node.settings(), **changes}))  # type: ignore[arg-type]


def ref(name: str, uid: str) -> ClaimRef:
    return ClaimRef("default", name, uid)


# -- the runtime is away -----------------------------------------------------------------------------


async def test_no_call_is_answered_before_the_runtime_is_synchronized() -> None:
    """A fresh instance knows no container: it would give back what one runs on."""
    async with world() as node:
        async with serving(node):
            used = node.allocate("a", [pair(1)], consumers=["pa"]).metadata.uid
            running = await node.run_pod("pa", {"main": ["a"]})
        await node.runtime.down()
        wanted = node.allocate("b", [pair(1)], consumers=["pb"]).metadata.uid
        async with at_work(host_of(node)) as host:
            await eventually(lambda: host.plugin.service_path, "the service socket")
            await eventually(lambda: len(host.checkpoint.prepared_claims) == 1, "the checkpoint is read")
            with pytest.raises(ClaimError, match=r"cannot be unprepared now: .*retries"):
                await host.preparer.unprepare(ref("a", used))
            with pytest.raises(ClaimError, match=r"cannot be prepared now: .*retries"):
                await host.preparer.prepare(ref("b", wanted))
            for verb in ("assign", "release"):
                assert host.metrics.rejections.labels(verb, "not-ready").value == 1
            await node.runtime.up()
            await eventually(lambda: host.runtime.problem is None, "synchronized")
            with pytest.raises(ClaimError, match="still in use"):
                await host.preparer.unprepare(ref("a", used))
            with pytest.raises(ClaimError, match="held by claim default/a"):
                await host.preparer.prepare(ref("b", wanted))
        assert running.containers["main"].cpus == "2-3"


async def test_no_call_is_answered_while_the_connection_to_the_runtime_is_lost() -> None:
    async with world() as node, serving(node) as host:
        used = node.allocate("a", [pair(1)], consumers=["pa"]).metadata.uid
        wanted = node.allocate("b", [pair(2)], consumers=["pb"]).metadata.uid
        await host.preparer.prepare(ref("a", used))
        await node.runtime.down()
        await eventually(lambda: host.runtime.problem, "the loss is noticed")
        with pytest.raises(ClaimError, match="cannot be unprepared now"):
            await host.preparer.unprepare(ref("a", used))
        with pytest.raises(ClaimError, match="cannot be prepared now"):
            await host.preparer.prepare(ref("b", wanted))
        assert set(host.checkpoint.prepared_claims.entries) == {used}
        await node.runtime.up()
        await eventually(lambda: host.runtime.problem is None, "synchronized again")
        await host.preparer.unprepare(ref("a", used))
        await host.preparer.prepare(ref("b", wanted))


# -- the checkpoint cannot be read -------------------------------------------------------------------


async def test_a_read_error_at_start_costs_no_claim_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    real, broken = checkpoint_module._read, True

    def failing(path: str) -> bytes:
        if broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path)

    async with world() as node:
        async with serving(node):
            node.allocate("a", [pair(1)], consumers=["pa"])
            running = await node.run_pod("pa", {"main": ["a"]})
            await node.runtime.stop(running.containers["main"].id)  # between two lives
        monkeypatch.setattr(checkpoint_module, "_read", failing)
        async with serving(node) as host:
            assert "Input/output error" in (host.conditions()["checkpoint"] or "")
            node.allocate("b", [pair(1)], consumers=["pb", "pc"])
            with pytest.raises(PrepareError, match="nothing new can be assigned"):
                await node.run_pod("pb", {"main": ["b"]})
            broken = False
            await eventually(lambda: host.conditions()["checkpoint"] is None, "read again")
            again = await node.restart_container(running, "main")
            assert again.cpus == "2-3"
            with pytest.raises(PrepareError, match="held by claim default/a"):
                await node.run_pod("pc", {"main": ["b"]})


async def test_a_checkpoint_that_cannot_be_used_is_tried_again_until_it_can(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("not a directory")
    async with world() as node, at_work(host_of(node, state_dir=str(state))) as host:
        await eventually(lambda: host.port, "health pages")
        await eventually(lambda: "cannot be used" in (host.conditions()["checkpoint"] or ""), "the reason")
        assert host.plugin.registered.is_set() is False
        state.unlink()
        await eventually(lambda: host.conditions()["checkpoint"] is None, "read")
        await node.kubelet.registered(Pairs.name)


async def test_a_host_that_cannot_use_its_checkpoint_can_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a directory")
    async with world() as node:
        host = host_of(node, state_dir=str(tmp_path / "state"))
        task = asyncio.create_task(host.run())
        await eventually(lambda: "cannot" in (host.conditions()["checkpoint"] or ""), "trying")
        host.stop()
        await asyncio.wait_for(task, 60)


# -- the checkpoint is newer -------------------------------------------------------------------------


async def test_a_newer_record_is_reported_and_left_until_its_version_is_back() -> None:
    async with world() as node, serving(node) as host:
        claim = node.allocate("a", [pair(1)], consumers=["pa"])
        running = await node.run_pod("pa", {"main": ["a"]})
        path = Path(host.checkpoint.path(claim.metadata.uid))
        own = path.read_bytes()
        newer = own.replace(b'"format":1', b'"format":2')
        (path.parent / ".new").write_bytes(newer)
        (path.parent / ".new").rename(path)
        await eventually(lambda: host.conditions()["checkpoint"], "noticed")
        assert "newer version" in (host.conditions()["checkpoint"] or "")
        with pytest.raises(ClaimError, match="newer version"):
            await host.preparer.prepare(ref("a", claim.metadata.uid))
        with pytest.raises(ClaimError, match="still in use by"):
            await host.preparer.unprepare(ref("a", claim.metadata.uid))
        await node.runtime.stop(running.containers["main"].id)
        with pytest.raises(ClaimError, match="newer version"):
            await host.preparer.unprepare(ref("a", claim.metadata.uid))
        node.allocate("b", [pair(1)], consumers=["pb"])
        with pytest.raises(PrepareError, match="held by"):
            await node.run_pod("pb", {"main": ["b"]})
        assert path.read_bytes() == newer
        assert [name for name in os.listdir(node.cdi_dir) if claim.metadata.uid in name]
        (path.parent / ".new").write_bytes(own)
        (path.parent / ".new").rename(path)
        await eventually(lambda: host.conditions()["checkpoint"] is None, "understood again")
        assert (await node.restart_container(running, "main")).cpus == "2-3"
