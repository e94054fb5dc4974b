"""Options and profiles shared by all tests.

``--long`` (``make test-long``) selects the exhaustive variants: more random steps, more fuzz inputs.
Tests ask for their size through the ``scale`` fixture or hypothesis' active profile.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "long", max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the exhaustive variants")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("--long") else "default")


@pytest.fixture(scope="session")
def scale(request: pytest.FixtureRequest) -> int:
    """How much work a test with its own loop shall do: 1 by default, 25 with ``--long``."""
    return 25 if request.config.getoption("--long") else 1


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Let a busy machine not look like a hanging handler where a runtime says no time limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drakit.wire.nri.connection._DEFAULT_REQUEST_TIMEOUT", 30.0)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep reports sendable: xdist cannot carry the lone surrogates that hostile inputs log."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections
    ]
    return report
