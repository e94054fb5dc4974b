"""Container of the fake runtime, with the values its cgroup would have."""

from __future__ import annotations

import contextlib
import os

import msgspec

from drakit.wire.nri.values import NriContainer, Resources, State


class FakeContainer:
    """A container of the fake runtime. Its properties are the values its cgroup would have."""

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
        """The state of the container."""
        return self.value.state

    @property
    def resources(self) -> Resources:
        """All limits that the runtime has set."""
        return self.value.resources

    @property
    def cpus(self) -> str:
        """``cpuset.cpus``, from the cgroup directory if there is one: others may write to it."""
        return self._cgroup_value("cpuset.cpus", self.value.resources.cpus)

    @property
    def mems(self) -> str:
        """``cpuset.mems``, from the cgroup directory if there is one."""
        return self._cgroup_value("cpuset.mems", self.value.resources.mems)

    @property
    def env(self) -> dict[str, str]:
        """The environment its process has or would have."""
        return dict(entry.partition("=")[::2] for entry in self.value.env)

    def _cgroup_value(self, name: str, otherwise: str) -> str:
        if self._directory is None:
            return otherwise
        try:
            with open(os.path.join(self._directory, name), encoding="ascii") as file:
                return file.read().strip()
        except FileNotFoundError:
            return otherwise

    def change(self, resources: Resources) -> None:
        """Set limits, as the runtime would in the kernel."""
        self.value = msgspec.structs.replace(self.value, resources=resources.over(self.value.resources))
        self.write_cgroup()

    def forget_updates(self) -> None:
        """Report the limits of the creation from now on; the cgroup directory does not change."""
        self.value = msgspec.structs.replace(self.value, resources=self._created_with)

    def set_state(self, state: State) -> None:
        """Change the state."""
        self.value = msgspec.structs.replace(self.value, state=state)

    def write_cgroup(self) -> None:
        """Write the limits to the cgroup directory, if there is one."""
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

    def remove_cgroup(self) -> None:
        """Remove the cgroup directory."""
        if self._directory is not None:
            with contextlib.suppress(FileNotFoundError):
                for name in os.listdir(self._directory):
                    os.unlink(os.path.join(self._directory, name))
                os.rmdir(self._directory)
