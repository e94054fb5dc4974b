"""A container of the fake runtime: what its cgroup would say."""

from __future__ import annotations

import contextlib
import os

import msgspec

from drakit.wire.nri.values import NriContainer, Resources, State


class FakeContainer:
    """A container of the fake runtime. What can be asked is what its cgroup would say."""

    def __init__(self, value: NriContainer, directory: str | None) -> None:
        self.value = value
        self._created_with = value.resources
        self._directory = directory

    @property
    def id(self) -> str:
        """The runtime's id."""
        return self.value.id

    @property
    def state(self) -> State:
        """How far it has come."""
        return self.value.state

    @property
    def resources(self) -> Resources:
        """All limits the runtime set."""
        return self.value.resources

    @property
    def cpus(self) -> str:
        """``cpuset.cpus``: from the mirrored cgroup, which others may write to, if there is one."""
        return self._mirrored("cpuset.cpus", self.value.resources.cpus)

    @property
    def mems(self) -> str:
        """``cpuset.mems``, likewise."""
        return self._mirrored("cpuset.mems", self.value.resources.mems)

    @property
    def env(self) -> dict[str, str]:
        """The environment its process has or would have."""
        return dict(entry.partition("=")[::2] for entry in self.value.env)

    def _mirrored(self, name: str, otherwise: str) -> str:
        if self._directory is None:
            return otherwise
        try:
            with open(os.path.join(self._directory, name), encoding="ascii") as file:
                return file.read().strip()
        except FileNotFoundError:
            return otherwise

    def change(self, resources: Resources) -> None:
        """Set limits, as the kernel would be told to."""
        self.value = msgspec.structs.replace(
            self.value, resources=resources.over(self.value.resources)
        )
        self.mirror()

    def forget_updates(self) -> None:
        """Report what it was created with from now on; the mirrored cgroup stays as it is."""
        self.value = msgspec.structs.replace(self.value, resources=self._created_with)

    def become(self, state: State, pid: int = 0) -> None:
        """Reach the next state of its life."""
        self.value = msgspec.structs.replace(self.value, state=state, pid=pid)

    def mirror(self) -> None:
        """Write the limits to the mirrored cgroup, if there is one."""
        if self._directory is None:
            return
        os.makedirs(self._directory, exist_ok=True)
        limits = self.value.resources
        files = {"cpuset.cpus": limits.cpus, "cpuset.mems": limits.mems}
        files["cgroup.events"] = "populated 1\nfrozen 0"
        if limits.memory_limit is not None:
            files["memory.max"] = str(limits.memory_limit)
        for name, text in (*files.items(), *limits.unified.items()):
            with open(os.path.join(self._directory, name), "w", encoding="ascii") as file:
                file.write(f"{text}\n")

    def unmirror(self) -> None:
        """Remove the mirrored cgroup."""
        if self._directory is not None:
            with contextlib.suppress(FileNotFoundError):
                for name in os.listdir(self._directory):
                    os.unlink(os.path.join(self._directory, name))
                os.rmdir(self._directory)
