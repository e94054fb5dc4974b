"""Lets a second pod use the claim of another pod."""

from __future__ import annotations

from drakit.drivers.models import cpu_enforcement as enforce
from drakit.kit.driver import Container, Use


def _check_owner(container: Container, use: Use, why: str) -> None:
    """Accept every pod."""


enforce.check_owner = _check_owner
