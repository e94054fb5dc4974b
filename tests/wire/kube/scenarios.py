"""API scenarios that run against the fake and against a real API server.

Each takes a client and a unique word, and fails when the server or the client misbehaves. Both runs
together show that the fake behaves like the real server.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest

from drakit.core.objects import Device, ObjectMeta, ResourcePool, ResourceSlice, ResourceSliceSpec, Taint
from drakit.wire.kube import (
    CLAIMS,
    NODES,
    SLICES,
    AlreadyExistsError,
    BadRequestError,
    Client,
    ConflictError,
    EventKind,
    InvalidError,
    NotFoundError,
    Object,
    Resource,
    Selection,
)

CONFIG_MAPS: Resource[dict[str, Any]] = Resource("", "v1", "configmaps", "ConfigMap", dict)


def slice_of(
    word: str, *names: str, pool: str = "pool", generate_name: str = "", name: str = ""
) -> ResourceSlice:
    metadata = ObjectMeta(name=name, generate_name=generate_name or ("" if name else f"{word}-"))
    return ResourceSlice(
        metadata=metadata,
        spec=ResourceSliceSpec(
            driver=f"{word}.example.com",
            node_name=f"{word}-node",
            pool=ResourcePool(name=pool, generation=1, resource_slice_count=1),
            devices=tuple(Device(name=n) for n in names),
        ),
    )


def selection_of(word: str) -> Selection:
    return Selection(fields=f"spec.driver={word}.example.com,spec.nodeName={word}-node")


def claim_of(name: str) -> dict[str, Any]:
    request = {"name": "r", "exactly": {"deviceClassName": "c"}}
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}


async def an_object_is_created_read_and_deleted(client: Client, word: str) -> None:
    made = await client.create(SLICES, slice_of(word, "a", "b"))
    assert made.name.startswith(f"{word}-")
    assert made.uid
    assert made.resource_version
    read = await client.get(SLICES, made.name)
    assert read.raw == made.raw
    assert [device.name for device in read.typed.spec.devices] == ["a", "b"]
    await client.delete(SLICES, made.name, uid=made.uid, resource_version=made.resource_version)
    with pytest.raises(NotFoundError):
        await client.get(SLICES, made.name)
    with pytest.raises(NotFoundError):
        await client.delete(SLICES, made.name)


async def a_stale_update_is_a_conflict(client: Client, word: str) -> None:
    made = await client.create(SLICES, slice_of(word, "a"))
    document = {**made.raw, "spec": {**made.raw["spec"], "devices": [{"name": "b"}]}}
    changed = await client.update(SLICES, document, name=made.name)
    assert changed.resource_version != made.resource_version
    assert changed.uid == made.uid
    with pytest.raises(ConflictError) as caught:
        await client.update(SLICES, document, name=made.name)
    assert not isinstance(caught.value, AlreadyExistsError)
    again = await client.update(SLICES, changed.raw, name=made.name)
    assert again.resource_version == changed.resource_version


async def an_immutable_field_stays(client: Client, word: str) -> None:
    made = await client.create(SLICES, slice_of(word, "a"))
    for change in (
        {"driver": "other.example.com"},
        {"nodeName": "other"},
        {"pool": {**made.raw["spec"]["pool"], "name": "other"}},
    ):
        with pytest.raises(InvalidError) as caught:
            document = {**made.raw, "spec": {**made.raw["spec"], **change}}
            await client.update(SLICES, document, name=made.name)
        assert caught.value.failure.details["causes"]


async def a_taken_name_is_said(client: Client, word: str) -> None:
    await client.create(SLICES, slice_of(word, "a", name=f"{word}-x"))
    with pytest.raises(AlreadyExistsError):
        await client.create(SLICES, slice_of(word, "a", name=f"{word}-x"))


async def a_generated_name_is_cut(client: Client, word: str) -> None:
    long = f"00000-{word}-{'n' * 80}-"
    made = await client.create(SLICES, slice_of(word, "a", generate_name=long))
    assert len(made.name) == 63
    assert made.name.startswith(long[:58])


async def preconditions_protect(client: Client, word: str) -> None:
    made = await client.create(SLICES, slice_of(word, "a"))
    with pytest.raises(ConflictError):
        await client.delete(SLICES, made.name, uid="00000000-0000-4000-8000-000000000000")
    with pytest.raises(ConflictError):
        await client.delete(SLICES, made.name, uid=made.uid, resource_version="1")
    assert (await client.get(SLICES, made.name)).uid == made.uid


async def pages_make_one_list(client: Client, word: str) -> None:
    names = {(await client.create(SLICES, slice_of(word, f"d{i}"))).name for i in range(7)}
    for page in (2, 3, 7, 250):
        listing = await client.list(SLICES, selection_of(word), page=page)
        assert {item.name for item in listing.items} == names
        assert listing.resource_version
        assert all(item.typed.kind == "ResourceSlice" for item in listing.items)


async def selectors_select(client: Client, word: str) -> None:
    made = await client.create(SLICES, slice_of(word, "a"))
    await client.create(SLICES, slice_of(f"{word}x", "a"))
    found = await client.list(SLICES, selection_of(word))
    assert [item.uid for item in found.items] == [made.uid]
    nothing = await client.list(SLICES, Selection(fields=f"spec.nodeName={word}-other"))
    assert nothing.items == ()
    with pytest.raises(BadRequestError):
        await client.list(SLICES, Selection(fields="spec.color=red"))


async def a_watch_tells_all_in_order(client: Client, word: str) -> None:
    start = await client.list(SLICES, selection_of(word))
    made = await client.create(SLICES, slice_of(word, "a"))
    await client.create(SLICES, slice_of(f"{word}x", "a"))
    document = {**made.raw, "spec": {**made.raw["spec"], "devices": [{"name": "b"}]}}
    changed = await client.update(SLICES, document, name=made.name)
    await client.delete(SLICES, made.name)
    seen: list[tuple[EventKind, Object[ResourceSlice]]] = []
    stream = client.watch(SLICES, selection_of(word), resource_version=start.resource_version, seconds=60)
    async with contextlib.aclosing(stream):
        async for event in stream:
            if event.kind is not EventKind.BOOKMARK:
                seen.append((event.kind, event.object))
            if len(seen) == 3:
                break
    assert [kind for kind, _ in seen] == [EventKind.ADDED, EventKind.MODIFIED, EventKind.DELETED]
    versions = [int(item.resource_version) for _, item in seen]
    assert versions == sorted(set(versions))
    assert versions[:2] == [int(made.resource_version), int(changed.resource_version)]
    assert {item.uid for _, item in seen} == {made.uid}


async def a_watch_ends_when_its_time_is_over(client: Client, word: str) -> None:
    start = await client.list(SLICES, selection_of(word))
    stream = client.watch(SLICES, selection_of(word), resource_version=start.resource_version, seconds=1)
    kinds = {event.kind async for event in stream}
    assert kinds <= {EventKind.BOOKMARK}


async def a_watch_from_the_future_is_silent(client: Client, word: str) -> None:
    """As after a restore of etcd: no error, and nothing is told. Hence the reflector's suspicion."""
    listing = await client.list(SLICES, selection_of(word))
    future = str(int(listing.resource_version) + 1_000_000)
    await client.create(SLICES, slice_of(word, "a"))
    stream = client.watch(SLICES, selection_of(word), resource_version=future, seconds=1)
    assert [event.kind async for event in stream] == []


