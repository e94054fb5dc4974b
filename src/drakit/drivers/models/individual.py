"""One device per CPU: the scheduler names every CPU, the driver keeps to it.

A device is named by its CPU (``cpudev002`` is CPU 2), so a changed reservation or an offlined CPU
renames nothing. The devices are listed core by core and cache by cache, whole cores first: the
scheduler takes the first that fit, and so takes SMT siblings and one cache together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final

from drakit.core.cpuset import CpuSet
from drakit.core.objects import (
    Attribute,
    Device,
    Taint,
    bool_attribute,
    int_attribute,
    string_attribute,
)
from drakit.core.quantity import Quantity
from drakit.drivers.models.cpu_enforcement import desired, environment
from drakit.drivers.models.cpu_policy import Distribute, Placement, SameL3, Wish, wish
from drakit.drivers.models.cpus import (
    CDI_KIND,
    DRIVER,
    KIND,
    Names,
    NodeCpus,
    node_id,
    numa_attributes,
    pcie_roots,
    smt_attribute,
)
from drakit.drivers.models.memory_policy import NO_MEMORY_QOS, MemoryQosPolicy
from drakit.drivers.models.node_driver import NodeAmount
from drakit.kit.driver import (
    AllocatedDevice,
    Assignment,
    Claim,
    ContainerView,
    DesiredResources,
    Offer,
    PoolOffer,
    PreparedClaim,
    PreparedClaims,
    PreparedDevice,
    RejectedError,
    UnhealthyDevice,
)
from drakit.machine.model import Cpu

PREFIX: Final = "cpudev"
OFFLINE: Final = Taint(key="dra.cpu/offline", effect="NoSchedule")


@dataclass(frozen=True)
class IndividualCpus:
    """The CPU driver whose devices are single CPUs."""

    cpus: NodeCpus
    memory_policy: MemoryQosPolicy = NO_MEMORY_QOS
    node_amounts: tuple[NodeAmount, ...] = ()
    name: str = field(default=DRIVER, init=False)
    cdi_kind: str = field(default=CDI_KIND, init=False)
    cpuset_kinds: ClassVar[frozenset[str]] = frozenset({"cpu"})

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings that do not fit this machine."""
        return self.cpus.warnings

    def consumption(self, claim: PreparedClaim) -> dict[str, dict[str, Quantity]]:
        """Nothing: a device is one CPU, which a claim holds or does not."""
        return {}

    # -- offer -----------------------------------------------------------------------------------

    def offer(self) -> Offer:
        """Every CPU that may be given away; CPUs that went offline are tainted and unhealthy."""
        machine = self.cpus.machine
        offline = [machine.by_id[cpu] for cpu in self._offline]
        devices = [self._device(machine.by_id[cpu]) for cpu in self._order()]
        devices += [self._offline_device(cpu) for cpu in offline]
        return Offer(
            pools=(PoolOffer(tuple(devices)),),
            unhealthy=tuple(
                UnhealthyDevice(device_name(cpu.id), f"CPU {cpu.id} is offline") for cpu in offline
            ),
        )

    def _order(self) -> Iterable[int]:
        """CPUs cache by cache, within a cache core by core, cores that are not whole last."""
        offered = self.cpus.offered.mask
        for cell in self.cpus.topology.cells:
            cores = [core for core, _ in cell.cores if core & offered]
            for core in sorted(cores, key=lambda core: core & offered != core):
                yield from CpuSet.from_mask(core & offered)

    @property
    def _offline(self) -> CpuSet:
        """CPUs that somebody took offline. Where SMT is off, half or more are: those never count."""
        machine = self.cpus.machine
        offline = machine.present - machine.online - self.cpus.reserved
        switched_off = not machine.smt_active and len(offline) >= len(machine.online)
        return CpuSet() if switched_off else offline

    @cached_property
    def _names(self) -> Names:
        return Names(self.cpus.machine)

    def _device(self, cpu: Cpu) -> Device:
        attributes = self._attributes(cpu)
        attributes |= pcie_roots(self.cpus, CpuSet([cpu.id]), len(attributes))
        return Device(
            name=device_name(cpu.id),
            attributes=attributes,
            node_allocatable_resources=self._mapping(),
        )

    def _offline_device(self, cpu: Cpu) -> Device:
        """An offline CPU shows no topology; all attributes stay, so that selectors do not fail."""
        return Device(
            name=device_name(cpu.id),
            attributes=self._attributes(cpu),
            node_allocatable_resources=self._mapping(),
            taints=(OFFLINE,),
        )

    def _attributes(self, cpu: Cpu) -> dict[str, Attribute]:
        return {
            "dra.cpu/cpuID": int_attribute(cpu.id),
            "dra.cpu/coreID": int_attribute(self._names.core(cpu)),
            "dra.cpu/rawCoreID": int_attribute(-1 if cpu.raw_core is None else cpu.raw_core),
            "dra.cpu/socketID": int_attribute(self._names.socket(cpu)),
            "dra.cpu/cacheL3ID": int_attribute(self._names.llc(cpu)),
            "dra.cpu/coreType": string_attribute(cpu.core_type.value),
            "dra.cpu/isolated": bool_attribute(cpu.isolated),
            **smt_attribute(self.cpus.machine),
            **numa_attributes(node_id(cpu)),
        }

    def _mapping(self) -> dict[str, Any]:
        if not self.cpus.config.publish_node_allocatable_resource_mapping:
            return {}
        return {"cpu": {"mapping": {"deviceMultiplier": "1"}}}

    # -- assign ----------------------------------------------------------------------------------

    def assign(self, claim: Claim, prepared_claims: PreparedClaims) -> Assignment:
        """Exactly the CPUs that the scheduler named."""
        cpus = [self._cpu(claim, allocated) for allocated in claim.devices]
        own = CpuSet(
            cpu.id for cpu, a in zip(cpus, claim.devices, strict=True) if not a.admin_access
        )
        self.cpus.check_free(claim, own, prepared_claims)
        self.cpus.check_pool(claim, own, prepared_claims)
        by_request: dict[str, CpuSet] = {}
        for cpu, allocated in zip(cpus, claim.devices, strict=True):
            before = by_request.get(allocated.base_request, CpuSet())
            by_request[allocated.base_request] = before | CpuSet([cpu.id])
        checked: list[tuple[str, Wish]] = []  # usually one: all devices of a request say the same
        for allocated in claim.devices:
            asked = (allocated.base_request, wish(allocated.config))
            if asked not in checked:
                checked.append(asked)
                self._check_wish(asked[1], by_request[allocated.base_request])
        return Assignment(
            tuple(
                self._prepared_device(claim, allocated, cpu, by_request[allocated.base_request])
                for cpu, allocated in zip(cpus, claim.devices, strict=True)
            )
        )

    def _cpu(self, claim: Claim, allocated: AllocatedDevice) -> Cpu:
        number = allocated.device.removeprefix(PREFIX)
        cpu = self.cpus.machine.by_id.get(int(number)) if number.isdecimal() else None
        if cpu is None or device_name(cpu.id) != allocated.device:
            raise RejectedError(
                f"this node has no device {allocated.device}, which {claim} was given: its devices "
                f"are called {PREFIX}<CPU>; was the driver in another mode when the claim was "
                f"allocated? Delete the pod and the claim, then they are allocated anew",
                reason="unknown-device",
            )
        if not allocated.admin_access and cpu.id not in self.cpus.allocatable:
            state = "reserved for the system" if cpu.online else "offline"
            raise RejectedError(
                f"CPU {cpu.id} ({allocated.device}) for {claim} is {state} by now; delete the pod "
                f"and the claim, then they are allocated anew",
                reason="reserved" if cpu.online else "offline",
            )
        return cpu

    def _check_wish(self, asked: Wish, cpus: CpuSet) -> None:
        """Reject what the scheduler's choice does not fulfill: here it cannot be chosen otherwise."""
        machine, policy = self.cpus.machine, asked.policy
        broken = ""
        if asked.cpuset is not None and asked.cpuset != cpus:
            broken = f"cpuset {asked.cpuset}"
        elif policy.whole_cores and any(core & cpus and not core <= cpus for core in machine.cores):
            broken = "wholeCores: true (select by dra.cpu/coreID with matchAttribute)"
        elif policy.same_l3 is SameL3.REQUIRED and sum(1 for c in machine.llc_cpus if c & cpus) > 1:
            broken = "sameL3: required (add matchAttribute: dra.cpu/cacheL3ID)"
        elif policy.placement is Placement.SPREAD:
            broken = "placement: spread (add distinctAttribute: dra.cpu/coreID)"
        elif policy.distribute is Distribute.NUMA:
            broken = "distribute: numa (make one request per dra.cpu/numaNodeID)"
        if broken:
            raise RejectedError(
                f"the scheduler chose CPUs {cpus}, which is not {broken}; in individual mode the "
                f"driver cannot choose others",
                reason="policy",
            )

    def _prepared_device(
        self, claim: Claim, allocated: AllocatedDevice, cpu: Cpu, request_cpus: CpuSet
    ) -> PreparedDevice:
        return allocated.prepare(
            exclusive={KIND: CpuSet([cpu.id])},
            env=environment(claim.uid, request_cpus),
            attributes=self._attributes(cpu),
        )

    # -- enforce ---------------------------------------------------------------------------------

    def enforce(
        self, container: ContainerView, prepared_claims: PreparedClaims
    ) -> DesiredResources:
        """Claimed CPUs for who has some, the shared pool for all others."""
        return desired(self.cpus, container, prepared_claims)


def device_name(cpu: int) -> str:
    """The device of a CPU."""
    return f"{PREFIX}{cpu:03d}"
