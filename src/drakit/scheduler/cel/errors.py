"""What can go wrong with an expression, and when.

Kubernetes reports the first kinds when an object is created; :class:`CelRuntimeError` appears only
in the scheduler, where it stops the whole pod rather than meaning "no match".
"""

from __future__ import annotations


class CelError(Exception):
    """Anything wrong with an expression."""


class CelCompileError(CelError):
    """The API server rejects an object with this expression; *position* is a character offset."""

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


class CelSyntaxError(CelCompileError):
    """The text is not an expression."""


class CelTypeError(CelCompileError):
    """Names or types do not fit: unknown names, wrong arguments, a result that is not a bool."""


class CelCostError(CelCompileError):
    """The estimated cost is above the limit of the API server."""


class CelUnsupportedError(CelCompileError):
    """Kubernetes knows this function, but drakit cannot evaluate it."""


class CelRuntimeError(CelError):
    """Evaluation failed on one device: Kubernetes stops scheduling the pod with this text."""
