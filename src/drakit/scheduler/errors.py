"""Errors of the scheduling of a pod."""

from __future__ import annotations


class FatalError(Exception):
    """kube-scheduler fails the pod with this text, whatever other nodes have to offer.

    *summary* is the same for users: what is wrong, without the names of upstream functions.
    """

    def __init__(self, message: str, summary: str = "") -> None:
        super().__init__(message)
        self.summary = summary or message


class SearchLimitError(Exception):
    """drakit reached its own limit; kube-scheduler would need more than *steps*."""

    def __init__(self, steps: int) -> None:
        super().__init__(f"undecided: more than {steps:,} steps of kube-scheduler's search")
        self.steps = steps
