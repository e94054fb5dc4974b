"""Settings that every driver has: node name, host paths, logging.

Every host path derives from these, so tests, ``drakit demo`` and dumps of other machines need no
privileges. A driver's configuration type inherits from :class:`HostOptions`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Annotated, Literal

from drakit.core.log import LogFormat, LogLevel
from drakit.core.objects import Struct
from drakit.kit.config.settings import ConfigurationError, setting

NriMode = Literal["required", "optional", "off"]


class HostOptions(Struct, frozen=True):
    """Paths of the node, and behavior of the driver process."""

    hostname_override: Annotated[str, setting("node name, if $NODE_NAME (downward API) is not set")] = ""
    kubeconfig: Annotated[str, setting("kubeconfig to use instead of the pod's service account")] = ""
    kubelet_root_dir: Annotated[str, setting("the kubelet's --root-dir")] = "/var/lib/kubelet"
    kubelet_config_dir: Annotated[
        str,
        setting(
            "the kubelet's --config-dir, whose drop-ins are read with its configuration file; "
            "empty: it runs without the flag"
        ),
    ] = ""
    nri_socket: Annotated[str, setting("NRI socket of the container runtime")] = "/var/run/nri/nri.sock"
    nri: Annotated[
        NriMode,
        setting(
            "required: serve claims only while the runtime is synchronized; optional: also serve them "
            "without enforcement where NRI is disabled; off: never connect"
        ),
    ] = "required"
    nri_index: Annotated[str, setting("NRI plugin index (two digits)")] = "00"
    cdi_dir: Annotated[str, setting("directory of dynamic CDI specs")] = "/var/run/cdi"
    state_dir: Annotated[
        str, setting("directory of the checkpoint; empty: below the kubelet's plugin directory")
    ] = ""
    sysfs_root: Annotated[str, setting("directory that contains sys/ and proc/", env=["HOST_ROOT"])] = "/"
    cgroup_root: Annotated[str, setting("cgroup mount point, to detect drift; empty: no drift detection")] = (
        "/sys/fs/cgroup"
    )
    bind_address: Annotated[str, setting("address of /metrics, /livez and /readyz; empty: not served")] = (
        ":8080"
    )
    log_format: Annotated[LogFormat, setting("log format")] = "text"
    log_level: Annotated[LogLevel, setting("lowest level to log")] = "info"
    pod_uid: Annotated[
        str, setting("UID of the driver's pod, required for rolling updates", env=["POD_UID"])
    ] = ""
    rediscover_seconds: Annotated[float, setting("interval of hardware discovery (hotplug); 0: never")] = 30.0
    verify_seconds: Annotated[float, setting("interval of drift detection; 0: never")] = 30.0

    def __post_init__(self) -> None:
        paths = {
            "kubeletRootDir": self.kubelet_root_dir,
            "cdiDir": self.cdi_dir,
            "sysfsRoot": self.sysfs_root,
        }
        for key, path in paths.items():
            if not os.path.isabs(path):
                raise ValueError(f"{key} must be an absolute path, not {path!r}")
        if len(self.nri_index) != 2 or not (self.nri_index.isascii() and self.nri_index.isdigit()):
            raise ValueError(f"nriIndex must be two digits, not {self.nri_index!r}")
        intervals = {"rediscoverSeconds": self.rediscover_seconds, "verifySeconds": self.verify_seconds}
        for key, seconds in intervals.items():
            if not 0 <= seconds < 1e6:
                raise ValueError(f"{key} must be between 0 and 1000000 seconds")

    def plugin_dir(self, driver: str) -> str:
        """The kubelet's data directory for this plugin."""
        return os.path.join(os.path.normpath(self.kubelet_root_dir), "plugins", driver)

    @property
    def kubelet_config(self) -> str:
        """The kubelet's configuration file, at the path that kubeadm and kind use."""
        return os.path.join(os.path.normpath(self.kubelet_root_dir), "config.yaml")

    def checkpoint_dir(self, driver: str) -> str:
        """Directory of the checkpoint."""
        return self.state_dir or os.path.join(self.plugin_dir(driver), "claims")


def node_name(options: HostOptions, environ: Mapping[str, str]) -> str:
    """The node's name from the downward API, the flag or the host name, in this order.

    Raises :class:`ConfigurationError` for a name that the API server would not accept.
    """
    name = (
        environ.get("NODE_NAME", "").strip()
        or options.hostname_override.strip().lower()
        or socket.gethostname().strip().lower()
    )
    allowed = set("abcdefghijklmnopqrstuvwxyz0123456789.-")
    if not name or len(name) > 253 or not set(name) <= allowed or name[0] in ".-":
        raise ConfigurationError(
            f"{name!r} is not a valid node name; set NODE_NAME from the downward API (spec.nodeName) "
            f"or --hostname-override"
        )
    return name


def listen_address(bind_address: str) -> tuple[str | None, int]:
    """Split ``host:port``, ``:port`` or ``[v6]:port``; raises :class:`ConfigurationError`."""
    host, colon, port = bind_address.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ConfigurationError(f"bindAddress {bind_address!r} is not HOST:PORT or :PORT")
    return host.strip("[]") or None, int(port)
