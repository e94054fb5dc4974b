"""Lets a second pod use a claim that is another's."""

from __future__ import annotations

from drakit.drivers.models import cpu_enforcement as enforce
from drakit.kit.driver import Container, Use


def _check_owner(container: Container, use: Use, why: str) -> None:
    """Nothing to object."""


enforce.check_owner = _check_owner
