"""The CDI specs of a driver's claims, derived from the checkpoint.

One file per claim, one device per base request. Besides what the driver prepared devices, each device carries
a marker variable (see :mod:`drakit.kit.claims.cdi_names`), so a device is never without edits – a runtime would
reject the whole file – and runtimes that do not report CDI device names can still tell whose a
container is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from drakit.kit.claims import cdi_names as names
from drakit.kit.driver import Mount, PreparedClaim, PreparedDevice
from drakit.wire.cdi import spec as cdi
from drakit.wire.cdi.directory import CdiDirectory


class ClaimSpecs:
    """Keeps the specs of one driver in one CDI directory; holds no state except the disk's."""

    def __init__(self, directory: str, kind: str) -> None:
        self._directory = CdiDirectory(directory, kind)
        self._kind = kind

    def write(self, entry: PreparedClaim, mounts: Mapping[str, Mount]) -> dict[str, str]:
        """Make the claim's spec true; returns the qualified device of each base request.

        *mounts* are additional ones by base request. Raises ``OSError``.
        """
        parts = names.requests_of(entry)
        edits = {part.request: _edits(self._kind, entry, part, mounts) for part in parts}
        self._directory.write(entry.uid, cdi.claim_spec(self._kind, entry.uid, edits))
        return {part.request: names.qualified_name(self._kind, part) for part in parts}

    def remove(self, uid: str) -> None:
        """Remove the claim's spec if there is one, durably. Raises ``OSError``."""
        self._directory.remove(uid)

    def claims(self) -> frozenset[str]:
        """UIDs of all claims that have a spec here, also of the Go driver's. Raises ``OSError``."""
        return frozenset(uid.removeprefix("claim-") for uid in self._directory.entries())

    def keep_only(self, uids: Iterable[str]) -> None:
        """Remove the specs of all claims but *uids*, and what a crash left. Raises ``OSError``.

        Files that are not named after a bare UID are not ours (the Go driver's are called
        ``claim-<uid>``) and serve containers that may still restart: they stay.
        """
        wanted = set(uids)
        self._directory.clean()
        for uid in self._directory.ids():
            if uid not in wanted and not uid.startswith("claim-"):
                self._directory.remove(uid)


def _edits(
    kind: str, entry: PreparedClaim, part: names.ClaimRequest, mounts: Mapping[str, Mount]
) -> cdi.ContainerEdits:
    prepared_devices = entry.for_request(part.request)
    env = {names.marker_variable(part): kind}
    for prepared in prepared_devices:
        env |= prepared.env
    wanted = [mount for prepared in prepared_devices for mount in prepared.mounts]
    if part.request in mounts:
        wanted.append(mounts[part.request])
    return cdi.ContainerEdits(
        env=tuple(f"{name}={value}" for name, value in sorted(env.items())),
        device_nodes=tuple(node for prepared in prepared_devices for node in _nodes(prepared)),
        mounts=tuple(
            cdi.CdiMount(host_path=m.host_path, container_path=m.container_path, options=m.options)
            for m in dict.fromkeys(wanted)
        ),
    )


def _nodes(prepared: PreparedDevice) -> Iterable[cdi.CdiDeviceNode]:
    for node in prepared.device_nodes:
        yield cdi.CdiDeviceNode(
            path=node.path, host_path=node.host_path, permissions=node.permissions
        )
