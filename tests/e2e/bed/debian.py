"""Debian parts of the test cluster: root file system and kernel of the guest, and a recent QEMU.

The archive is the mirror that apt uses on this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cache import Artifact, cache_root
from .pins import Pins
from .progress import run_step, say

# Mounts that debootstrap makes in the new root disappear with this namespace.
IN_OWN_NAMESPACE = ("unshare", "--mount", "--propagation", "private", "--")
# Process 1 of the guest: everything that changes often is on the payload disk.
_FIRST_PROGRAM = """#!/bin/sh
mkdir -p /bed /bed-node
mount -o ro /dev/vdb /bed
mount -o ro /dev/vdc /bed-node
exec /bed/init
"""

# Every node gets its own identity at its first boot, and mounts the disks named by its init.
_EMPTIED = ("etc/machine-id", "etc/fstab")


def ensure_host_tools(pins: Pins) -> None:
    """Install the Debian packages of missing commands; needs root and reports what it installs."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [pkg for cmd, pkg in pins.host_tools.items() if not shutil.which(cmd, path=path)]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise RuntimeError(f"missing Debian packages (need root to install): {' '.join(missing)}")
    log = cache_root() / "apt.log"
    noninteractive = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run_step("apt-get update", ["apt-get", "update"], log=log, env=noninteractive)
    install = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    run_step(" ".join(install), install, log=log, env=noninteractive)


def _mirror() -> str:
    """The Debian archive of the apt sources of this machine."""
    form = "$(SITE)|$(ORIGIN)|$(LABEL)"
    listing = subprocess.run(
        ["apt-get", "indextargets", "--format", form], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    sites = [line.split("|") for line in listing.splitlines()]
    for site, origin, label in sites:
        if (origin, label) == ("Debian", "Debian"):
            return site
    # Before the first `apt-get update` apt knows no origins: take the conventional path.
    for site, _, _ in sites:
        if site.rstrip("/").endswith("/debian"):
            return site
    raise RuntimeError("apt on this machine has no Debian archive among its sources")


def _debootstrap(title: str, release: str, packages: Sequence[str], root: Path, log: Path) -> None:
    downloads = cache_root() / "debs"
    downloads.mkdir(exist_ok=True)
    command = ["debootstrap", "--variant=minbase", f"--cache-dir={downloads}"]
    what = [f"--include={','.join(packages)}", release, str(root), _mirror()]
    run_step(
        title,
        [*IN_OWN_NAMESPACE, *command, *what],
        log=log,
        env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
    )
    versions = ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "--show"]
    shown = subprocess.run(versions, stdout=subprocess.PIPE, check=True, text=True).stdout
    (root.parent / "packages.txt").write_text(shown)


@dataclass(frozen=True)
class Qemu(Artifact):
    """A root file system with QEMU in it: ``root/``, ``packages.txt``."""

    release: str
    packages: tuple[str, ...]
    name: str = "qemu"

    @property
    def version(self) -> str:  # type: ignore[override]
        """The Debian release it is taken from."""
        return self.release

    def recipe(self) -> dict[str, Any]:
        """Release and packages."""
        return {"release": self.release, "packages": self.packages, "revision": 1}

    def build(self, directory: Path, log: Path) -> None:
        """Bootstrap the file system."""
        _debootstrap(f"QEMU of {self.release}", self.release, self.packages, directory / "root", log)

    def program(self, name: str) -> list[str]:
        """The command that runs a program of this file system outside of it, with its own loader."""
        system = self.get() / "root"
        libraries = system / "usr/lib/x86_64-linux-gnu"
        loader = [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries)]
        return [*loader, str(system / "usr/bin" / name)]

    def firmware(self) -> list[str]:
        """The directory of the emulator's BIOS, which it would search next to its loader."""
        share = self.get() / "root/usr/share"
        return ["-L", str(share / "qemu"), "-L", str(share / "seabios")]


@dataclass(frozen=True)
class GuestSystem(Artifact):
    """The guest's disk: ``disk.img`` (ext4), ``vmlinuz``, ``initrd.img``, ``packages.txt``."""

    release: str
    packages: tuple[str, ...]
    name: str = "guest"

    @property
    def version(self) -> str:  # type: ignore[override]
        """The Debian release."""
        return self.release

    def recipe(self) -> dict[str, Any]:
        """Release, packages and the format of the disk."""
        return {
            "release": self.release,
            "packages": self.packages,
            "disk": "ext4 8G",
            "init": _FIRST_PROGRAM,
            "emptied": _EMPTIED,
        }

    def build(self, directory: Path, log: Path) -> None:
        """Bootstrap, extract kernel and initrd, and create the disk image."""
        root = directory / "root"
        _debootstrap(f"guest system {self.release}", self.release, self.packages, root, log)
        for name in ("vmlinuz", "initrd.img"):
            found = max((root / "boot").glob(f"{name}-*"))
            shutil.copy(found, directory / name)
        stub = root / "sbin/bed-init"
        stub.write_text(_FIRST_PROGRAM)
        stub.chmod(0o755)
        for name in _EMPTIED:
            (root / name).write_text("")
        shutil.rmtree(root / "var/cache/apt", ignore_errors=True)
        shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)
        make_image(directory / "disk.img", root, "8G", log)
        shutil.rmtree(root)


def make_image(image: Path, tree: Path, size: str, log: Path) -> None:
    """Write ``tree`` to a new sparse ext4 ``image`` with a journal, which survives a power cut."""
    mke2fs = shutil.which("mke2fs", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or "mke2fs"
    say(f"file system image {image.name}")
    options = ("-q", "-t", "ext4", "-E", "lazy_itable_init=1,lazy_journal_init=1")
    with log.open("ab") as output:
        subprocess.run(
            [mke2fs, *options, "-d", str(tree), str(image), size], stdout=output, stderr=output, check=True
        )


def qemu(pins: Pins) -> Qemu:
    """The emulator for these pins."""
    return Qemu(pins.debian_release, pins.qemu_packages)


def guest_system(pins: Pins) -> GuestSystem:
    """The guest for these pins."""
    return GuestSystem(pins.debian_release, pins.guest_packages)
