"""Base class of errors that tell a user what to do about them."""

from __future__ import annotations


class ActionableError(Exception):
    """Error with a *message* (what happened to which object) and a *remedy* (what to do about it)."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message}\n{remedy}")
        self.message = message
        self.remedy = remedy
