"""Errors that end a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from drakit.core.errors import ActionableError


class CliError(ActionableError):
    """Error that :func:`drakit.cli.main` prints before it returns *exit_code*."""

    def __init__(self, message: str, remedy: str, *, exit_code: int = 2) -> None:
        super().__init__(message, remedy)
        self.exit_code = exit_code


@contextmanager
def cli_errors(kind: type[Exception], remedy: str, describe: Callable[[Any], str] = str) -> Iterator[None]:
    """Raise :class:`CliError` instead of errors of *kind*; *describe* returns its message."""
    try:
        yield
    except kind as error:
        raise CliError(describe(error), remedy) from None
