"""CDI specifications: types, validation, version and encoding.

Runtimes reject a file with an unknown version or field, or with a version too low for its features.
The version is therefore the lowest that covers the features used (containerd 1.7.0 knows none above
0.5.0).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

KNOWN_VERSIONS: Final = (
    "0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0",
)  # fmt: skip
LOWEST_EMITTED: Final = "0.3.0"
"""Known to all runtimes with CDI."""


class CdiError(ValueError):
    """An invalid specification; the text names the part and the reason."""


class _Part(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"
):
    """Base of all parts: defaults are omitted, unknown fields are rejected, as by runtimes."""


class CdiDeviceNode(_Part, frozen=True):
    """A device node to create in the container."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class CdiMount(_Part, frozen=True):
    """A mount from the host."""

    host_path: str
    container_path: str
    type: str = ""
    options: tuple[str, ...] = ()


class Hook(_Part, frozen=True):
    """A lifecycle hook of the container."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class IntelRdt(_Part, frozen=True):
    """Intel Resource Director Technology settings."""

    clos_id: str = msgspec.field(name="closID", default="")
    l3_cache_schema: str = msgspec.field(name="l3CacheSchema", default="")
    mem_bw_schema: str = msgspec.field(name="memBwSchema", default="")
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False


class NetDevice(_Part, frozen=True):
    """A network interface to move into the container."""

    host_interface_name: str
    name: str


class ContainerEdits(_Part, frozen=True):
    """Changes of a container. CDI cannot set CPUs or memory; NRI does."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[CdiDeviceNode, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()


NO_EDITS: Final = ContainerEdits()


class CdiDevice(_Part, frozen=True):
    """A device and its container edits."""

    name: str
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    container_edits: ContainerEdits = NO_EDITS


class Spec(_Part, frozen=True):
    """A specification file: devices of one kind (``vendor/class``)."""

    cdi_version: str
    kind: str
    devices: tuple[CdiDevice, ...]
    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    container_edits: ContainerEdits = NO_EDITS

    def qualified_names(self) -> tuple[str, ...]:
        """``vendor/class=device`` of every device, as the kubelet passes them to the runtime."""
        return tuple(f"{self.kind}={device.name}" for device in self.devices)


_VENDOR: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)
_DEVICE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.ASCII)
_LONGEST_CLASS: Final = 63


def check_kind(kind: str) -> None:
    """Raise :class:`CdiError` unless *kind* is a valid ``vendor/class``."""
    vendor, slash, class_ = kind.partition("/")
    if not slash or not _VENDOR.fullmatch(vendor):
        raise CdiError(
            f"CDI kind {kind!r}: the vendor must start with a letter, end with a letter or digit "
            "and contain only letters, digits, '_', '-' and '.'; '/' and the class follow"
        )
    if not _VENDOR.fullmatch(class_) or len(class_) > _LONGEST_CLASS:
        raise CdiError(
            f"CDI kind {kind!r}: the class must start with a letter, end with a letter or digit, "
            f"contain only letters, digits, '_', '-' and '.', and have at most {_LONGEST_CLASS} characters"
        )


def check_device_name(name: str) -> None:
    """Raise :class:`CdiError` unless *name* is a valid device name."""
    if not _DEVICE.fullmatch(name):
        raise CdiError(
            f"CDI device name {name!r} must start and end with a letter or digit and contain only "
            "letters, digits, '_', '-', '.' and ':'"
        )


def claim_device_name(claim_uid: str, request: str) -> str:
    """The device name for *request* of a claim: ``claim-<uid>_<request>``.

    It starts with a letter, since a digit requires version 0.5.0. UIDs and request names contain only
    letters, digits and ``-``, so ``_`` is an unambiguous separator; other characters raise
    :class:`CdiError`.
    """
    for part in (claim_uid, request):
        if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?", part, re.ASCII):
            raise CdiError(f"{part!r} is not a valid claim UID or base request name")
    return f"claim-{claim_uid}_{request}"


def parse_claim_device_name(name: str) -> tuple[str, str] | None:
    """(claim UID, request) of a name from :func:`claim_device_name`; ``None`` for others."""
    uid, separator, request = name.removeprefix("claim-").partition("_")
    if not name.startswith("claim-") or not separator:
        return None
    try:
        return (uid, request) if claim_device_name(uid, request) == name else None
    except CdiError:
        return None


def make_spec(
    kind: str,
    devices: Iterable[CdiDevice],
    *,
    annotations: Mapping[str, str] | None = None,
    container_edits: ContainerEdits = NO_EDITS,
) -> Spec:
    """A validated specification with the lowest possible version.

    Raises :class:`CdiError` if a runtime would reject it, for example because it has no device.
    """
    spec = Spec(
        cdi_version=LOWEST_EMITTED,
        kind=kind,
        devices=tuple(devices),
        annotations=annotations or {},
        container_edits=container_edits,
    )
    spec = msgspec.structs.replace(spec, cdi_version=minimum_version(spec))
    check_spec(spec)
    return spec


