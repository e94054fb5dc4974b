"""The CDI specs of a driver's claims, derived from the checkpoint.

One file per claim, one device per base request. In addition to the edits of the driver, each device has a
marker variable (:mod:`drakit.kit.claims.cdi_names`): a device is never without edits, for which a runtime
would reject the whole file, and containers can be matched to claims if a runtime does not report CDI devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from drakit.kit.claims import cdi_names as names
from drakit.kit.driver import Mount, PreparedClaim, PreparedDevice
from drakit.wire.cdi import spec as cdi
from drakit.wire.cdi.directory import CdiDirectory


class ClaimSpecs:
    """The specs of one driver in one CDI directory; has no state in memory."""

    def __init__(self, directory: str, kind: str) -> None:
        self._directory = CdiDirectory(directory, kind)
        self._kind = kind

    def write(self, entry: PreparedClaim, mounts: Mapping[str, Mount]) -> dict[str, str]:
        """Write the claim's spec, with *mounts* by base request; returns the CDI device of each request."""
        parts = names.requests_of(entry)
        edits = {part.request: _edits(self._kind, entry, part, mounts) for part in parts}
        self._directory.write(entry.uid, cdi.claim_spec(self._kind, entry.uid, edits))
        return {part.request: names.qualified_name(self._kind, part) for part in parts}

    def remove(self, uid: str) -> None:
        """Remove the claim's spec, if it exists, durably. Raises ``OSError``."""
        self._directory.remove(uid)

    def claims(self) -> frozenset[str]:
        """UIDs of all claims with a spec, including those of the Go driver. Raises ``OSError``."""
        return frozenset(uid.removeprefix("claim-") for uid in self._directory.entries())

    def keep_only(self, uids: Iterable[str]) -> None:
        """Remove the specs of all claims except *uids*, and leftovers of crashes. Raises ``OSError``.

        Files of the Go driver (``claim-<uid>``) stay: their containers may still restart.
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
        yield cdi.CdiDeviceNode(path=node.path, host_path=node.host_path, permissions=node.permissions)
