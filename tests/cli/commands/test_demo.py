"""The demo is an end-to-end test: it exits with 0 only if all its checks passed."""

from __future__ import annotations

import os
import re
import subprocess
import sys


def test_every_check_of_the_demo_passes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "drakit", "demo", "--no-pause"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "80"},
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"All (\d+) checks passed", done.stdout)
    assert found
    assert int(found[1]) >= 15
    assert "\x1b[" not in done.stdout, "plain when piped"
    assert "it would fit:" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 120
