"""Capabilities of this machine and the test tiers that they allow."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess

from .debian import IN_OWN_NAMESPACE, guest_system, qemu
from .pins import Pins, load_pins


@dataclasses.dataclass(frozen=True, slots=True)
class Ability:
    """The tiers that can run here; ``missing`` describes the others and the reasons."""

    vm: bool
    go: bool
    missing: tuple[str, ...]

    @property
    def cluster(self) -> bool:
        """Control plane and nodes: need Go to build and root to run."""
        return self.vm and self.go

    def pins(self, pins: Pins) -> Pins:
        """Without Go, only the containerd of the guest's distribution can be used."""
        return pins if self.go else dataclasses.replace(pins, containerd="debian")

    def why_not(self) -> str:
        """All missing requirements, in one line."""
        return "; ".join(self.missing) or "nothing is missing"


def what_can_run() -> Ability:
    """Inspect this machine: user, permissions, Go, Debian tools."""
    missing = []
    vm = os.geteuid() == 0
    if not vm:
        missing.append("not root: no VM can be built (debootstrap, chroot), so neither node nor cluster tier")
    elif shutil.which("apt-get") is None:
        vm = False
        missing.append("no apt-get: the guest and QEMU come from a Debian archive")
    elif rejection := _rejection_to_bootstrap():
        vm = False
        missing.append(f"root without its rights: no VM can be built: {rejection}")
    go = shutil.which("go") is not None
    if not go:
        missing.append("no Go: Kubernetes, etcd and containerd 2 cannot be built, so no cluster tier")
        if load_pins().is_crio:
            vm = False
            missing.append("no Go: CRI-O cannot be built, so neither node nor cluster tier")
    return Ability(vm, go, tuple(missing))


def _rejection_to_bootstrap() -> str:
    """Why the guest cannot be bootstrapped here, if it is not cached: for example in a sandbox."""
    pins = load_pins()
    if qemu(pins).is_built() and guest_system(pins).is_built():
        return ""
    tried = subprocess.run(
        [*IN_OWN_NAMESPACE, "chroot", "/", "true"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip()
