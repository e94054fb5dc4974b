"""What a runtime can do follows from what it says, or from what is known about its release."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.wire.nri.versions import OLDEST, RUNTIMES, NriVersion, capabilities_of, infer_version


@pytest.mark.parametrize(
    ("runtime", "release", "declared", "expected"),
    [
        ("containerd", "v2.4.0", "v0.12.2", "0.12.2"),
        ("containerd", "v2.4.2", "0.12.3", "0.12.3"),
        ("containerd", "v2.2.1", "", "0.11.0"),
        ("containerd", "2.2.0", "", "0.10.0"),
        ("containerd", "v2.1.9", "", "0.8.0"),
        ("containerd", "v1.7.33", "", "0.8.0"),
        ("containerd", "v1.7.25", "", "0.6.1"),
        ("containerd", "v1.7.13~ds1", "", "0.4.0"),
        ("containerd", "v1.7.0", "", "0.3.0"),
        ("containerd", "1.6.20", "", "0.2.0"),
        ("containerd", "v2.3.1-12-gabcdef", "(devel)", "0.12.0"),
        ("containerd", "v2.4.0-rc.1", "0.0.0-unknown", "0.12.2"),
        ("containerd", "9.9.9", "", "0.12.2"),
        ("cri-o", "1.34.1", "", "0.10.0"),
        ("cri-o", "1.33.0", "", "0.9.0"),
        ("CRI-O", "1.31.5", "", "0.6.1"),
        ("cri-o", "nonsense", "", "0.2.0"),
        ("other", "7.0.0", "", "0.2.0"),
        ("other", "7.0.0", "v0.9.1-0.2025", "0.9.1"),
        ("", "", "", "0.2.0"),
    ],
)
def test_versions(runtime: str, release: str, declared: str, expected: str) -> None:
    assert str(infer_version(runtime, release, declared)) == expected


@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30))
def test_any_text_gives_a_version(runtime: str, release: str, declared: str) -> None:
    assert infer_version(runtime, release, declared) >= (0, 0, 0)


def test_an_unknown_runtime_is_taken_for_the_oldest() -> None:
    _, features = capabilities_of("unheard-of", "")
    assert infer_version("unheard-of", "", "") == OLDEST
    assert not features.unsolicited_updates
    assert not features.reports_cdi_devices


@pytest.mark.parametrize(
    ("version", "pushes"),
    [((0, 9, 9), False), ((0, 11, 0), False), ((0, 12, 0), False), ((0, 12, 1), True), ((1, 0), True)],
)
def test_features(version: tuple[int, ...], pushes: bool) -> None:
    _, features = capabilities_of("unheard-of", "", str(NriVersion(*version)))
    assert features.unsolicited_updates is pushes
    assert not features.reports_cdi_devices, "this is a property of the runtime, not of NRI"


@pytest.mark.parametrize(
    ("runtime", "release", "declared", "cdi", "current"),
    [
        ("containerd", "v1.7.24", "", False, True),
        ("containerd", "v2.0.5", "", False, True),
        ("containerd", "v2.1.9", "", False, True),
        ("containerd", "v2.2.7", "", False, True),
        ("containerd", "v2.3.0", "v0.12.0", True, True),
        ("containerd", "v2.4.2", "v0.12.3", True, True),
        ("containerd", "v2.9.0", "v0.19.0", True, True),
        ("cri-o", "1.33.1", "", False, False),
        ("cri-o", "1.34.11", "", False, False),
        ("cri-o", "1.35.6", "", False, False),
        ("cri-o", "1.36.3", "", False, False),
        ("cri-o", "1.37.0", "v0.12.0", False, False),
        ("cri-o", "1.99.0", "v0.15.0", False, False),
        ("podman-nri", "1.0.0", "v0.12.3", False, False),
        ("containerd", "no release", "v0.12.3", False, True),
    ],
)
def test_capabilities_depend_on_runtime_and_release(
    runtime: str, release: str, declared: str, cdi: bool, current: bool
) -> None:
    _, features = capabilities_of(runtime, release, declared)
    assert features.reports_cdi_devices is cdi
    assert features.reports_current_resources is current


def test_every_row_of_the_table_has_evidence_and_ascending_releases() -> None:
    for name, runtime in RUNTIMES.items():
        rows = runtime.releases
        assert name == name.lower()
        assert all(row.evidence for row in rows)
        assert [row.first for row in rows] == sorted({row.first for row in rows})
        assert [row.nri for row in rows] == sorted(row.nri for row in rows)


@given(st.sampled_from(["containerd", "cri-o", "other", ""]), st.text(max_size=12), st.text(max_size=12))
def test_runtimes_that_are_not_in_the_table_fail_closed(runtime: str, release: str, declared: str) -> None:
    version, features = capabilities_of(runtime, release, declared)
    assert features.unsolicited_updates <= (version >= (0, 12, 1))
    if runtime not in RUNTIMES:
        assert not features.reports_cdi_devices
        assert not features.reports_current_resources
