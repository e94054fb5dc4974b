"""Node-specific files of a guest, written to a small separate disk."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from .controlplane import ControlPlane
from .debian import make_image
from .emulator import Network
from .guest import guest_of
from .kubeconfig import with_certificate
from .pins import Pins
from .runtimes import runtime_of

# Common to both: restart after every crash, without a limit; logs in the same place as without systemd.
# The daemons run on the first core: on all CPUs their threads would interrupt each other, and under the
# emulator every interrupt of another CPU waits for a core of the host.
_UNIT = """
[Unit]
Description={name} of the test cluster
After={after}
StartLimitIntervalSec=0

[Service]
ExecStart=/bin/sh /bed-node/services/{name}
Restart=always
StandardOutput=append:/var/log/{name}.log
StandardError=append:/var/log/{name}.log
AllowedCPUs=0-1
"""
# As in the runtime's upstream unit: it manages its own cgroups, and the shims of containers survive it.
_RUNTIME_UNIT = """
Type=notify
Delegate=yes
KillMode=process
RestartSec=5
TasksMax=infinity
OOMScoreAdjust=-999
"""
# As kubeadm's.
_KUBELET_UNIT = """
RestartSec=10
"""
_KUBELET_SERVICE = """
until [ -e /var/lib/bed-image ]; do sleep 0.5; done
exec kubelet --config=/bed-node/kubelet.json --kubeconfig=/bed-node/kubelet.kubeconfig \\
    --hostname-override="$(hostname)" --node-ip="$1" --v=2
"""


@dataclass(frozen=True)
class NodeFiles:
    """Writes the node disk; ``plane`` is ``None`` in the node tier (the container runtime only)."""

    name: str
    pins: Pins
    network: Network
    token: str
    plane: ControlPlane | None

    def write(self, image: Path, log: Path) -> None:
        """Write all files of the node into an ext4 ``image``."""
        tree = image.with_suffix(".tree")
        for folder in ("services", "units"):
            (tree / folder).mkdir(parents=True)
        (tree / "token").write_text(self.token)
        (tree / "environment").write_text(self._environment())
        runtime = runtime_of(self.pins)
        runtime.write_configuration(tree)
        (tree / "cni.conflist").write_text(self._cni())
        after = "bed-network.service dbus.socket"
        _write_service(tree, runtime.service, runtime.script(), _RUNTIME_UNIT, after)
        if self.plane is not None:
            self._write_kubelet(tree, self.plane)
        make_image(image, tree, "16M", log)
        shutil.rmtree(tree)

    def _environment(self) -> str:
        runtime = runtime_of(self.pins).service
        values = {
            "BED_NODE": self.name,
            "BED_GUEST": self.pins.guest,
            "BED_ADDRESS": self.network.guest,
            "BED_HOST": self.network.host,
            "BED_API_PORT": "" if self.plane is None else str(self.plane.port),
            "BED_SERVICES": runtime if self.plane is None else f"{runtime} kubelet",
        }
        return "".join(f"{key}='{value}'\n" for key, value in values.items())

    def _cni(self) -> str:
        subnet = f"10.244.{self.network.number}.0/24"
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            # Address translation is one rule of the guest's init instead of ten iptables rules per pod.
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": subnet}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        return json.dumps({"cniVersion": "1.0.0", "name": "bed", "plugins": [bridge]})

    def _write_kubelet(self, tree: Path, plane: ControlPlane) -> None:
        authority = plane.keys.authority
        client = authority.client(f"system:node:{self.name}", "system:nodes")
        serving = authority.server(f"kubelet-{self.name}", [self.network.guest], [self.name])
        shutil.copy(authority.certificate, tree / "ca.crt")
        shutil.copy(serving.certificate, tree / "kubelet.crt")
        shutil.copy(serving.key, tree / "kubelet.key")
        url = f"https://{self.network.host}:{plane.port}"
        config = with_certificate(url, authority.certificate, client)
        (tree / "kubelet.kubeconfig").write_text(config)
        (tree / "kubelet.json").write_text(json.dumps(self._kubelet(), indent=1))
        service = _KUBELET_SERVICE.replace('"$1"', self.network.guest)
        after = f"{runtime_of(self.pins).service}.service"
        _write_service(tree, "kubelet", service, _KUBELET_UNIT, after)

    def _kubelet(self) -> dict[str, object]:
        gates = dict.fromkeys(self.pins.gates, True)
        endpoint = {"containerRuntimeEndpoint": f"unix://{runtime_of(self.pins).socket}"}
        configuration = _kubelet_configuration(guest_of(self.pins).cgroup_driver) | endpoint
        return configuration | ({"featureGates": gates} if gates else {})


def _write_service(tree: Path, name: str, script: str, unit: str, after: str) -> None:
    """A program of the node: the script that starts it, and the unit for systemd to run that script."""
    (tree / "services" / name).write_text(script)
    text = _UNIT.format(name=name, after=after) + unit
    (tree / "units" / f"{name}.service").write_text(text)


def _kubelet_configuration(cgroup_driver: str) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": cgroup_driver,
        "failSwapOn": False,
        "resolvConf": "",
        # There is no server; without the address every pod gets a warning event.
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "cpuManagerPolicy": "none",
        "memoryManagerPolicy": "None",
        "tlsCertFile": "/bed-node/kubelet.crt",
        "tlsPrivateKeyFile": "/bed-node/kubelet.key",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": "/bed-node/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        # A failed prepare is retried at the next resync: 60-90 s by default, too long to wait.
        "syncFrequency": "10s",
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
        "runtimeRequestTimeout": "4m",
        "nodeStatusUpdateFrequency": "5s",
    }
