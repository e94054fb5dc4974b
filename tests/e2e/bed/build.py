"""Build all components of the test cluster, with progress: ``python -m tests.e2e.bed.build``."""

from __future__ import annotations

import sys

from .debian import ensure_host_tools, guest_system, qemu
from .gobuild import etcd_program, helm_program, kubernetes_programs
from .holder import holder
from .host import what_can_run
from .payload import full_payload, payload
from .pins import load_pins
from .progress import say


def build_all() -> int:
    """Build what this machine can build; report what it cannot build and why."""
    ability = what_can_run()
    for line in ability.missing:
        say(f"CANNOT: {line}")
    pins = ability.pins(load_pins())
    if ability.vm:
        ensure_host_tools(pins)
        qemu(pins).get()
        guest_system(pins).get()
    if ability.go:
        etcd_program(pins).get()
        for program in kubernetes_programs(pins).values():
            program.get()
        helm_program(pins).get()
        holder().get()
    if ability.vm:
        (full_payload(pins) if ability.go else payload(pins, None)).get()
    say("everything this machine can build is built")
    return 0


if __name__ == "__main__":
    sys.exit(build_all())