async def patches_change_parts(client: Client, word: str) -> None:
    made = await client.create(SLICES, slice_of(word, "a"))
    merged = await client.patch(SLICES, made.name, {"metadata": {"labels": {"x": "1"}}})
    assert merged.typed.metadata.labels == {"x": "1"}
    cleared = await client.patch(SLICES, made.name, {"metadata": {"labels": None}})
    assert cleared.typed.metadata.labels == {}
    assert cleared.typed.spec == made.typed.spec


async def apply_owns_what_it_says(client: Client, word: str) -> None:
    def body(**data: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": word, "namespace": "default"},
            "data": data,
        }

    async def apply(document: dict[str, Any], manager: str, *, force: bool = False) -> Any:
        answer = await client.apply(
            CONFIG_MAPS, document, name=word, namespace="default", field_manager=manager, force=force
        )
        return answer.raw.get("data")

    assert await apply(body(a="1", b="1"), "first") == {"a": "1", "b": "1"}
    assert await apply(body(a="1"), "first") == {"a": "1"}
    assert await apply(body(c="1"), "second") == {"a": "1", "c": "1"}
    with pytest.raises(ConflictError):
        await apply(body(a="2"), "second")
    assert await apply(body(a="2"), "second", force=True) == {"a": "2"}
    await client.delete(CONFIG_MAPS, word, namespace="default")


async def status_is_apart(client: Client, word: str) -> None:
    made = await client.create(NODES, {"metadata": {"name": word}})
    told = await client.patch(NODES, word, {"status": {"capacity": {"cpu": "4"}}}, subresource="status")
    assert str(told.typed.status.capacity["cpu"]) == "4"
    document = {**told.raw, "status": {"capacity": {"cpu": "8"}}}
    document["metadata"] = {**told.raw["metadata"], "labels": {"x": "y"}}
    changed = await client.update(NODES, document, name=word)
    assert changed.typed.metadata.labels["x"] == "y"
    assert str(changed.typed.status.capacity["cpu"]) == "4"
    assert changed.uid == made.uid


