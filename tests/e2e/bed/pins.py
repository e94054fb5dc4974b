"""Versions of the test cluster: ``versions.toml``, with choices from the environment."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
REPOSITORY = HERE.parent.parent


@dataclass(frozen=True, slots=True)
class Pins:
    """One selected set of versions; everything built or started derives from it."""

    kubernetes: str
    kubernetes_module: str
    kubernetes_programs: tuple[str, ...]
    gates: tuple[str, ...]
    etcd: str
    etcd_module: str
    containerd: str
    containerd_module: str
    containerd_programs: tuple[str, ...]
    runtime: str
    crio: str
    crio_module: str
    crio_tags: tuple[str, ...]
    guest: str
    helm: str
    helm_module: str
    debian_release: str
    guest_packages: tuple[str, ...]
    qemu_packages: tuple[str, ...]
    host_tools: Mapping[str, str]

    @property
    def gate_flags(self) -> list[str]:
        """The feature gates on the command line of a component of the control plane."""
        return [f"--feature-gates={gate}=true" for gate in self.gates]

    @property
    def containerd_is_debians(self) -> bool:
        """True when the guest uses the containerd of its own distribution."""
        return self.containerd == "debian"

    @property
    def is_crio(self) -> bool:
        """True when the nodes' container runtime is CRI-O, not containerd."""
        return self.runtime == "crio"

    @property
    def old_nri(self) -> bool:
        """True if the runtime neither accepts pushed updates nor reports CDI device names."""
        return self.is_crio or self.containerd_is_debians


def load_pins(environ: Mapping[str, str] = os.environ) -> Pins:
    """Read the pins; the choices of ``DRAKIT_E2E_KUBERNETES``, ``…_CONTAINERD``, ``…_RUNTIME``, ``…_GUEST``.

    Raises ``ValueError`` naming the choices when a variable selects something not pinned.
    """
    data = tomllib.loads((HERE / "versions.toml").read_text())

    def chosen(what: str, variable: str) -> str:
        version = environ.get(variable) or data[what]["default"]
        if version not in data[what]["choices"]:
            known = ", ".join(data[what]["choices"])
            raise ValueError(f"{variable}={version}: versions.toml pins {what} {known}")
        return str(version)

    kubernetes = chosen("kubernetes", "DRAKIT_E2E_KUBERNETES")
    runtime = chosen("runtime", "DRAKIT_E2E_RUNTIME")
    crio = data["crio"] if runtime == "crio" else {"guest_packages": [], "host_tools": {}}
    return Pins(
        kubernetes=kubernetes,
        kubernetes_module=data["kubernetes"]["module"],
        kubernetes_programs=tuple(data["kubernetes"]["programs"]),
        gates=tuple(data["kubernetes"]["gates"].get(kubernetes, ())),
        etcd=chosen("etcd", "DRAKIT_E2E_ETCD"),
        etcd_module=data["etcd"]["module"],
        containerd=chosen("containerd", "DRAKIT_E2E_CONTAINERD"),
        containerd_module=data["containerd"]["module"],
        containerd_programs=tuple(data["containerd"]["programs"]),
        runtime=runtime,
        crio=chosen("crio", "DRAKIT_E2E_CRIO"),
        crio_module=data["crio"]["module"],
        crio_tags=tuple(data["crio"]["tags"]),
        guest=chosen("guest", "DRAKIT_E2E_GUEST"),
        helm=chosen("helm", "DRAKIT_E2E_HELM"),
        helm_module=data["helm"]["module"],
        debian_release=data["debian"]["release"],
        guest_packages=(*data["debian"]["guest_packages"], *crio["guest_packages"]),
        qemu_packages=tuple(data["debian"]["qemu_packages"]),
        host_tools={**data["debian"]["host_tools"], **crio["host_tools"]},
    )
