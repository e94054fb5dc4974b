"""Generated problems have the answers of kube-scheduler's own allocator (Go, 1.37.1 and 1.36.6).

The golden files hold, per seed and node, what ``structured.Allocate`` answered: the devices in
order, or the reason, with the number of steps of its search; null where it timed out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drakit.core.kubernetes_releases import V1_36, V1_37, KubernetesRelease
from tests.scheduler.answers import answers
from tests.scheduler.problems import problem

HERE = Path(__file__).parent


def golden(release: KubernetesRelease) -> list[tuple[int, list[Any]]]:
    text = (HERE / f"golden_{release.name}.json").read_text(encoding="utf-8")
    return [(seed, expected) for seed, expected in json.loads(text)]


@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("release", [V1_37, V1_36], ids=lambda v: v.name)
def test_the_devices_are_those_of_kube_scheduler(release: KubernetesRelease, part: int, scale: int) -> None:
    """An eighth of the problems each; of that every eighth, all of them with --long."""
    stride = 8 if scale > 1 else 64
    compared = 0
    for seed, expected in golden(release)[part::stride]:
        for ours, theirs in zip(answers(problem(seed), release), expected, strict=True):
            if theirs is None:
                continue  # kube-scheduler's search ran into the timeout
            if isinstance(ours, list) and (ours[1] is None or release.scheduler.distinct_by_request):
                assert ours[0] == theirs[0], f"seed {seed}"
            else:
                assert ours == theirs, f"seed {seed}"
            compared += 1
    assert compared > 0


def test_the_golden_files_cover_success_failure_and_errors() -> None:
    for release in (V1_37, V1_36):
        kinds = [
            "fatal" if a == "fatal" else "fits" if isinstance(a[0], list) else "does not fit"
            for _, expected in golden(release)
            for a in expected
            if a is not None
        ]
        assert len(kinds) >= 500
        assert all(kinds.count(k) >= 40 for k in ("fatal", "fits", "does not fit"))
