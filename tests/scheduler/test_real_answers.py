"""Wide problems have the answers that kube-scheduler 1.37.1 itself gave, kept from the oracle.

``golden_real_1.37.json`` holds per problem: the seed its names were made from, the node the pod got
("?" where only its claims tell, "" for none) and per claim the devices with their amounts.
``tests/e2e/test_scheduler_parity.py`` asks the real scheduler again, and thousands more.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drakit.core.objects import from_builtins
from drakit.core.pods import Pod
from drakit.scheduler.placement import NodeResult, place
from tests.scheduler.wide_problems import claim_objects, cluster_objects, pod_object, private, wide_problem
from tests.scheduler.written import typed_cluster

RENAMED = 500_000
"""Added to the seed for the names of a problem that was put a second time."""


def golden() -> list[list[Any]]:
    text = (Path(__file__).parent / "golden_real_1.37.json").read_text(encoding="utf-8")
    found: list[list[Any]] = json.loads(text)
    return found


@pytest.mark.parametrize("part", range(4))
def test_the_real_scheduler_gave_the_same_devices(part: int, scale: int) -> None:
    """A quarter of the problems each; of that every sixth, all of them with --long."""
    stride = 4 if scale > 1 else 24
    for named, node, claims in golden()[part::stride]:
        posed = private({**wide_problem(named % RENAMED), "seed": named})
        objects = [*cluster_objects(posed), *claim_objects(posed)]
        placement = place(typed_cluster(objects), from_builtins(pod_object(posed), Pod))
        assert placement.feasible == bool(node), f"seed {named}"
        if not node:
            continue
        fitting = [a for a in placement.nodes if a.fits and node in ("?", a.name)]
        names = [c["metadata"]["name"] for c in posed["claims"]]
        assert any(_devices(a, names, claims) == claims for a in fitting), f"seed {named}"


def _devices(answer: NodeResult, names: list[str], theirs: list[Any]) -> list[Any]:
    """Our devices per claim; claims that had theirs before keep them."""
    new = {
        a.claim.metadata.name: [
            [str(p.request), *p.device, p.admin, {k: str(v) for k, v in p.consumed.items()}] for p in a.picks
        ]
        for a in answer.allocations
    }
    return [new.get(name, held) for name, held in zip(names, theirs, strict=True)]


def test_the_problems_are_many_and_of_both_kinds() -> None:
    nodes = [node for _, node, _ in golden()]
    assert len(nodes) >= 500
    assert min(nodes.count(""), len(nodes) - nodes.count("")) >= 100
