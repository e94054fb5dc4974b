"""The process is killed at every file-system step of prepare and unprepare; nothing is lost.

After each death: no claim is lost that was answered, none comes back that was unprepared, nothing is
assigned twice, and every CDI spec and metadata file matches the checkpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

# At least so many steps there are: fewer would mean that the crashes are not where they should be.
LEAST_STEPS = {
    "first_prepare": 15,
    "repeated_prepare": 0,
    "prepare_after_reboot": 5,
    "unprepare": 10,
    "unprepare_unknown": 2,
    "restart": 0,
    "life": 50,
}


@pytest.fixture(scope="module")
def outcome():
    # In memory where possible: the steps are what counts, and syncing a disk takes a minute.
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as directory:
        done = subprocess.run(
            [sys.executable, "-m", "tests.kit.crashing", directory],
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
    return json.loads(done.stdout)


@pytest.mark.parametrize("scenario", LEAST_STEPS)
def test_killed_at_every_step(outcome, scenario):
    assert outcome[scenario]["problems"] == []
    assert outcome[scenario]["steps"] >= LEAST_STEPS[scenario]


def test_every_scenario_was_run(outcome):
    assert set(outcome) == set(LEAST_STEPS)
