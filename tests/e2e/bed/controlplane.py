"""Control plane, running natively on this machine: etcd, kube-apiserver and their clients."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .certificates import Authority, KeyPair
from .egress import egress_configuration
from .gobuild import etcd_program, kubernetes_programs
from .kubeconfig import with_certificate
from .kubernetes import Api, ApiError
from .pins import REPOSITORY, Pins
from .processes import Child, Run, free_port
from .waiting import NotYetError, wait_for

# User-mode networking shows the host's loopback to guest N under 10.0.N.2 (emulator.Network).
NETWORK_NUMBERS = range(2, 10)
SERVICE_ADDRESS = "10.96.0.1"
# Audit of all requests of service accounts outside kube-system, which are those of the drivers.
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}
# The oracle's nodes are created manually, without a kubelet: no taints, no service accounts.
_ORACLE_ADMISSION = "--disable-admission-plugins=TaintNodesByCondition,ServiceAccount"


@dataclass(frozen=True, slots=True)
class Keys:
    """All key material of one control plane, as files in one directory."""

    directory: Path
    authority: Authority
    service_accounts: Path
    serving: KeyPair
    admin: KeyPair

    @classmethod
    def make(cls, directory: Path) -> Keys:
        """Create a certificate authority and the certificates that it signs."""
        authority = Authority(directory)
        guests = (f"10.0.{number}.2" for number in NETWORK_NUMBERS)
        addresses = ("127.0.0.1", SERVICE_ADDRESS, *guests)
        names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        return cls(
            directory=directory,
            authority=authority,
            service_accounts=authority.service_account_key(),
            serving=authority.server("kube-apiserver", addresses, names),
            admin=authority.client("drakit-admin", "system:masters"),
        )


@dataclass
class ControlPlane:
    """A running API server and its companions; ``api`` has administrator access."""

    run: Run
    pins: Pins
    keys: Keys
    port: int
    api: Api
    children: dict[str, Child] = field(default_factory=dict)

    @classmethod
    def start(cls, run: Run, pins: Pins) -> ControlPlane:
        """Start all four components and wait for the API server."""
        plane = cls._prepare(run, pins)
        plane._start_api_server(*plane._start_egress(), *plane._start_audit())
        # The controller manager exits if the API server is not healthy within ten seconds.
        plane.wait_until_ready()
        plane._start_controller_manager()
        plane._start_scheduler()
        return plane

    @classmethod
    def start_oracle(cls, run: Run, pins: Pins) -> ControlPlane:
        """Start only etcd, API server and scheduler, with admission suitable for manually created nodes.

        There is no controller manager: it would deallocate manually created claims.
        """
        plane = cls._prepare(run, pins)
        plane._start_api_server(_ORACLE_ADMISSION)
        plane._start_scheduler()
        plane.wait_until_ready()
        return plane

    @property
    def url(self) -> str:
        """The URL of the API server for programs on this machine."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def routes(self) -> Path:
        """The file with the proxy's routes from ports to nodes (see ``egress``)."""
        return self.run.directory / "routes.json"

    def admin_kubeconfig(self) -> Path:
        """A kubeconfig with all permissions, for users on this machine."""
        return self._kubeconfig("admin", self.keys.admin)

    def audit(self) -> list[dict[str, Any]]:
        """Every finished request of a service account (except kube-system), oldest first."""
        lines = (self.run.directory / "audit.log").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def check(self) -> None:
        """Raise ``ProcessDiedError`` if a component has exited."""
        for child in self.children.values():
            child.check()

    def restart(self, name: str) -> None:
        """Stop one component and start it again with the same arguments."""
        old = self.children[name]
        old.stop()
        argv = old.process.args
        assert isinstance(argv, list)
        self.run.children.remove(old)
        self.children[name] = self.run.start(name, argv)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until the API server is ready and the bootstrap policy exists."""

        def ready() -> bool:
            try:
                self.api.raw("GET", "/readyz")
            except (ApiError, OSError) as error:
                raise NotYetError(f"/readyz: {error}") from error
            return True

        wait_for("the API server to be ready", ready, limit=180, pause=0.2, alive=self.check)

    @classmethod
    def _prepare(cls, run: Run, pins: Pins) -> ControlPlane:
        keys = Keys.make(run.directory / "pki")
        port = free_port()
        api = Api("127.0.0.1", port, keys.authority.certificate, keys.admin)
        return cls(run, pins, keys, port, api)

    def _program(self, name: str) -> Path:
        return kubernetes_programs(self.pins)[name].path()

    def _spawn(self, name: str, program: Path, *flags: str) -> None:
        self.children[name] = self.run.start(name, [program, *flags])

    def _spawn_component(self, name: str, *flags: str) -> None:
        self._spawn(name, self._program(name), *flags, *self.pins.gate_flags)

    def _kubeconfig(self, user: str, pair: KeyPair) -> Path:
        path = self.keys.directory / f"{user}.kubeconfig"
        path.write_text(with_certificate(self.url, self.keys.authority.certificate, pair))
        return path

    def _start_egress(self) -> list[str]:
        directory, keys = self.run.directory, self.keys
        socket, config = directory / "egress.sock", keys.directory / "egress.json"
        config.write_text(egress_configuration(socket))
        self.routes.write_text("{}")
        module = ("-m", "tests.e2e.bed.egress", str(socket), str(self.routes))
        self.children["egress"] = self.run.start("egress", [sys.executable, *module], cwd=REPOSITORY)
        client = keys.authority.client("kube-apiserver-kubelet-client", "system:masters")
        return [
            f"--egress-selector-config-file={config}",
            f"--kubelet-certificate-authority={keys.authority.certificate}",
            f"--kubelet-client-certificate={client.certificate}",
            f"--kubelet-client-key={client.key}",
        ]

    def _start_audit(self) -> list[str]:
        policy = self.keys.directory / "audit.json"
        policy.write_text(json.dumps(_AUDIT_POLICY))
        log = self.run.directory / "audit.log"
        log.touch()
        return [f"--audit-policy-file={policy}", f"--audit-log-path={log}", "--audit-log-mode=blocking"]

    def _start_api_server(self, *extra: str) -> None:
        etcd, peer = free_port(), free_port()
        directory = self.run.directory
        self._spawn(
            "etcd",
            etcd_program(self.pins).path(),
            f"--data-dir={directory / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        keys = self.keys
        self._spawn_component(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--client-ca-file={keys.authority.certificate}",
            f"--tls-cert-file={keys.serving.certificate}",
            f"--tls-private-key-file={keys.serving.key}",
            f"--service-account-key-file={keys.service_accounts}",
            f"--service-account-signing-key-file={keys.service_accounts}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged",
            *extra,
        )

    def _start_controller_manager(self) -> None:
        pair = self.keys.authority.client("system:kube-controller-manager")
        self._spawn_component(
            "kube-controller-manager",
            f"--kubeconfig={self._kubeconfig('kube-controller-manager', pair)}",
            f"--root-ca-file={self.keys.authority.certificate}",
            f"--service-account-private-key-file={self.keys.service_accounts}",
            "--use-service-account-credentials",
            "--controllers=*,-node-ipam-controller",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            f"--cert-dir={self.run.directory / 'kube-controller-manager'}",
        )

    def _start_scheduler(self) -> None:
        pair = self.keys.authority.client("system:kube-scheduler")
        config = self.keys.directory / "scheduler.json"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "clientConnection": {
                        "kubeconfig": str(self._kubeconfig("kube-scheduler", pair)),
                        "qps": 500,
                        "burst": 500,
                    },
                    "leaderElection": {"leaderElect": False},
                }
            )
        )
        self._spawn_component(
            "kube-scheduler",
            f"--config={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            f"--cert-dir={self.run.directory / 'kube-scheduler'}",
        )
