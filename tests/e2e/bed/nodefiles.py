"""The files that make a guest this node and no other, written to a small disk of its own."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from .controlplane import ControlPlane
from .debian import make_image
from .emulator import Network
from .kubeconfig import with_certificate
from .pins import HERE, Pins

_CONTAINERD_SERVICE = """
mkdir -p /etc/cni/net.d /etc/cdi /var/run/cdi
cp /bed-node/cni.conflist /etc/cni/net.d/10-bed.conflist
# The image is there before the first pod can ask for it.
(until ctr -n k8s.io version > /dev/null 2>&1; do sleep 0.5; done
 [ -e /var/lib/bed-image ] || { ctr -n k8s.io images import /bed/image.tar && touch /var/lib/bed-image; }
) &
exec containerd --config /bed-node/containerd.toml
"""
_KUBELET_SERVICE = """
until [ -e /var/lib/bed-image ]; do sleep 0.5; done
exec kubelet --config=/bed-node/kubelet.json --kubeconfig=/bed-node/kubelet.kubeconfig \\
    --hostname-override="$(hostname)" --node-ip="$1" --v=2
"""


@dataclass(frozen=True)
class NodeFiles:
    """Writes the node disk; ``plane`` is ``None`` in the node tier (containerd only)."""

    name: str
    pins: Pins
    network: Network
    token: str
    plane: ControlPlane | None

    def write(self, image: Path, log: Path) -> None:
        """Write all files of the node into an ext4 ``image``."""
        tree = image.with_suffix(".tree")
        (tree / "services").mkdir(parents=True)
        (tree / "token").write_text(self.token)
        (tree / "environment").write_text(self._environment())
        containerd = "containerd-2.toml" if self.pins.containerd_is_debians else "containerd-3.toml"
        shutil.copy(HERE / "guest" / containerd, tree / "containerd.toml")
        (tree / "cni.conflist").write_text(self._cni())
        (tree / "services" / "containerd").write_text(_CONTAINERD_SERVICE)
        if self.plane is not None:
            self._write_kubelet(tree, self.plane)
        make_image(image, tree, "16M", log)
        shutil.rmtree(tree)

    def _environment(self) -> str:
        values = {
            "BED_NODE": self.name,
            "BED_ADDRESS": self.network.guest,
            "BED_HOST": self.network.host,
            "BED_API_PORT": "" if self.plane is None else str(self.plane.port),
            "BED_SERVICES": "containerd" if self.plane is None else "containerd kubelet",
        }
        return "".join(f"{key}='{value}'\n" for key, value in values.items())

    def _cni(self) -> str:
        subnet = f"10.244.{self.network.number}.0/24"
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            # The address translation is one rule of the guest's init, not ten iptables per pod.
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
        (tree / "services" / "kubelet").write_text(service)

    def _kubelet(self) -> dict[str, object]:
        gates = dict.fromkeys(self.pins.gates, True)
        return _kubelet_configuration() | ({"featureGates": gates} if gates else {})


def _kubelet_configuration() -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "failSwapOn": False,
        "resolvConf": "",
        # Nobody answers there; without it every pod gets a warning event.
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
