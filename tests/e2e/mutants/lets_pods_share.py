"""Lets a second pod use the claim of another pod."""

from __future__ import annotations

from drakit.drivers.models import grouped
from drakit.kit.driver import ClaimUse, ContainerView


def _check_owner(container: ContainerView, use: ClaimUse) -> None:
    """Accept every pod."""


grouped.check_owner = _check_owner  # type: ignore[attr-defined]
