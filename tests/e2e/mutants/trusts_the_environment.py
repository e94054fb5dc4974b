"""Believes whoever carries a claim's marker variable, whosever pod it is."""

from __future__ import annotations

from collections.abc import Sequence

from drakit.kit import names
from drakit.kit.driver import Entry
from drakit.kit.enforcement import Enforcer
from drakit.wire.nri.values import Container, Pod


def _parts(self: Enforcer, pod: Pod, reported: Container) -> Sequence[names.Part]:
    kind = self._driver().cdi_kind
    every = [part for entry in self._holdings() for part in names.parts_of(entry)]
    return [part for part in every if reported.variable(names.marker_variable(part)) == kind]


def _owner(self: Enforcer, entry: Entry, asking: Pod) -> Pod:
    return asking


Enforcer._owner = _owner  # type: ignore[method-assign]
Enforcer._parts = _parts  # type: ignore[method-assign]
