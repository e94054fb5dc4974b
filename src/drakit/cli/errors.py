"""The one way a command says that it cannot go on."""

from __future__ import annotations


class Problem(Exception):  # noqa: N818 - it is told to a person, not handled as an error
    """What happened, to which object, and the way out; :func:`drakit.cli.main` prints it.

    ``code`` becomes the exit code of the command.
    """

    def __init__(self, what: str, way_out: str, *, code: int = 2) -> None:
        super().__init__(f"{what}\n{way_out}")
        self.what = what
        self.way_out = way_out
        self.code = code
