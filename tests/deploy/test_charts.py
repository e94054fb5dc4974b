"""The Helm charts of the drivers and the library chart that they share."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

HELM = Path(__file__).parents[2] / "deploy/helm"
LIBRARY = HELM / "drakit-library"
CHARTS = sorted(chart for chart in HELM.iterdir() if chart != LIBRARY)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_a_chart_renders_without_fetching_the_library(chart: Path) -> None:
    (dependency,) = yaml.safe_load((chart / "Chart.yaml").read_text())["dependencies"]
    library = yaml.safe_load((LIBRARY / "Chart.yaml").read_text())
    assert (dependency["name"], dependency["version"]) == (library["name"], library["version"])
    assert (chart / dependency["repository"].removeprefix("file://")).resolve() == LIBRARY
    assert (chart / "charts" / dependency["name"]).resolve() == LIBRARY


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.name)
def test_a_chart_has_only_the_templates_that_are_its_own(chart: Path) -> None:
    own = {template.name for template in (chart / "templates").iterdir()}
    assert own == {"_driver.tpl", "deviceclass.yaml", "driver.yaml"}


def test_every_template_of_the_library_is_included() -> None:
    templates = {template.stem.removeprefix("_") for template in LIBRARY.glob("templates/*.tpl")}
    text = (LIBRARY / "templates/_all.tpl").read_text()
    missing = {name for name in templates if f'"{name}"' not in text}
    assert missing == {"all", "driver", "helpers"}
