"""Node of the test cluster: an emulated machine with an agent."""

from __future__ import annotations

import io
import itertools
import secrets
import shlex
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .controlplane import NETWORK_NUMBERS, ControlPlane
from .emulator import Emulator, Network
from .gobuild import kubernetes_programs
from .guest import CGROUPS, CONTAINER_CGROUP, guest_of
from .guestagent import Done, Forwarder, GuestAgent, GuestError
from .nodefiles import NodeFiles
from .payload import payload
from .pins import Pins
from .processes import Run, free_port
from .runtimes import IMAGE_STAMP, runtime_of
from .shapes import Shape, parse_cpus
from .waiting import NotYetError, wait_for

_BOOT_LIMIT = 300.0
_numbers = itertools.cycle(NETWORK_NUMBERS)


@dataclass(frozen=True, slots=True)
class GuestProcess:
    """A background program in the guest."""

    node: Node
    name: str
    pid: int

    def alive(self) -> bool:
        """True while the program runs (a zombie does not)."""
        return bool(self.node.python(_IS_ALIVE, pid=self.pid))

    def signal(self, name: str) -> None:
        """Send a signal by name: TERM, KILL, STOP, CONT."""
        self.node.run(f"kill -{name} {self.pid}")

    def stop(self, limit: float = 60.0) -> None:
        """End it gracefully, as the kubelet would, and wait for it."""
        if self.alive():
            self.signal("TERM")
        wait_for(f"{self.name} in {self.node.name} to end", lambda: not self.alive(), limit=limit)

    def kill(self) -> None:
        """End it with ``kill -9`` and wait for it."""
        if self.alive():
            self.signal("KILL")
        wait_for(f"{self.name} in {self.node.name} to be gone", lambda: not self.alive())

    def log(self) -> str:
        """Its output so far, over all starts under this name."""
        return self.node.read(f"/var/log/{self.name}.log")


