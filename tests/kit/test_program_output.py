"""Output of a driver program whose reader is gone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("option", ["--check", "--print-schema"])
def test_a_closed_pipe_is_not_an_error_message(option: str) -> None:
    read, write = os.pipe()
    os.close(read)
    program = "from drakit.drivers.cpu.program import main; raise SystemExit(main())"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, option],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    finally:
        os.close(write)
    assert b"Broken pipe" not in done.stderr
    assert done.returncode == 141
