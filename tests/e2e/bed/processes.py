"""Processes and files of one run, removed with it.

Every child asks the kernel to be killed when this process dies (``PR_SET_PDEATHSIG``), so
not even ``kill -9`` of pytest leaves an emulator or an etcd behind. The run's directory is
removed by a small watcher process that detects the end of a pipe; a directory without a
watcher is removed by the next run, which finds its lock free.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from .cache import cache_root

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)

# Runs in a separate process: waits until every holder of the pipe is gone.
_WATCHER = """
import os, shutil, sys, time
os.read(0, 1)
for _ in range(50):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.exists(sys.argv[1]):
        break
    time.sleep(0.2)
"""


class ProcessDiedError(RuntimeError):
    """A process of the test cluster exited unexpectedly; the message has the end of its log."""


@dataclass
class Child:
    """One running program with its log file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def alive(self) -> bool:
        """True while the program runs."""
        return self.process.poll() is None

    def check(self) -> None:
        """Raise ``ProcessDiedError`` with the end of the log if the program has exited."""
        if not self.alive():
            raise ProcessDiedError(
                f"{self.name} ended with status {self.process.returncode}; {self.log}:\n" + self.tail()
            )

    def tail(self, lines: int = 15) -> str:
        """The last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self, grace: float = 10.0) -> None:
        """Terminate the program, kill it after ``grace`` seconds, and wait for it."""
        if self.alive():
            self.process.terminate()
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def kill(self) -> None:
        """Kill the program and wait for it."""
        self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, for instance SIGSTOP to make a program hang."""
        self.process.send_signal(number)


@dataclass
class Run:
    """The processes and the directory of one run; a context manager that ends them all."""

    directory: Path
    _watcher: subprocess.Popen[bytes]
    _lock: int
    children: list[Child] = field(default_factory=list)

    @classmethod
    def begin(cls) -> Run:
        """Create a run directory and its watcher; remove the directories of dead runs."""
        parent = cache_root() / "runs"
        parent.mkdir(exist_ok=True)
        _sweep(parent)
        directory = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
        directory.chmod(0o755)
        lock = os.open(directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        watcher = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _WATCHER, str(directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
        return cls(directory, watcher, lock)

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Child:
        """Start a program that dies with this process; its output is appended to ``<name>.log``.

        The kernel ties the child to the *thread* that started it: main thread only.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"{name}: programs of the bed are started by the main thread")
        log = self.directory / f"{name}.log"
        parent = os.getpid()

        def die_with_parent() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        with log.open("ab") as output:
            process = subprocess.Popen(
                [str(word) for word in argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                cwd=cwd,
                start_new_session=True,  # Ctrl-C is for pytest, which ends the rest in order
                preexec_fn=die_with_parent,  # noqa: PLW1509  the main thread has no locks to lose
            )
        child = Child(name, process, log)
        self.children.append(child)
        return child

    def end(self) -> None:
        """End all programs, the youngest first, and remove the directory."""
        for child in reversed(self.children):
            child.stop()
        self.children.clear()
        os.close(self._lock)
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        self._watcher.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def _sweep(parent: Path) -> None:
    for directory in parent.glob("run-*"):
        if time.time() - directory.stat().st_mtime < 60:
            continue  # it may be between its creation and its lock
        try:
            lock = os.open(directory / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            shutil.rmtree(directory, ignore_errors=True)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        except BlockingIOError:
            pass  # its run is alive
        finally:
            os.close(lock)


def free_port() -> int:
    """A free TCP port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
