"""The page about container runtimes matches the table of the drivers."""

from __future__ import annotations

from drakit.wire.nri.versions import RUNTIMES, capabilities_of
from tests.docs.pages import rows, text_of

PAGE = text_of("docs/runtimes.md")
HEADS = ("runtime", "from release", "NRI", "CDI device names are reported", "updates can be pushed")


def test_the_page_equals_the_table() -> None:
    listed = rows(PAGE, *HEADS, "evidence")
    word = {True: "yes", False: "no"}
    assert listed == [
        [
            name,
            ".".join(map(str, row.first)),
            str(row.nri),
            word[row.reports_cdi_devices],
            word[capabilities_of("", "", str(row.nri))[1].unsolicited_updates],
            row.evidence,
        ]
        for name, runtime in RUNTIMES.items()
        for row in runtime.releases
    ]