class Node:
    """A machine of the test cluster: commands, files, services, power, cgroups."""

    def __init__(self, run: Run, pins: Pins, name: str, shape: Shape, plane: ControlPlane | None) -> None:
        """Prepare the disks; ``plane`` is its cluster, ``None`` for a runtime without a kubelet."""
        self.name, self.shape = name, shape
        self.guest = guest_of(pins)
        self._run = run
        self.runtime = runtime_of(pins)
        self._cgroups: dict[str, str] = {}  # constant for a container, and slow to find
        self._images, self._loading = set[Path](), threading.Lock()
        self.network = Network(next(_numbers), free_port(), free_port())
        self._agent = GuestAgent(self.network.agent_port, secrets.token_hex(16))
        files = NodeFiles(name, pins, self.network, self._agent.token, plane)
        disk = run.directory / f"{name}.node.img"
        files.write(disk, run.directory / f"{name}.disk.log")
        kubelet = None if plane is None else kubernetes_programs(pins)["kubelet"]
        programs = payload(pins, kubelet).get() / "disk.img"
        self._emulator = Emulator(run, pins, name, shape, self.network, [programs, disk])

    # Power ------------------------------------------------------------------------------

    def power_on(self) -> None:
        """Start and wait until commands can be run."""
        self.switch_on()
        self.wait_until_up()

    def switch_on(self) -> None:
        """Start without waiting."""
        self._emulator.power_on()

    def wait_until_up(self) -> None:
        """Wait until the agent responds."""

        def answers() -> bool:
            try:
                self._agent.python("result = 1", 10)
            except OSError as error:
                raise NotYetError(f"{error}; console: {self.console()[-300:]!r}") from error
            return True

        wait_for(f"{self.name} to boot", answers, limit=_BOOT_LIMIT, alive=self.check)

    def cut_power(self) -> None:
        """Power failure: the machine stops immediately, the disk keeps its content."""
        self._emulator.cut_power()

    def reboot(self) -> None:
        """Reboot from inside, without stopping any service first, and wait until it is up."""
        self.run("sync; (sleep 0.3; echo b > /proc/sysrq-trigger) > /dev/null 2>&1 &")
        self._emulator.wait_for_power_off()
        self.power_on()

    def address(self) -> dict[str, Any]:
        """The arguments of ``GuestAgent`` for another process."""
        return {"port": self._agent.port, "token": self._agent.token}

    def check(self) -> None:
        """Raise ``EmulatorDiedError`` if the machine has died, which is not an error of the driver."""
        self._emulator.check()

    def console(self) -> str:
        """The console output of the guest since it was started."""
        return self._emulator.console_text()

    # Commands and files -----------------------------------------------------------------

    def run(self, command: str | Sequence[str], timeout: float = 120.0) -> str:
        """Run a command (text goes to a shell) and return its output.

        Raises ``GuestError`` with its errors when it fails.
        """
        done = self.try_run(command, timeout)
        if done.status != 0:
            raise GuestError(
                f"{self.name}: {command!r} ended with status {done.status}: {(done.err or done.out).strip()}"
            )
        return done.out

    def try_run(self, command: str | Sequence[str], timeout: float = 120.0, given: bytes = b"") -> Done:
        """Run a command that may fail; return status, output and errors."""
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        return self._agent.run(argv, timeout, given)

    def python(self, source: str, timeout: float = 120.0, **arguments: object) -> Any:
        """Run Python in the guest without starting an interpreter; return ``result``."""
        return self._agent.python(source, timeout, **arguments)

    def read(self, path: str) -> str:
        """A file of the guest as text."""
        return self._agent.get(path).decode(errors="replace")

    def exists(self, path: str) -> bool:
        """True when the path exists in the guest."""
        return bool(self.python("import os\nresult = os.path.exists(path)", path=path))

    def put(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        """Write a file in the guest."""
        data = content.encode() if isinstance(content, str) else content
        self._agent.put(path, data, mode)

    def put_tree(self, source: Path, destination: str) -> None:
        """Copy a directory of this machine into the guest, replacing what is there."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.add(source, arcname=".")
        quoted = shlex.quote(destination)
        unpack = f"rm -rf {quoted} && mkdir -p {quoted} && tar -xf - -C {quoted}"
        done = self._agent.run(["sh", "-c", unpack], 300, buffer.getvalue())
        if done.status != 0:
            raise GuestError(f"{self.name}: cannot unpack {source} into {destination}: {done.err}")

    def load_image(self, archive: Path) -> None:
        """Import an image archive (OCI or docker) into the runtime, for pods that never pull.

        Each archive is imported once, from any caller and thread.
        """
        with self._loading:
            if archive not in self._images:
                self._agent.put("/tmp/image.tar", archive.read_bytes(), 0o600)
                load = self.runtime.import_command("/tmp/image.tar", archive)
                self.run(f"{load} && rm /tmp/image.tar", 600)
                self._images.add(archive)

    def tag_image(self, name: str, others: Sequence[str]) -> None:
        """Add names to an image of the runtime."""
        self.run(self.runtime.tag_command(name, others))

    def spawn(
        self, name: str, argv: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> GuestProcess:
        """Start a program in the background; its output is appended to ``/var/log/<name>.log``."""
        words = ["env", *(f"{key}={value}" for key, value in (environment or {}).items()), *argv]
        log = shlex.quote(f"/var/log/{name}.log")
        started = self.run(f"setsid {shlex.join(words)} >> {log} 2>&1 < /dev/null & echo $!")
        return GuestProcess(self, name, int(started))

    @contextmanager
    def forward(self, remote: str) -> Iterator[Path]:
        """Forward the Unix socket ``remote`` of the guest to a Unix socket on this machine."""
        local = self._run.directory / f"{secrets.token_hex(4)}.sock"
        forwarder = Forwarder(self._agent, remote, local)
        try:
            yield local
        finally:
            forwarder.close()

    # Services ---------------------------------------------------------------------------

    def start_service(self, name: str) -> None:
        """Start ``runtime`` (containerd or CRI-O) or ``kubelet`` unless it is running."""
        self._service("start", name)

    def stop_service(self, name: str) -> None:
        """Stop a service with SIGTERM and wait for it."""
        self._service("stop", name)

    def kill_service(self, name: str) -> None:
        """Stop a service with ``kill -9``.

        With systemd its unit restarts it a little later, as in production, or ``start_service`` immediately.
        Without systemd only the test restarts it.
        """
        self._service("kill", name)

    def restart_service(self, name: str) -> None:
        """Stop and start a service; wait until the runtime responds again."""
        self._service("restart", name)
        if name == "runtime":
            self.wait_for_runtime()

    def _service(self, verb: str, name: str) -> None:
        self.run(["/bed/service", verb, self.runtime.service if name == "runtime" else name])

    def wait_for_runtime(self) -> None:
        """Wait until the runtime responds and has the test image."""

        def ready() -> bool:
            done = self.try_run(f"test -e {IMAGE_STAMP} && {self.runtime.answers_command()}", 60)
            if done.status != 0:
                raise NotYetError(done.err.strip() or "the test image is not imported yet")
            return True

        what = f"{self.runtime.service} of {self.name}"
        wait_for(what, ready, limit=240, pause=1, alive=self.check)

    # Kernel state of containers --------------------------------------------------------

    def container_cgroup(self, container_id: str) -> str:
        """The cgroup directory of a running container."""
        path = self._cgroups.get(container_id) or self.python(
            _FIND_CGROUP, container=container_id, top=CGROUPS, pattern=CONTAINER_CGROUP
        )
        if not path:
            raise GuestError(f"{self.name}: no cgroup for container {container_id}")
        return self._cgroups.setdefault(container_id, str(path))

    def cgroup_file(self, container_id: str, file: str) -> str:
        """One file of a container's cgroup."""
        return self.read(f"{self.container_cgroup(container_id)}/{file}").strip()

    def effective_cpus(self, container_id: str) -> frozenset[int]:
        """The CPUs on which the kernel allows a container to run."""
        return frozenset(parse_cpus(self.cgroup_file(container_id, "cpuset.cpus.effective")))

    def effective_mems(self, container_id: str) -> frozenset[int]:
        """The NUMA nodes from which the kernel allows a container to allocate."""
        return frozenset(parse_cpus(self.cgroup_file(container_id, "cpuset.mems.effective")))

    def pids(self, container_id: str) -> list[int]:
        """The processes of a container, as numbers of the guest."""
        return [int(pid) for pid in self.cgroup_file(container_id, "cgroup.procs").split()]

    def allowed_cpus(self, pid: int) -> frozenset[int]:
        """``Cpus_allowed_list`` of a process."""
        for line in self.read(f"/proc/{pid}/status").splitlines():
            if line.startswith("Cpus_allowed_list:"):
                return frozenset(parse_cpus(line.split(":")[1]))
        raise GuestError(f"{self.name}: /proc/{pid}/status has no Cpus_allowed_list")

    def last_cpus(self, pid: int, samples: int = 40, gap: float = 0.015) -> frozenset[int]:
        """The CPUs on which a busy process runs: its last CPU, sampled ``samples`` times.

        The default covers several iterations of ``cpu.BUSY``, which wakes up five times a second.
        """
        limit = 60 + samples * (gap + 0.1)
        seen = self.python(_SAMPLE, limit, pid=pid, samples=samples, gap=gap)
        return frozenset(seen)

    def wait(self, why: str, condition: Callable[[], Any], limit: float = 180.0) -> Any:
        """Wait for a condition while the machine is alive."""
        return wait_for(f"{self.name}: {why}", condition, limit=limit, alive=self.check)

    def collect(self, folder: Path) -> None:
        """Write logs and state to ``folder``, for the analysis of a failure."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "console.log").write_text(self.console())
        try:
            logs = self.python(_READ_LOGS)
            logs["processes.txt"] = self.run("ps -eo pid,ppid,psr,stat,rss,etime,args", 60)
            logs["dmesg.txt"] = self.run("dmesg | tail -n 200", 60)
            if self.guest.systemd:
                logs["journal.txt"] = self.run("journalctl --no-pager --boot --lines 2000", 60)
        except (OSError, GuestError) as error:
            logs = {"unreachable.txt": str(error)}
        for name, text in logs.items():
            (folder / name).write_text(text)


_IS_ALIVE = """
try:
    with open(f"/proc/{pid}/stat") as file:
        result = file.read().rpartition(")")[2].split()[0] != "Z"
except (FileNotFoundError, ProcessLookupError):  # the second between open and read
    result = False
"""
_FIND_CGROUP = """
import os, re
result = ""
for directory, names, _ in os.walk(top):
    for name in names:
        found = re.fullmatch(pattern, name)
        if found and found[1] == container:
            result = os.path.join(directory, name)
"""
# Field 39 of /proc/PID/stat is the CPU last run on; the name field may contain spaces.
_SAMPLE = """
import time
seen = set()
for _ in range(samples):
    with open(f"/proc/{pid}/stat") as file:
        seen.add(int(file.read().rpartition(")")[2].split()[36]))
    time.sleep(gap)
result = sorted(seen)
"""
_READ_LOGS = """
import glob
result = {}
for path in glob.glob("/var/log/*.log") + glob.glob("/var/log/pods/*/*/*.log"):
    try:
        with open(path, errors="replace") as file:
            result[path[len("/var/log/"):].replace("/", "_")] = file.read()[-400000:]
    except FileNotFoundError:
        pass  # the kubelet removes the logs of pods that have ended
"""
