"""Individual model: one device per CPU, which the scheduler chooses.

A device is named after its CPU (``cpudev002`` is CPU 2), so that a changed reservation or a CPU that
goes offline renames no device. Devices are listed cache by cache and core by core, complete cores first:
the scheduler takes the first devices that fit, hence SMT siblings and CPUs of one cache together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Final

from drakit.core.cpuset import CpuSet
from drakit.core.objects import Attribute, Device, Taint, bool_attribute, int_attribute, string_attribute
from drakit.core.quantity import Quantity
from drakit.drivers.models.amounts import cpus_by_request
from drakit.drivers.models.cpu_enforcement import check_owner, container_cpus, environment
from drakit.drivers.models.cpu_policy import CorePlacement, CpuPolicy, Distribute, SameL3, cpu_policy
from drakit.drivers.models.cpus import (
    CDI_KIND,
    CPU_NUMBERS,
    DRIVER,
    NodeCpus,
    TopologyIds,
    node_id,
    numa_attributes,
    pcie_roots,
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
    RejectedError,
    UnhealthyDevice,
)
from drakit.kit.telemetry.metrics import Gauge
from drakit.machine.model import Cpu

PREFIX: Final = "cpudev"
OFFLINE: Final = Taint(key="dra.cpu/offline", effect="NoSchedule")


@dataclass(frozen=True)
class IndividualCpus:
    """The CPU driver whose devices are single CPUs."""

    cpus: NodeCpus
    name: str = field(default=DRIVER, init=False)
    cdi_kind: str = field(default=CDI_KIND, init=False)
    cpuset_kinds: ClassVar[frozenset[str]] = frozenset({CPU_NUMBERS})
    memory_policy: ClassVar[MemoryQosPolicy] = NO_MEMORY_QOS
    node_amounts: ClassVar[tuple[NodeAmount, ...]] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings that do not fit this machine."""
        return self.cpus.warnings

    def consumption(self, claim: PreparedClaim) -> dict[str, dict[str, Quantity]]:
        """Nothing: single CPUs have no consumable capacity."""
        return {}

    def gauges(self, prepared_claims: PreparedClaims) -> Iterable[Gauge]:
        """CPUs by state."""
        return self.cpus.gauges(prepared_claims)

    def offer(self) -> Offer:
        """Every offered CPU; CPUs that went offline are tainted and unhealthy."""
        machine = self.cpus.machine
        offline = [machine.by_id[cpu] for cpu in self._offline()]
        devices = [self._device(machine.by_id[cpu]) for cpu in self._order()]
        # The topology of an offline CPU is unknown; all attributes stay: selectors must not fail.
        devices += [self._device(cpu, (OFFLINE,)) for cpu in offline]
        return Offer(
            pools=(PoolOffer(tuple(devices)),),
            unhealthy=tuple(
                UnhealthyDevice(device_name(cpu.id), f"CPU {cpu.id} is offline") for cpu in offline
            ),
        )

    def _order(self) -> Iterable[int]:
        """CPUs cache by cache, within a cache core by core, incomplete cores last."""
        offered = self.cpus.offered.mask
        for leaf in self.cpus.topology.leaves:
            cores = [core for core, _ in leaf.cores if core & offered]
            for core in sorted(cores, key=lambda core: core & offered != core):
                yield from CpuSet.from_mask(core & offered)

    def _offline(self) -> CpuSet:
        """CPUs that were taken offline. Those that are offline because SMT is off do not count."""
        machine = self.cpus.machine
        offline = machine.present - machine.online - self.cpus.reserved
        switched_off = not machine.smt_active and len(offline) >= len(machine.online)
        return CpuSet() if switched_off else offline

    @cached_property
    def _ids(self) -> TopologyIds:
        return TopologyIds(self.cpus.machine)

    def _device(self, cpu: Cpu, taints: tuple[Taint, ...] = ()) -> Device:
        attributes = self._attributes(cpu)
        if cpu.online:
            attributes |= pcie_roots(self.cpus, CpuSet([cpu.id]), len(attributes))
        mapped = self.cpus.config.publish_node_allocatable_resource_mapping
        return Device(
            name=device_name(cpu.id),
            attributes=attributes,
            node_allocatable_resources={"cpu": {"mapping": {"deviceMultiplier": "1"}}} if mapped else {},
            taints=taints,
        )

    def _attributes(self, cpu: Cpu) -> dict[str, Attribute]:
        return {
            "dra.cpu/cpuID": int_attribute(cpu.id),
            "dra.cpu/coreID": int_attribute(self._ids.core(cpu)),
            "dra.cpu/rawCoreID": int_attribute(-1 if cpu.raw_core is None else cpu.raw_core),
            "dra.cpu/socketID": int_attribute(self._ids.socket(cpu)),
            "dra.cpu/cacheL3ID": int_attribute(self._ids.llc(cpu)),
            "dra.cpu/coreType": string_attribute(cpu.core_type.value),
            "dra.cpu/isolated": bool_attribute(cpu.isolated),
            "dra.cpu/smtEnabled": bool_attribute(self.cpus.machine.smt_active),
            **numa_attributes(node_id(cpu)),
        }

    def assign(self, claim: Claim, prepared_claims: PreparedClaims) -> Assignment:
        """Exactly the CPUs that the scheduler chose."""
        cpus = [self._cpu(claim, allocated) for allocated in claim.devices]
        own = CpuSet(cpu.id for cpu, a in zip(cpus, claim.devices, strict=True) if not a.admin_access)
        self.cpus.check_free(claim, own, prepared_claims)
        self.cpus.check_pool(claim, own, prepared_claims)
        by_request = cpus_by_request(
            (allocated, CpuSet([cpu.id])) for cpu, allocated in zip(cpus, claim.devices, strict=True)
        )
        # Usually one: all devices of a request have the same policy.
        policies = {(a.base_request, cpu_policy(a.config)): None for a in claim.devices}
        for request, policy in policies:
            self._check_policy(policy, by_request[request])
        return Assignment(
            tuple(
                allocated.prepare(
                    exclusive={CPU_NUMBERS: CpuSet([cpu.id])},
                    env=environment(claim.uid, by_request[allocated.base_request]),
                    attributes=self._attributes(cpu),
                )
                for cpu, allocated in zip(cpus, claim.devices, strict=True)
            )
        )

    def _cpu(self, claim: Claim, allocated: AllocatedDevice) -> Cpu:
        number = allocated.device.removeprefix(PREFIX)
        cpu = self.cpus.machine.by_id.get(int(number)) if number.isdecimal() else None
        if cpu is None or device_name(cpu.id) != allocated.device:
            raise RejectedError(
                f"this node has no device {allocated.device}, which was allocated to {claim}: its "
                f"devices are named {PREFIX}<CPU>; if the driver's mode has changed, delete the pod "
                f"and the claim so that they are allocated again",
                reason="unknown-device",
            )
        if not allocated.admin_access and cpu.id not in self.cpus.allocatable:
            state = "reserved for the system" if cpu.online else "offline"
            raise RejectedError(
                f"CPU {cpu.id} ({allocated.device}) for {claim} is {state} now; delete the pod and "
                f"the claim so that they are allocated again",
                reason="reserved" if cpu.online else "offline",
            )
        return cpu

    def _check_policy(self, policy: CpuPolicy, cpus: CpuSet) -> None:
        """Reject a policy that the scheduler's choice does not satisfy: the driver cannot choose."""
        machine = self.cpus.machine
        if policy.cpuset is not None and policy.cpuset != cpus:
            broken = f"cpuset {policy.cpuset}"
        elif policy.whole_cores and any(core & cpus and not core <= cpus for core in machine.cores):
            broken = "wholeCores: true (select by dra.cpu/coreID with matchAttribute)"
        elif policy.same_l3 is SameL3.REQUIRED and sum(1 for c in machine.llc_cpus if c & cpus) > 1:
            broken = "sameL3: required (add matchAttribute: dra.cpu/cacheL3ID)"
        elif policy.placement is CorePlacement.SPREAD:
            broken = "placement: spread (add distinctAttribute: dra.cpu/coreID)"
        elif policy.distribute is Distribute.NUMA:
            broken = "distribute: numa (make one request per dra.cpu/numaNodeID)"
        else:
            return
        raise RejectedError(
            f"the scheduler chose CPUs {cpus}, which is not {broken}; in individual mode the driver cannot "
            "choose others",
            reason="policy",
        )

    def enforce(self, container: ContainerView, prepared_claims: PreparedClaims) -> DesiredResources:
        """Claimed CPUs for containers with claims, the shared pool for all others."""
        for use in container.uses:
            check_owner(container, use)
        return container_cpus(self.cpus, container, prepared_claims)


def device_name(cpu: int) -> str:
    """Device name of a CPU."""
    return f"{PREFIX}{cpu:03d}"
