"""How an attempt to schedule can fail."""

from __future__ import annotations


class FatalError(Exception):
    """kube-scheduler gives up on the pod with this text, whatever other nodes have to offer."""


class SearchLimitError(Exception):
    """drakit could not decide within its own limit; *steps* kube-scheduler would take at least."""

    def __init__(self, steps: int) -> None:
        super().__init__(f"undecided: more than {steps:,} steps of kube-scheduler's search")
        self.steps = steps
