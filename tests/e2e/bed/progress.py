"""Progress lines for long builds."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_BEGIN = time.monotonic()
_HEARTBEAT_SECONDS = 30.0


def say(message: str) -> None:
    """Print one progress line with the time since the start of this process."""
    elapsed = time.monotonic() - _BEGIN
    print(f"[e2e {int(elapsed) // 60:2d}:{int(elapsed) % 60:02d}] {message}", flush=True)


class StepError(RuntimeError):
    """A build step failed; the message has the end of its output."""


def run_step(
    title: str,
    argv: Sequence[str],
    *,
    log: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run one slow command with its output in ``log`` and a heartbeat line while it lasts.

    Raises ``StepError`` with the last lines of the output when the command fails. The
    command is killed when this process is interrupted.
    """
    begin = time.monotonic()
    say(f"{title} …")
    with log.open("ab") as output:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd, env=env
        )
        try:
            while True:
                try:
                    code = process.wait(_HEARTBEAT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    say(f"{title} … {time.monotonic() - begin:.0f} s ({_last_line(log)})")
        except BaseException:
            process.kill()
            process.wait()
            raise
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        raise StepError(f"{title}: exit status {code}; the end of {log}:\n{tail}")
    say(f"{title}: {time.monotonic() - begin:.0f} s")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").rstrip().splitlines()
    return lines[-1][:100] if lines else "no output yet"


def warn(message: str) -> None:
    """Print an important line."""
    print(f"[e2e] {message}", file=sys.stderr, flush=True)