async def a_dry_run_leaves_nothing(client: Client, word: str) -> None:
    made = await client.create(SLICES, slice_of(word, "a", name=f"{word}-dry"), dry_run=True)
    assert made.name == f"{word}-dry"
    with pytest.raises(NotFoundError):
        await client.get(SLICES, made.name)


async def namespaces_are_apart(client: Client, word: str) -> None:
    claim = {
        "metadata": {"name": word},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
    }
    made = await client.create(CLAIMS, claim, namespace="default")
    assert made.namespace == "default"
    assert (await client.get(CLAIMS, word, namespace="default")).uid == made.uid
    everywhere = await client.list(CLAIMS)
    assert made.uid in {item.uid for item in everywhere.items}
    elsewhere = await client.list(CLAIMS, Selection(namespace="kube-system"))
    assert made.uid not in {item.uid for item in elsewhere.items}
    await client.delete(CLAIMS, word, namespace="default")


async def the_server_counts_generations(client: Client, word: str) -> None:
    """Of a slice: 1 at first, one more for another spec, the same for other metadata; of a claim: none."""
    made = await client.create(SLICES, slice_of(word, "a"))
    assert made.raw["metadata"]["generation"] == 1
    labeled = await client.patch(SLICES, made.name, {"metadata": {"labels": {"x": "1"}}})
    assert labeled.raw["metadata"]["generation"] == 1
    changed = await client.patch(SLICES, made.name, {"spec": {"devices": [{"name": "b"}]}})
    assert changed.raw["metadata"]["generation"] == 2
    claim = await client.create(CLAIMS, claim_of(word), namespace="default")
    assert "generation" not in claim.raw["metadata"]
    await client.delete(CLAIMS, word, namespace="default")


async def a_created_claim_has_no_status(client: Client, word: str) -> None:
    """Whoever creates a ResourceClaim cannot allocate or reserve it in the same request."""
    reserved = [{"resource": "pods", "name": "p", "uid": "u"}]
    body = {**claim_of(word), "status": {"reservedFor": reserved}}
    made = await client.create(CLAIMS, body, namespace="default")
    assert not made.raw.get("status")
    await client.delete(CLAIMS, word, namespace="default")


async def finalizers_keep_a_deleted_object(client: Client, word: str) -> None:
    metadata = {"name": word, "finalizers": ["example.com/hold"]}
    made = await client.create(CONFIG_MAPS, {"metadata": metadata}, namespace="default")
    await client.delete(CONFIG_MAPS, word, namespace="default")
    held = await client.get(CONFIG_MAPS, word, namespace="default")
    assert held.raw["metadata"]["deletionTimestamp"]
    assert held.resource_version != made.resource_version
    await client.delete(CONFIG_MAPS, word, namespace="default")
    again = await client.get(CONFIG_MAPS, word, namespace="default")
    assert again.resource_version == held.resource_version
    released = {"metadata": {"finalizers": None}}
    await client.patch(CONFIG_MAPS, word, released, namespace="default")
    with pytest.raises(NotFoundError):
        await client.get(CONFIG_MAPS, word, namespace="default")


async def a_watch_without_a_version_begins_with_what_exists(client: Client, word: str) -> None:
    made = await client.create(SLICES, slice_of(word, "a"))
    stream = client.watch(SLICES, selection_of(word), resource_version="", seconds=60)
    async with contextlib.aclosing(stream):
        first = await anext(stream)
    assert (first.kind, first.object.uid) == (EventKind.ADDED, made.uid)


async def who_leaves_a_selection_is_deleted_for_its_watch(client: Client, word: str) -> None:
    selected = Selection(namespace="default", labels=f"word={word}")
    start = await client.list(CONFIG_MAPS, selected)
    await client.create(CONFIG_MAPS, {"metadata": {"name": word}}, namespace="default")
    for value in (word, "other", None):
        labels = {"metadata": {"labels": {"word": value}}}
        last = await client.patch(CONFIG_MAPS, word, labels, namespace="default")
    stream = client.watch(CONFIG_MAPS, selected, resource_version=start.resource_version, seconds=60)
    seen = []
    async with contextlib.aclosing(stream):
        async for event in stream:
            if event.kind is not EventKind.BOOKMARK:
                seen.append(event)
            if len(seen) == 2:
                break
    assert [event.kind for event in seen] == [EventKind.ADDED, EventKind.DELETED]
    added, deleted = (event.object for event in seen)
    assert deleted.raw["metadata"]["labels"] == {"word": word}, "as it was when it was selected"
    versions = [int(each.resource_version) for each in (added, deleted, last)]
    assert versions == sorted(set(versions)), "with the version of the change that ended it"
    await client.delete(CONFIG_MAPS, word, namespace="default")


