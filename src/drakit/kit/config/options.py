"""Settings every driver has, whatever it hands out: who the node is, and where things are.

Every host path derives from these, so that tests, ``drakit demo`` and dumps of other machines need no
privileges. A driver's configuration type inherits from :class:`HostOptions` and adds its own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Annotated, Literal

from drakit.core.objects import Struct
from drakit.kit.config.settings import ConfigurationError, setting
from drakit.kit.telemetry.logs import LogFormat, LogLevel

NriMode = Literal["required", "optional", "off"]


class HostOptions(Struct, frozen=True):
    """Where the node's parts are, and how the daemon behaves."""

    hostname_override: Annotated[
        str, setting("the node's name, where $NODE_NAME (downward API) is not set")
    ] = ""
    kubeconfig: Annotated[
        str, setting("kubeconfig to use instead of the pod's service account")
    ] = ""
    kubelet_root_dir: Annotated[str, setting("the kubelet's --root-dir")] = "/var/lib/kubelet"
    kubelet_config_dir: Annotated[
        str,
        setting(
            "the kubelet's --config-dir, whose drop-ins are read with its configuration file; "
            "empty: it runs without the flag"
        ),
    ] = ""
    nri_socket: Annotated[str, setting("socket of the container runtime's NRI")] = (
        "/var/run/nri/nri.sock"
    )
    nri: Annotated[
        NriMode,
        setting(
            "required: serve claims only while the runtime is synchronized; optional: also where NRI "
            "is off, without enforcing; off: never connect"
        ),
    ] = "required"
    nri_index: Annotated[str, setting("two digits: place among the runtime's NRI plugins")] = "00"
    cdi_dir: Annotated[str, setting("directory of dynamic CDI specs")] = "/var/run/cdi"
    state_dir: Annotated[
        str, setting("directory of the checkpoint; empty: below the kubelet's plugin directory")
    ] = ""
    sysfs_root: Annotated[
        str, setting("directory that holds the machine's sys/ and proc/", env=["HOST_ROOT"])
    ] = "/"
    cgroup_root: Annotated[
        str, setting("where cgroups are mounted, to compare them with intent; empty: never look")
    ] = "/sys/fs/cgroup"
    bind_address: Annotated[
        str, setting("address of /metrics, /livez and /readyz; empty: do not serve them")
    ] = ":8080"
    log_format: Annotated[LogFormat, setting("text for people, json for machines")] = "text"
    log_level: Annotated[LogLevel, setting("what to log: this and above")] = "info"
    pod_uid: Annotated[
        str, setting("the driver pod's UID: rolling updates need it", env=["POD_UID"])
    ] = ""
    rediscover_seconds: Annotated[
        float, setting("how often to look for hotplugged or offlined hardware; 0: never")
    ] = 30.0
    verify_seconds: Annotated[
        float, setting("how often to compare cgroups with intent; 0: never")
    ] = 30.0

    def __post_init__(self) -> None:
        for key in ("kubelet_root_dir", "cdi_dir", "sysfs_root"):
            value = getattr(self, key)
            if not os.path.isabs(value):
                raise ValueError(f"{key} must be an absolute path, not {value!r}")
        if len(self.nri_index) != 2 or not (self.nri_index.isascii() and self.nri_index.isdigit()):
            raise ValueError(f"nri_index must be two digits, not {self.nri_index!r}")
        for key in ("rediscover_seconds", "verify_seconds"):
            if not 0 <= getattr(self, key) < 1e6:
                raise ValueError(f"{key} must be between 0 and 1000000 seconds")

    def plugin_dir(self, driver: str) -> str:
        """The kubelet's data directory for this plugin."""
        return os.path.join(os.path.normpath(self.kubelet_root_dir), "plugins", driver)

    @property
    def kubelet_config(self) -> str:
        """The kubelet's configuration file, where kubeadm, kind and others put it."""
        return os.path.join(os.path.normpath(self.kubelet_root_dir), "config.yaml")

    def checkpoint_dir(self, driver: str) -> str:
        """Where the checkpoint is."""
        return self.state_dir or os.path.join(self.plugin_dir(driver), "claims")


def node_name(options: HostOptions, environ: Mapping[str, str]) -> str:
    """The node's name: from the downward API, else the flag, else the host name.

    Raises :class:`ConfigurationError` when none of them gives a name the API server would accept.
    """
    name = (
        environ.get("NODE_NAME", "").strip()
        or options.hostname_override.strip().lower()
        or socket.gethostname().strip().lower()
    )
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789.-")
    if not name or len(name) > 253 or not set(name) <= allowed or name[0] in ".-":
        raise ConfigurationError(
            f"{name!r} is no node name; set NODE_NAME from the downward API (spec.nodeName) "
            f"or --hostname-override"
        )
    return name


def listen_address(bind_address: str) -> tuple[str | None, int]:
    """Split ``host:port``, ``:port`` or ``[v6]:port``; raises :class:`ConfigurationError`."""
    host, colon, port = bind_address.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ConfigurationError(f"bindAddress {bind_address!r} is not HOST:PORT or :PORT")
    return host.strip("[]") or None, int(port)
