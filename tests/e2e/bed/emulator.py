"""Emulated machine.

QEMU is Debian's, from a separate root file system, and runs with the loader and libraries of that
system: without chroot and mounts, so it needs no privileges and no cleanup.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .debian import guest_system, qemu
from .pins import Pins
from .processes import Child, ProcessDiedError, Run
from .shapes import Shape
from .waiting import wait_for

_AGENT_PORT_IN_GUEST = 2222
_KUBELET_PORT_IN_GUEST = 10250
_FATAL = re.compile(r"Kernel panic|Oops: |BUG: unable to handle|general protection fault")


class EmulatorDiedError(ProcessDiedError):
    """The emulated machine is gone or its kernel crashed; this is not an error of the driver."""


@dataclass(frozen=True, slots=True)
class Network:
    """The user-mode network of one machine: a private /24 with the host's loopback in it."""

    number: int
    agent_port: int
    kubelet_port: int

    @property
    def guest(self) -> str:
        """The address of the machine."""
        return f"10.0.{self.number}.15"

    @property
    def host(self) -> str:
        """The address under which the guest sees the host's loopback."""
        return f"10.0.{self.number}.2"

    def qemu_arguments(self) -> list[str]:
        """The network on QEMU's command line; forwarded ports are on the host's loopback."""
        forwards = (
            f"hostfwd=tcp:127.0.0.1:{self.agent_port}-{self.guest}:{_AGENT_PORT_IN_GUEST}",
            f"hostfwd=tcp:127.0.0.1:{self.kubelet_port}-{self.guest}:{_KUBELET_PORT_IN_GUEST}",
        )
        net = f"user,id=net,net=10.0.{self.number}.0/24,host={self.host},{','.join(forwards)}"
        return ["-netdev", net, "-device", "virtio-net-pci,netdev=net,romfile="]


class Emulator:
    """An emulated machine: power on, power off, health."""

    def __init__(
        self, run: Run, pins: Pins, name: str, shape: Shape, network: Network, disks: list[Path]
    ) -> None:
        """``disks`` follow the root disk, read-only, in order."""
        self._run, self._pins, self.name = run, pins, name
        self._shape, self._network, self._disks = shape, network, disks
        self._overlay = run.directory / f"{name}.qcow2"
        self.console = run.directory / f"{name}.console.log"
        self._child: Child | None = None
        self._console_seen = 0
        self._make_overlay()

    def power_on(self) -> None:
        """Start the machine with the disk as it is."""
        if self._child is not None and self._child.alive():
            raise RuntimeError(f"{self.name} is already running")
        self._console_seen = self.console.stat().st_size if self.console.exists() else 0
        self._child = self._run.start(f"{self.name}.qemu", self._command())

    def cut_power(self) -> None:
        """Stop the machine immediately, like a power failure."""
        if self._child is not None:
            self._child.kill()
            self._run.children.remove(self._child)
            self._child = None

    def wait_for_power_off(self, limit: float = 120.0) -> None:
        """Wait until the guest has shut down or rebooted."""
        child = self._child
        assert child is not None
        wait_for(f"{self.name} to switch itself off", lambda: not child.alive(), limit=limit)
        self._run.children.remove(child)
        self._child = None

    def check(self) -> None:
        """Raise ``EmulatorDiedError`` if the machine is gone or its kernel has crashed."""
        if self._child is None:
            raise EmulatorDiedError(f"{self.name} is switched off")
        text = self.console_text()
        crash = _FATAL.search(text)
        if crash:
            raise EmulatorDiedError(f"{self.name}: the guest kernel crashed: {text[crash.start() :][:3000]}")
        if not self._child.alive():
            raise EmulatorDiedError(
                f"the emulator of {self.name} ended with status {self._child.process.returncode}: "
                f"{self._child.tail()}\n{text[-1500:]}"
            )

    def console_text(self) -> str:
        """The console output of the guest since it was started."""
        if not self.console.exists():
            return ""
        with self.console.open("rb") as file:
            file.seek(self._console_seen)
            return file.read().decode(errors="replace")

    def _make_overlay(self) -> None:
        base = guest_system(self._pins).get() / "disk.img"
        create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(base), str(self._overlay)]
        subprocess.run([*qemu(self._pins).program("qemu-img"), *create], check=True)

    def _command(self) -> list[str]:
        system = guest_system(self._pins).get()
        # mitigations=off: page-table isolation is very slow under emulation. A panic reboots,
        # and a reboot ends QEMU (-no-reboot), so a crashed guest is distinguished from a slow one.
        # maxcpus=1: a device that is mapped while another CPU touches its interrupt controller now
        # and then kills QEMU 10 (iotlb_to_section asserts); the guest's init starts the others.
        kernel = (
            "root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet mitigations=off panic=-1 "
            f"maxcpus=1 init=/sbin/bed-init {self._shape.kernel_arguments()}"
        )
        emulator = qemu(self._pins)
        words = [*emulator.program("qemu-system-x86_64"), *emulator.firmware()]
        # Without erms: the kernel clears a page with `rep stosb` where the CPU calls that fast, and the
        # emulator does it byte by byte. It was 40 % of all a pod costs; a pod is 1.5 times as fast without.
        words += ["-accel", "tcg,thread=multi", "-cpu", "Skylake-Server-v1,-erms"]
        words += [*self._shape.qemu_arguments(), *self._network.qemu_arguments()]
        words += ["-nodefaults", "-display", "none", "-no-reboot", "-device", "virtio-rng-pci"]
        # Append, so that the console of an earlier start is kept for the post-mortem.
        words += ["-chardev", f"file,id=console,path={_word(self.console)},append=on"]
        words += ["-serial", "chardev:console"]
        words += ["-kernel", str(system / "vmlinuz"), "-initrd", str(system / "initrd.img")]
        words += ["-append", kernel]
        words += _disk(self._overlay, "qcow2", "cache=unsafe")
        for disk in self._disks:
            words += _disk(disk, "raw", "readonly=on")
        return words


def _disk(path: Path, form: str, option: str) -> list[str]:
    return ["-drive", f"file={_word(path)},if=virtio,format={form},{option}"]


def _word(path: Path) -> str:
    """Escape a path for an option, where a comma would end it."""
    return str(path).replace(",", ",,")
