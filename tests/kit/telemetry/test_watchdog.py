"""A driver that hangs ends itself and tells where it hung; one that works is left alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from drakit.kit import program
from drakit.kit.config.options import HostOptions
from drakit.kit.program import _OPEN_FILES, _allow_open_files
from drakit.kit.telemetry import watchdog

HANG = """
import asyncio, re, sys, time
sys.path[:0] = {path!r}
from drakit.kit.telemetry.watchdog import watch

def blocked():
    {hang}

async def main():
    watching = asyncio.create_task(watch(0.5))
    await asyncio.sleep(0)
    blocked()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "hang",
    [
        "time.sleep(3600)",
        # Holds the interpreter's lock: no other thread of Python can run meanwhile.
        "re.match('(a+)+$', 'a' * 60 + 'b')",
    ],
    ids=["waits", "holds the interpreter's lock"],
)
def test_a_process_that_hangs_ends_and_shows_where(hang: str) -> None:
    script = HANG.format(path=sys.path, hang=hang)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert "in blocked" in done.stderr


async def test_the_timer_is_rearmed_while_the_loop_runs_and_disarmed_at_the_end() -> None:
    alarms: list[float] = []
    off: list[bool] = []
    task = asyncio.create_task(watchdog.watch(0.06, alarms.append, lambda: off.append(True)))
    while len(alarms) < 5:
        await asyncio.sleep(0.001)
    assert set(alarms) == {0.06}
    assert not off
    task.cancel()
    await asyncio.wait({task})
    assert off


def test_as_many_open_files_as_the_hard_limit_allows() -> None:
    assert _allow_open_files((1024, 524288)) == _OPEN_FILES
    assert _allow_open_files((1024, 4096)) == 4096
    assert _allow_open_files((1024, -1)) == _OPEN_FILES
    assert _allow_open_files((-1, -1)) == -1
    assert _allow_open_files((1 << 20, 1 << 20)) == 1 << 20, "never less than there was"


async def test_the_program_is_watched_and_has_more_files_while_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = asyncio.Event()
    seen: list[str] = []

    async def watch() -> None:
        watched.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("no longer watched")

    class Host:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        async def run(self) -> None:
            async with asyncio.timeout(60):
                await watched.wait()
            seen.append("served")

    monkeypatch.setattr("drakit.kit.host.Host", Host)
    monkeypatch.setattr("drakit.wire.kube.find_cluster", lambda kubeconfig: None)
    monkeypatch.setattr("drakit.wire.kube.Client", lambda *_, **__: None)
    monkeypatch.setattr(watchdog, "watch", watch)
    monkeypatch.setattr(program, "_raise_open_files", lambda: seen.append("more files"))
    made = program.Program("p", "P", "", HostOptions, lambda config, node: None)  # type: ignore[arg-type,return-value]
    assert await program._serve(made, HostOptions(), "n", lambda: None) == 0  # type: ignore[arg-type,return-value]
    await asyncio.sleep(0)
    assert seen == ["more files", "served", "no longer watched"]
