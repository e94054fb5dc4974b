"""A small world for prepare and unprepare: a driver of numbered things, claims, plain CDI files."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

from drakit.core import atomicfile
from drakit.core.cpuset import CpuSet
from drakit.core.objects import (
    AllocatedConfiguration,
    AllocationResult,
    ConsumerReference,
    Device,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ObjectMeta,
    OpaqueConfiguration,
    ResourceClaim,
    ResourceClaimStatus,
    int_attribute,
)
from drakit.kit.claims.cdi_names import ClaimRequest, qualified_name
from drakit.kit.claims.resource_claims import ClaimSourceError
from drakit.kit.driver import Assignment, Offer, PoolOffer, PreparedDevice, RejectedError

DRIVER = "numbers.example.com"
NODE = "node-1"


@dataclass(frozen=True)
class NumberDriver:
    """Offers one shared device of numbers; each share gets the lowest free number."""

    numbers: int = 8
    name: str = DRIVER
    cdi_kind: str = "example.com/number"
    cpuset_kinds: frozenset[str] = frozenset()

    def offer(self):
        devices = (Device(name="numbers", allow_multiple_allocations=True),)
        return Offer((PoolOffer(devices, name=NODE),))

    def assign(self, claim, prepared_claims):
        free = CpuSet(range(self.numbers)) - prepared_claims.exclusive("number")
        prepared_devices = []
        for allocated in claim.devices:
            if not free:
                raise RejectedError("no number is free", reason="capacity")
            number = min(free)
            free -= CpuSet([number])
            prepared_devices.append(
                PreparedDevice(
                    request=allocated.base_request,
                    pool=allocated.pool,
                    device=allocated.device,
                    share_id=allocated.share_id,
                    admin_access=allocated.admin_access,
                    exclusive={"number": CpuSet([number])},
                    env={f"NUMBER_{claim.uid}": str(number)},
                    attributes={"number": int_attribute(number)},
                    data={"config": [c.parameters for c in allocated.config]},
                )
            )
        return Assignment(tuple(prepared_devices))


class FileCdi:
    """CDI specs as plain files, with the durable steps of the real ones."""

    def __init__(self, directory, kind="example.com/number"):
        self.directory = directory
        self.kind = kind

    def path(self, uid):
        return os.path.join(self.directory, f"{uid}.json")

    def write(self, entry, mounts):
        atomicfile.ensure_directory(self.directory)
        ids = {
            g.request: qualified_name(self.kind, ClaimRequest(entry.uid, g.request)) for g in entry.devices
        }
        content = {
            "ids": ids,
            "env": [dict(g.env) for g in entry.devices],
            "mounts": {request: mount.host_path for request, mount in mounts.items()},
        }
        data = json.dumps(content, sort_keys=True).encode()
        try:
            with open(self.path(entry.uid), "rb") as file:
                same = file.read() == data
        except FileNotFoundError:
            same = False
        if not same:
            atomicfile.write_atomic(self.path(entry.uid), data, 0o644)
        return ids

    def remove(self, uid):
        atomicfile.remove_durably(self.path(uid))

    def keep_only(self, uids):
        atomicfile.clean_temporaries(self.directory)
        for uid in self.listed() - set(uids):
            self.remove(uid)

    def listed(self):
        if not os.path.isdir(self.directory):
            return set()
        return {n.removesuffix(".json") for n in os.listdir(self.directory) if n.endswith(".json")}

    def read(self, uid):
        with open(self.path(uid), encoding="utf-8") as file:
            return json.load(file)


class FakeNode:
    """The rest of a driver that :class:`~drakit.kit.claims.preparer.Preparer` needs, always ready."""

    def __init__(self, driver, changes=None, not_ready=lambda: None, provision=None):
        self.driver = driver
        self._changes = changes
        self._not_ready = not_ready
        self._provision = provision

    @property
    def offer(self):
        return self.driver.offer()

    @property
    def not_ready(self):
        return self._not_ready()

    def user_of(self, uid):
        return None

    async def provision(self, claim, prepared_claims):
        if self._provision is not None:
            await self._provision(claim, prepared_claims)

    def claims_changed(self, prepared_claims, *, update_containers):
        if self._changes is not None:
            self._changes.append(set(prepared_claims.entries))

    async def evict_others(self, claim):
        pass


@dataclass
class Claims:
    """The API server, as far as claims go."""

    documents: dict = field(default_factory=dict)
    away: bool = False

    async def get(self, namespace, name):
        if self.away:
            raise ClaimSourceError("the API server does not answer")
        return self.documents.get((namespace, name))

    def add(self, document):
        self.documents[document.metadata.namespace, document.metadata.name] = document
        return document


def result(request="req", device="numbers", share="share", **more):
    options = {"driver": DRIVER, "pool": NODE, "share_id": share, **more}
    return DeviceRequestAllocationResult(request=request, device=device, **options)


def config(parameters, requests=(), source="FromClaim", driver=DRIVER):
    return AllocatedConfiguration(
        source=source, requests=requests, opaque=OpaqueConfiguration(driver=driver, parameters=parameters)
    )


def resource_claim(name="claim", uid=None, results=None, configs=(), pods=("pod-uid",), annotations=None):
    uid = uid or f"uid-{name}"
    if results is None:
        results = (result(share=f"share-{uid}"),)
    return ResourceClaim(
        metadata=ObjectMeta(name=name, namespace="default", uid=uid, annotations=annotations or {}),
        status=ResourceClaimStatus(
            allocation=AllocationResult(devices=DeviceAllocationResult(results=results, config=configs)),
            reserved_for=tuple(ConsumerReference(resource="pods", name=pod, uid=pod) for pod in pods),
        ),
    )
