"""Errors that end a command."""

from __future__ import annotations

from drakit.core.errors import ActionableError


class CliError(ActionableError):
    """Error that :func:`drakit.cli.main` prints before it returns *exit_code*."""

    def __init__(self, message: str, remedy: str, *, exit_code: int = 2) -> None:
        super().__init__(message, remedy)
        self.exit_code = exit_code
