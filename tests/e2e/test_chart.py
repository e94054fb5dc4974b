"""The rendered manifests equal the charts: users without Helm apply what Helm would install."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from .bed.deploy import render_chart
from .bed.host import Ability
from .bed.pins import Pins

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("chart", "rendering"), [("dra-driver-cpu", "install.yaml"), ("dra-driver-cpumem", "install-cpumem.yaml")]
)
def test_the_rendering_is_what_the_chart_renders(
    ability: Ability, pins: Pins, chart: str, rendering: str
) -> None:
    if not ability.cluster:
        pytest.skip(f"helm is built with Go: {ability.why_not()}")
    written = list(yaml.safe_load_all((REPOSITORY / "deploy" / rendering).read_text()))
    assert written == render_chart(pins, chart, "kube-system", {})


@pytest.mark.parametrize("chart", ["dra-driver-cpu", "dra-driver-cpumem"])
def test_values_reach_the_pod_and_the_policy(ability: Ability, pins: Pins, chart: str) -> None:
    if not ability.cluster:
        pytest.skip(f"helm is built with Go: {ability.why_not()}")
    values = {"seLinuxOptions": {"type": "spc_t"}, "networkPolicy": {"from": []}}
    found = {each["kind"]: each for each in render_chart(pins, chart, "kube-system", values)}
    (driver,) = found["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    assert driver["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert found["NetworkPolicy"]["spec"]["ingress"] == []
    without = render_chart(pins, chart, "kube-system", {"networkPolicy": {"create": False}})
    assert "NetworkPolicy" not in {each["kind"] for each in without}
    with pytest.raises(RuntimeError, match="seLinuxOptions"):
        render_chart(pins, chart, "kube-system", {"seLinuxOptions": {"tpye": "spc_t"}})
