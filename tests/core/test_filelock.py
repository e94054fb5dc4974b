"""The lock between processes: exclusive, released on any death, never leaked by cancellation."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from drakit.core.filelock import FileLock, LockTimeoutError, is_held, lock_holder

HOLD = """
import sys
from drakit.core.filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
sys.stdin.readline()
"""

COUNT = """
import sys
from drakit.core.filelock import FileLock
path, counter, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
lock = FileLock(path)
for _ in range(rounds):
    lock.acquire(30)
    with open(counter, "r+") as file:
        value = int(file.read())
        file.seek(0)
        file.write(str(value + 1))
    lock.release()
"""


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "serialize.lock")


def holder(path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "held\n"
    return child


def ended(child):
    child.stdin.close()
    child.stdout.close()
    child.wait()


def test_another_process_is_kept_out_until_the_holder_ends(path):
    child = holder(path)
    try:
        lock = FileLock(path)
        assert not lock.try_acquire()
        with pytest.raises(LockTimeoutError, match=r"serialize.lock is locked by"):
            lock.acquire(0.01)
        assert lock_holder(path) in (child.pid, None)
    finally:
        child.stdin.write("\n")
        ended(child)
    lock.acquire(10)
    lock.release()


def test_a_killed_holder_releases_the_lock(path):
    child = holder(path)
    child.kill()
    ended(child)
    lock = FileLock(path)
    assert lock.try_acquire()
    assert lock.held
    lock.release()
    assert not lock.held


def test_nothing_is_lost_when_processes_count_together(path, tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    rounds = 200
    command = [sys.executable, "-c", COUNT, path, str(counter), str(rounds)]
    children = [subprocess.Popen(command) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    assert counter.read_text() == str(2 * rounds)


def test_two_objects_in_one_process_exclude_each_other(path):
    first, second = FileLock(path), FileLock(path)
    with first:
        assert not second.try_acquire()
        assert not first.try_acquire()
    with second:
        assert not first.try_acquire()


def test_a_thread_waits_for_another_thread(path):
    lock, order = FileLock(path), []
    lock.acquire()
    waiting = threading.Event()

    def other():
        waiting.set()
        with FileLock(path):
            order.append("other")

    thread = threading.Thread(target=other)
    thread.start()
    assert waiting.wait(10)
    order.append("first")
    lock.release()
    thread.join(10)
    assert order == ["first", "other"]


def test_waiting_for_oneself_is_an_error_not_a_hang(path):
    with FileLock(path) as lock, pytest.raises(RuntimeError, match="already held"):
        lock.acquire()


def test_releasing_what_is_not_held_is_an_error(path):
    with pytest.raises(RuntimeError, match="not held"):
        FileLock(path).release()


def test_a_removed_lock_file_does_not_make_two_holders(path):
    first, second = FileLock(path), FileLock(path)
    first.acquire()
    got = threading.Event()

    def wait_blocking():
        second.acquire()
        got.set()

    thread = threading.Thread(target=wait_blocking)
    thread.start()
    os.unlink(path)
    third = FileLock(path)  # a new file under the same name: whoever waited must come to it
    third.acquire()
    first.release()
    assert not got.wait(0.05)
    third.release()
    assert got.wait(10)
    thread.join(10)
    second.release()


def test_no_directory_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing/serialize.lock"):
        FileLock(str(tmp_path / "missing" / "serialize.lock")).acquire()


def test_one_who_only_looks_sees_holders_and_takes_nothing(path):
    assert not is_held(path)
    assert not os.path.exists(path)
    with FileLock(path):
        assert is_held(path)
    assert not is_held(path)
    assert FileLock(path).try_acquire()


def test_no_descriptor_is_leaked(path):
    lock, other = FileLock(path), FileLock(path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with lock:
            assert not other.try_acquire()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_tasks_take_turns_and_the_loop_keeps_running(path):
    lock, inside, most = FileLock(path), 0, 0

    async def work():
        nonlocal inside, most
        async with lock.hold():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(work() for _ in range(10)))
    assert most == 1


async def test_async_timeout_and_cancellation_hold_nothing(path):
    with FileLock(path):
        waiting = FileLock(path)
        with pytest.raises(LockTimeoutError):
            await waiting.acquire_async(0.01)
        task = asyncio.create_task(waiting.acquire_async())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not waiting.held
    await waiting.acquire_async(10)
    waiting.release()
