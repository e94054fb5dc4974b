"""``drakit ps``: the amounts of a claim."""

from __future__ import annotations

from drakit.cli.commands.ps import _row
from drakit.kit.driver import PreparedClaim, PreparedDevice


def test_only_hugepages_are_counted_as_hugepages() -> None:
    amounts = {"numa0/memory": 1 << 30, "numa1/memory": 1, "numa0/hugepages2Mi": 64, "numa0/scratchpad": 8}
    device = PreparedDevice(request="r", pool="p", device="numa0", amounts=amounts)
    row = _row(PreparedClaim(uid="u", namespace="local", name="a", devices=(device,)))
    assert row["memory"] == (1 << 30) + 1
    assert row["hugepages"] == {"numa0/hugepages2Mi": 64}