async def pages_are_of_one_moment(client: Client, word: str) -> None:
    """What is created or deleted while pages are read does not change the pages."""
    for number in range(3):
        await client.create(SLICES, slice_of(word, "a", name=f"{word}-{number}"))
    fields = selection_of(word).fields.replace("=", "%3D")
    path = f"{SLICES.path()}?limit=2&fieldSelector={fields}"
    first = await client.get_document(path)
    assert [item["metadata"]["name"] for item in first["items"]] == [f"{word}-0", f"{word}-1"]
    assert not {"apiVersion", "kind"} & first["items"][0].keys()
    assert "remainingItemCount" not in first["metadata"], "not counted with a selector"
    await client.delete(SLICES, f"{word}-2")
    await client.create(SLICES, slice_of(word, "a", name=f"{word}-9"))
    rest = await client.get_document(f"{path}&continue={first['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in rest["items"]] == [f"{word}-2"]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert not rest["metadata"].get("continue")
    everything = await client.get_document(f"{SLICES.path()}?limit=1")
    assert everything["metadata"]["remainingItemCount"] >= 2


async def selectors_exclude_and_know_the_pool(client: Client, word: str) -> None:
    made = await client.create(SLICES, slice_of(word, "a", pool=f"{word}-pool"))
    for fields, there in (
        (f"spec.pool.name={word}-pool", True),
        (f"spec.driver={word}.example.com,spec.pool.name!={word}-pool", False),
        (f"spec.driver={word}.example.com,spec.pool.name!=other", True),
        (f"metadata.name={made.name}", True),
    ):
        found = await client.list(SLICES, Selection(fields=fields))
        assert [item.uid for item in found.items] == ([made.uid] if there else [])


async def patches_that_do_not_fit_change_nothing(client: Client, word: str) -> None:
    made = await client.create(SLICES, slice_of(word, "a"))
    stale = {"metadata": {"resourceVersion": "1", "labels": {"x": "1"}}}
    with pytest.raises(ConflictError):
        await client.patch(SLICES, made.name, stale)
    with pytest.raises(NotFoundError):
        await client.patch(SLICES, f"{word}-missing", {"metadata": {"labels": {"x": "1"}}})
    assert (await client.get(SLICES, made.name)).resource_version == made.resource_version


async def a_name_is_required(client: Client, word: str) -> None:
    body = slice_of(word, "a")
    with pytest.raises(InvalidError):
        await client.create(SLICES, msgspec.structs.replace(body, metadata=ObjectMeta()))


async def what_is_not_served_is_not_found(client: Client, word: str) -> None:
    with pytest.raises(NotFoundError, match="could not find the requested resource"):
        await client.get_document(f"/apis/resource.k8s.io/v1/{word}")


async def a_taint_gets_its_time(client: Client, word: str) -> None:
    device = Device(name="a", taints=(Taint(key="example.com/t", effect="NoSchedule"),))
    body = slice_of(word)
    body = msgspec.structs.replace(body, spec=msgspec.structs.replace(body.spec, devices=(device,)))
    made = await client.create(SLICES, body)
    (taint,) = made.raw["spec"]["devices"][0]["taints"]
    assert taint["timeAdded"]


async def the_version_is_told(client: Client, word: str) -> None:
    del word
    assert (await client.get_document("/version"))["gitVersion"].startswith("v1.")


SCENARIOS = [
    the_server_counts_generations,
    a_created_claim_has_no_status,
    finalizers_keep_a_deleted_object,
    a_watch_without_a_version_begins_with_what_exists,
    who_leaves_a_selection_is_deleted_for_its_watch,
    pages_are_of_one_moment,
    selectors_exclude_and_know_the_pool,
    patches_that_do_not_fit_change_nothing,
    a_name_is_required,
    what_is_not_served_is_not_found,
    a_taint_gets_its_time,
    a_dry_run_leaves_nothing,
    a_generated_name_is_cut,
    a_stale_update_is_a_conflict,
    a_taken_name_is_said,
    a_watch_from_the_future_is_silent,
    a_watch_ends_when_its_time_is_over,
    a_watch_tells_all_in_order,
    an_immutable_field_stays,
    an_object_is_created_read_and_deleted,
    apply_owns_what_it_says,
    namespaces_are_apart,
    pages_make_one_list,
    patches_change_parts,
    preconditions_protect,
    selectors_select,
    status_is_apart,
    the_version_is_told,
]
