"""``make e2e-full``: all tests on the default versions, then the suite on the other ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from .build import build_all
from .pins import REPOSITORY
from .progress import say

_PYTEST = (sys.executable, "-m", "pytest", "tests/e2e")
_ROUNDS: tuple[tuple[dict[str, str], tuple[str, ...]], ...] = (
    ({}, ("--full",)),
    ({"DRAKIT_E2E_KUBERNETES": "1.34.4"}, ()),
    ({"DRAKIT_E2E_CONTAINERD": "debian"}, ()),
    ({"DRAKIT_E2E_GUEST": "cgroupfs"}, ()),
    ({"DRAKIT_E2E_RUNTIME": "crio"}, ("--full",)),
)


def main() -> int:
    """Run every configuration, even after failures, and print a table at the end."""
    summary, failed = [], 0
    for choice, options in _ROUNDS:
        title = " ".join([*(f"{key}={value}" for key, value in choice.items()), *options])
        os.environ.update(choice)
        build_all()
        say(f"round: {title}")
        begin = time.monotonic()
        status = subprocess.run([*_PYTEST, *options], cwd=REPOSITORY, check=False).returncode
        failed += status != 0
        for key in choice:
            del os.environ[key]
        summary.append(
            f"{'passed' if status == 0 else 'FAILED'} in {time.monotonic() - begin:.0f} s: {title}"
        )
    for line in summary:
        say(line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
