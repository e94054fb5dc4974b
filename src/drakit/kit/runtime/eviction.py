"""Eviction of other containers from the CPUs of a newly prepared claim."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from drakit.cgroups.tree import CgroupTree
from drakit.core.cpuset import CpuSet
from drakit.core.log import get_logger
from drakit.kit.driver import PreparedClaim, RejectedError
from drakit.kit.runtime.enforcer import Enforcer
from drakit.kit.runtime.updates import Pusher

log = get_logger(__name__)
_EVICTION_SECONDS: Final = 3.0
"""How long a prepare waits for containers to leave the claim's CPUs; then the kubelet retries."""


@dataclass(eq=False, slots=True)
class Evictor:
    """Moves containers off CPUs: in the kernel where cgroups can be written, else by the runtime."""

    _enforcer: Enforcer
    _pusher: Pusher
    _tree: CgroupTree | None

    async def evict_others(self, claim: PreparedClaim, cpus: CpuSet) -> None:
        """Move all containers off *cpus* except those of *claim*.

        Waits for updates in flight that would move a container back. Raises :class:`RejectedError` if that
        takes too long; the claim stays prepared, and the kubelet retries.
        """
        left = self._write_cgroups(cpus, self._others_on(cpus, claim.uid))
        self._pusher.prefer(left)  # for example the driver's own container, whose cgroup is read-only
        stale = self._pusher.stale(cpus)

        def clear() -> bool:
            return not self._pusher.stale(cpus) and not any(self._allows(each, cpus) for each in left)

        if self._pusher.possible and not await self._pusher.wait_until(clear, _EVICTION_SECONDS):
            raise RejectedError(
                f"{claim} is prepared, but the container runtime has not moved other containers off "
                f"its CPUs {cpus} within {_EVICTION_SECONDS:g} s; the kubelet retries",
                reason="runtime-busy",
            )
        self._write_cgroups(cpus, stale)

    def _others_on(self, cpus: CpuSet, claim_uid: str) -> list[str]:
        """Containers that may use some of *cpus*, except those of the claim."""
        users = {user.id for user in self._enforcer.users_of(claim_uid)}
        others = (each for each in self._enforcer.containers if each not in users)
        return [each for each in others if self._allows(each, cpus)]

    def _allows(self, container_id: str, cpus: CpuSet) -> bool:
        """Whether the container may use any of *cpus*, as far as the runtime has confirmed."""
        if container_id not in self._enforcer.containers:
            return False
        allowed = self._enforcer.last_sent_cpus(container_id)
        return allowed is None or bool(allowed & cpus) or self._pusher.is_in_flight(container_id)

    def _write_cgroups(self, cpus: CpuSet, container_ids: Iterable[str]) -> list[str]:
        """Write desired CPUs into the cgroups of containers; returns those where that failed."""
        if self._tree is None:
            return list(container_ids)
        left = []
        for container_id in container_ids:
            container = self._enforcer.containers.get(container_id)
            path = container.cgroup_path if container is not None else None
            if container is None or path is None:
                continue
            desired = self._enforcer.decide(container).desired
            if desired is None or desired.cpus is None or desired.cpus & cpus:
                continue
            try:
                self._tree.write("cpuset", path, "cpuset.cpus", str(desired.cpus))
            except FileNotFoundError:
                continue  # it ended, or has not started: its start compares again
            except OSError as error:
                log.warning("cannot write cpuset", container=container_id, error=error)
                left.append(container_id)
        return left
