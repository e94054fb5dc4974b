"""Names that tie a claim to what the runtime sees: CDI devices and marker variables.

Each request of a claim is one CDI device, so that a container which names one request gets that
request's grants only. The marker variable says the same to runtimes that do not report CDI device
names to NRI (before NRI 0.12); the workload could forge it, so it is checked against the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from drakit.kit.driver import Entry
from drakit.wire.cdi.spec import claim_device_name, parse_claim_device_name

MARKER_PREFIX = "DRA_CLAIM_"


class Part(NamedTuple):
    """One request of one claim."""

    uid: str
    request: str


def qualified_name(kind: str, part: Part) -> str:
    """The CDI device as the kubelet and the runtime know it: ``vendor/class=device``."""
    return f"{kind}={claim_device_name(part.uid, part.request)}"


def marker_variable(part: Part) -> str:
    """The environment variable that marks a container as user of a request."""
    return f"{MARKER_PREFIX}{part.uid}_{part.request}"


def parts_of(entry: Entry) -> tuple[Part, ...]:
    """The requests of a claim that this driver serves, each once, in order."""
    return tuple(dict.fromkeys(Part(entry.uid, grant.request) for grant in entry.grants))


def index_by_device(kind: str, entries: Iterable[Entry]) -> dict[str, Part]:
    """From qualified CDI device name to the request it stands for."""
    return {qualified_name(kind, part): part for entry in entries for part in parts_of(entry)}


def claims_shown(kind: str, devices: Iterable[str], env: Iterable[str]) -> set[str]:
    """UIDs of the claims that a container's CDI devices and marker variables speak of."""
    shown = set()
    for device in devices:
        part = parse_claim_device_name(device.removeprefix(f"{kind}="))
        if device.startswith(f"{kind}=") and part is not None:
            shown.add(part[0])
    for variable in env:
        name, _, value = variable.partition("=")
        if name.startswith(MARKER_PREFIX) and value == kind:
            shown.add(name.removeprefix(MARKER_PREFIX).partition("_")[0])
    return shown
