"""Lets a second pod use the claim of another pod."""

from __future__ import annotations

from drakit.drivers.models import cpu_enforcement as enforce
from drakit.kit.driver import ClaimUse, ContainerView


def _check_owner(container: ContainerView, use: ClaimUse, why: str) -> None:
    """Accept every pod."""


enforce.check_owner = _check_owner
