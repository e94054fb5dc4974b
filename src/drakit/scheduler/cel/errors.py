"""Errors of CEL expressions.

The API server reports compile errors when an object is created; :class:`CelRuntimeError` occurs only
in the scheduler, where it fails the whole pod instead of meaning "no match".
"""

from __future__ import annotations


class CelError(Exception):
    """Base class of all errors in an expression."""


class CelCompileError(CelError):
    """The API server rejects an object with this expression; *position* is a character offset."""

    def __init__(self, reason: str, position: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position


class CelSyntaxError(CelCompileError):
    """The text is not a valid expression."""


class CelTypeError(CelCompileError):
    """Unknown name, arguments of the wrong type, or a result that is not a bool."""


class CelCostError(CelCompileError):
    """The estimated cost exceeds the limit of the API server."""


class CelUnsupportedError(CelCompileError):
    """Kubernetes supports this function, but drakit cannot evaluate it."""


class CelRuntimeError(CelError):
    """Evaluation failed for one device: kube-scheduler fails the pod with this text."""
