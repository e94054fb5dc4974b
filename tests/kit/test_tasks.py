"""Work that fails is logged with its traceback, counted, reported when it persists, and done again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from drakit.kit.tasks import PERSISTS, TaskRunner


class Task:
    """Fails with what is put in; counts how often it was done."""

    def __init__(self, *problems: Exception) -> None:
        self.problems = list(problems)
        self.done = 0
        self.finished = asyncio.Event()

    async def __call__(self) -> None:
        self.done += 1
        if self.problems:
            raise self.problems.pop(0)
        self.finished.set()


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, KeyError, OSError, AssertionError])
async def test_a_failure_is_counted_and_logged_and_does_not_spread(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    counted: list[str] = []
    work = TaskRunner(counted.append)
    assert await work.once("looking", Task(kind("why"))) is False
    assert counted == ["looking"]
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert record.getMessage().startswith("task failed, will retry task=looking error=")
    assert "why" in record.getMessage()
    assert bool(record.exc_info) == (kind is not OSError), "a traceback, where it is of use"


async def test_only_what_persists_is_reported_and_until_it_succeeds() -> None:
    work, task = TaskRunner(), Task(*[ValueError("why")] * PERSISTS)
    for _ in range(PERSISTS):
        assert work.problem is None
        await work.once("looking", task)
    assert work.problem == f"looking failed {PERSISTS} times in a row: why"
    await work.once("other", Task())
    assert work.problem is not None, "another task's success is not this one's"
    await work.once("looking", task)
    assert work.problem is None


async def test_the_same_failure_in_a_row_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    work = TaskRunner()
    task = Task(ValueError("a"), ValueError("a"), ValueError("b"), ValueError("a"))
    for _ in range(4):
        await work.once("looking", task)
    errors = [r.msg.fields["error"] for r in caplog.records if r.levelno == logging.ERROR]
    assert errors == ["a", "b", "a"]


async def test_what_must_be_done_is_tried_until_it_is() -> None:
    task = Task(OSError(), KeyError("x"))
    async with asyncio.timeout(60):
        await TaskRunner(pause=0.001).until_done("registering", task)
    assert task.done == 3


async def test_what_must_not_end_is_started_again_also_when_it_just_ends() -> None:
    counted: list[str] = []
    task = Task(ValueError("why"))
    running = asyncio.create_task(TaskRunner(counted.append, pause=0.001).forever("binding", task))
    async with asyncio.timeout(60):
        while task.done < 3:
            await asyncio.sleep(0.001)
    assert not running.done()
    assert len(counted) >= 2, "one failed, one ended by itself"
    running.cancel()
    await asyncio.wait({running})


async def test_periodic_work_goes_on_after_any_failure() -> None:
    task = Task(ValueError("a"), RuntimeError("b"), KeyError("c"))
    running = asyncio.create_task(TaskRunner().every(0.001, "looking", task))
    async with asyncio.timeout(60):
        await task.finished.wait()
    assert not running.done()
    running.cancel()
    await asyncio.wait({running})