def claim_spec(kind: str, claim_uid: str, requests: Mapping[str, ContainerEdits]) -> Spec:
    """The specification of a claim: one device per base request, ordered by name."""
    devices = (
        CdiDevice(name=claim_device_name(claim_uid, request), container_edits=edits)
        for request, edits in sorted(requests.items())
    )
    return make_spec(kind, devices)


def minimum_version(spec: Spec) -> str:
    """The lowest version that supports everything in *spec*."""
    needed = LOWEST_EMITTED
    if spec.annotations or "." in spec.kind.partition("/")[2]:
        needed = "0.6.0"
    for device in spec.devices:
        if device.annotations:
            needed = _higher(needed, "0.6.0")
        if device.name[:1].isdigit():
            needed = _higher(needed, "0.5.0")
        needed = _higher(needed, _edits_version(device.container_edits))
    return _higher(needed, _edits_version(spec.container_edits))


def _edits_version(edits: ContainerEdits) -> str:
    rdt = edits.intel_rdt
    if edits.net_devices or (rdt is not None and (rdt.schemata or rdt.enable_monitoring)):
        return "1.1.0"
    if rdt is not None or edits.additional_gids:
        return "0.7.0"
    if any(node.host_path for node in edits.device_nodes):
        return "0.5.0"
    if any(mount.type for mount in edits.mounts):
        return "0.4.0"
    return LOWEST_EMITTED


def _higher(one: str, other: str) -> str:
    return max(one, other, key=KNOWN_VERSIONS.index)


_HOOKS: Final = frozenset(
    {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}
)
_NODE_TYPES: Final = frozenset({"", "b", "c", "u", "p"})
_SETTING: Final = re.compile(r"[^=]+=.*", re.DOTALL)


def check_spec(spec: Spec) -> None:
    """Raise :class:`CdiError` unless runtimes that know the version accept *spec*."""
    version = spec.cdi_version.removeprefix("v")
    if version not in KNOWN_VERSIONS:
        raise CdiError(f"CDI version {spec.cdi_version!r} is unknown")
    check_kind(spec.kind)
    if not spec.devices:
        raise CdiError(f"CDI specification of {spec.kind} has no device")
    seen: set[str] = set()
    for device in spec.devices:
        check_device_name(device.name)
        if device.name in seen:
            raise CdiError(f"CDI device {spec.kind}={device.name} is defined twice")
        seen.add(device.name)
        if device.container_edits == NO_EDITS:
            raise CdiError(f"CDI device {spec.kind}={device.name} has no container edits")
        _check_edits(device.container_edits, f"CDI device {spec.kind}={device.name}")
    _check_edits(spec.container_edits, f"CDI specification of {spec.kind}")
    needed = minimum_version(spec)
    if KNOWN_VERSIONS.index(version) < KNOWN_VERSIONS.index(needed):
        raise CdiError(f"CDI version {version} is too low; the features used require {needed}")


def _check_edits(edits: ContainerEdits, where: str) -> None:
    _check_settings(edits.env, where)
    for node in edits.device_nodes:
        if not node.path or node.type not in _NODE_TYPES:
            raise CdiError(f"{where}: device node {node.path!r} needs a path and type b, c, u or p")
        if node.permissions != "none" and not set(node.permissions) <= set("rwm"):
            raise CdiError(f"{where}: permissions {node.permissions!r} of {node.path} are not rwm")
    for mount in edits.mounts:
        if not mount.host_path or not mount.container_path:
            raise CdiError(f"{where}: a mount needs a path on the host and in the container")
    for hook in edits.hooks:
        if hook.hook_name not in _HOOKS or not hook.path:
            raise CdiError(
                f"{where}: hook {hook.hook_name!r} is unknown or has no path; "
                f"known hooks: {', '.join(sorted(_HOOKS))}"
            )
        _check_settings(hook.env, where)
    for device in edits.net_devices:
        if not device.host_interface_name or not device.name:
            raise CdiError(f"{where}: a network device needs its names on the host and in the container")


def _check_settings(settings: Iterable[str], where: str) -> None:
    for setting in settings:
        if not _SETTING.fullmatch(setting) or "\0" in setting:
            raise CdiError(f"{where}: environment entry {setting!r} is not NAME=value")


def encode_spec(spec: Spec) -> bytes:
    """Deterministic JSON."""
    check_spec(spec)
    return msgspec.json.format(msgspec.json.encode(spec, order="sorted"), indent=2) + b"\n"


def decode_spec(data: bytes) -> Spec:
    """Decode and validate JSON. Raises :class:`CdiError`."""
    return _checked(lambda: msgspec.json.decode(data, type=Spec))


def spec_from_builtins(document: object) -> Spec:
    """Validate a parsed document (YAML). Raises :class:`CdiError`."""
    return _checked(lambda: msgspec.convert(document, type=Spec))


def _checked(decode: Callable[[], Spec]) -> Spec:
    try:
        spec = decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CdiError(f"not a CDI specification: {error}") from error
    check_spec(spec)
    return spec
