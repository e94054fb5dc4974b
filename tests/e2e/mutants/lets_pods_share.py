"""Lets a second pod use a claim that is another's."""

from __future__ import annotations

from drakit.drivers.models import cpu_enforcement as enforce
from drakit.kit.driver import ClaimUse, ContainerView


def _check_owner(container: ContainerView, use: ClaimUse, why: str) -> None:
    """Nothing to object."""


enforce.check_owner = _check_owner
