"""Specifications: the lowest version, the same bytes, nothing a runtime would refuse."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.wire.cdi.spec import (
    KNOWN_VERSIONS,
    NO_EDITS,
    CdiDevice,
    CdiDeviceNode,
    CdiError,
    CdiMount,
    ContainerEdits,
    Hook,
    IntelRdt,
    NetDevice,
    Spec,
    check_kind,
    check_spec,
    claim_device_name,
    claim_spec,
    decode_spec,
    encode_spec,
    make_spec,
    minimum_version,
    parse_claim_device_name,
    spec_from_builtins,
)

ENV = ContainerEdits(env=("A=1",))
UID = "0a6c9a2e-5f5e-4c5e-9d7a-1f2e3d4c5b6a"

letters = st.sampled_from("abcXYZ")
inner = st.text("abcXYZ019_-.", max_size=8)
last = st.sampled_from("abc019")
names = st.one_of(letters, st.builds(lambda a, b, c: a + b + c, letters, inner, last))
device_names = st.one_of(
    last, st.builds(lambda a, b, c: a + b + c, last, st.text("abc019_-.:", max_size=8), last)
)
settings = st.builds(
    lambda name, value: f"{name}={value}",
    st.text(st.characters(codec="utf-8", exclude_characters="=\0"), min_size=1, max_size=6),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
)
words = st.text("abc/", min_size=1, max_size=6)
edits = st.builds(
    ContainerEdits,
    env=st.lists(settings, max_size=3).map(tuple),
    device_nodes=st.lists(
        st.builds(
            CdiDeviceNode,
            path=words,
            host_path=st.sampled_from(["", "/dev/x"]),
            type=st.sampled_from(["", "b", "c", "u", "p"]),
            major=st.none() | st.integers(0, 255),
            permissions=st.sampled_from(["", "r", "rwm", "none"]),
        ),
        max_size=2,
    ).map(tuple),
    mounts=st.lists(
        st.builds(
            CdiMount,
            host_path=words,
            container_path=words,
            type=st.sampled_from(["", "bind"]),
            options=st.lists(words, max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    hooks=st.lists(
        st.builds(Hook, hook_name=st.sampled_from(["prestart", "poststop"]), path=words), max_size=1
    ).map(tuple),
    intel_rdt=st.none() | st.builds(IntelRdt, clos_id=words, schemata=st.lists(words, max_size=1).map(tuple)),
    additional_gids=st.lists(st.integers(1, 99), max_size=2).map(tuple),
    net_devices=st.lists(st.builds(NetDevice, host_interface_name=words, name=words), max_size=1).map(tuple),
)
devices = st.builds(
    CdiDevice,
    name=device_names,
    annotations=st.dictionaries(words, words, max_size=1),
    container_edits=edits.filter(lambda each: each != NO_EDITS),
)
specs = st.builds(
    lambda kind, devices, annotations: make_spec(kind, devices, annotations=annotations),
    st.builds(lambda vendor, class_: f"{vendor}/{class_}", names, names),
    st.lists(devices, min_size=1, max_size=3, unique_by=lambda each: each.name),
    st.dictionaries(words, words, max_size=1),
)


@given(specs)
def test_specs_survive_a_round_trip(spec: Spec) -> None:
    data = encode_spec(spec)
    assert decode_spec(data) == spec
    assert spec_from_builtins(json.loads(data)) == spec
    assert encode_spec(decode_spec(data)) == data


@given(specs)
def test_nothing_empty_is_written(spec: Spec) -> None:
    def look(value: object) -> None:
        assert value not in ({}, [], "", None)
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            look(each)  # fmt: skip

    look(json.loads(encode_spec(spec)))


@given(specs)
def test_no_lower_version_would_do(spec: Spec) -> None:
    place = KNOWN_VERSIONS.index(spec.cdi_version)
    assert spec.cdi_version == minimum_version(spec)
    if KNOWN_VERSIONS[place] != "0.3.0":
        data = json.loads(encode_spec(spec))
        data["cdiVersion"] = KNOWN_VERSIONS[place - 1]
        with pytest.raises(CdiError, match="too low"):
            spec_from_builtins(data)


@pytest.mark.parametrize(
    ("kind", "device", "expected"),
    [
        ("dra.cpu/claim", CdiDevice(name="d", container_edits=ENV), "0.3.0"),
        ("dra.cpu/claim", CdiDevice(name="0d", container_edits=ENV), "0.5.0"),
        ("dra.cpu/a.b", CdiDevice(name="d", container_edits=ENV), "0.6.0"),
        ("v/c", CdiDevice(name="d", annotations={"a": "b"}, container_edits=ENV), "0.6.0"),
        (
            "v/c",
            CdiDevice(
                name="d",
                container_edits=ContainerEdits(mounts=(CdiMount(host_path="/a", container_path="/b"),)),
            ),
            "0.3.0",
        ),
        (
            "v/c",
            CdiDevice(
                name="d",
                container_edits=ContainerEdits(
                    mounts=(CdiMount(host_path="/", container_path="/", type="x"),)
                ),
            ),
            "0.4.0",
        ),
        (
            "v/c",
            CdiDevice(
                name="d",
                container_edits=ContainerEdits(device_nodes=(CdiDeviceNode(path="/d", host_path="/h"),)),
            ),
            "0.5.0",
        ),
        ("v/c", CdiDevice(name="d", container_edits=ContainerEdits(additional_gids=(5,))), "0.7.0"),
        (
            "v/c",
            CdiDevice(name="d", container_edits=ContainerEdits(intel_rdt=IntelRdt(clos_id="x"))),
            "0.7.0",
        ),
        (
            "v/c",
            CdiDevice(
                name="d", container_edits=ContainerEdits(intel_rdt=IntelRdt(clos_id="x", schemata=("L3",)))
            ),
            "1.1.0",
        ),
        (
            "v/c",
            CdiDevice(
                name="d",
                container_edits=ContainerEdits(net_devices=(NetDevice(host_interface_name="a", name="b"),)),
            ),
            "1.1.0",
        ),
    ],
)
def test_versions_by_feature(kind: str, device: CdiDevice, expected: str) -> None:
    assert make_spec(kind, [device]).cdi_version == expected


def test_a_claim_of_two_requests_byte_for_byte() -> None:
    spec = claim_spec(
        "dra.cpu/claim",
        UID,
        {"b": ContainerEdits(env=(f"DRA_CPUSET_{UID}=2-3",)), "a": ContainerEdits(env=("A=1",))},
    )
    assert encode_spec(spec).decode() == (
        "{\n"
        '  "cdiVersion": "0.3.0",\n'
        '  "devices": [\n'
        "    {\n"
        '      "containerEdits": {\n'
        '        "env": [\n'
        '          "A=1"\n'
        "        ]\n"
        "      },\n"
        f'      "name": "claim-{UID}_a"\n'
        "    },\n"
        "    {\n"
        '      "containerEdits": {\n'
        '        "env": [\n'
        f'          "DRA_CPUSET_{UID}=2-3"\n'
        "        ]\n"
        "      },\n"
        f'      "name": "claim-{UID}_b"\n'
        "    }\n"
        "  ],\n"
        '  "kind": "dra.cpu/claim"\n'
        "}\n"
    )
    assert spec.qualified_names() == (f"dra.cpu/claim=claim-{UID}_a", f"dra.cpu/claim=claim-{UID}_b")


def spec_of(**changes: object) -> Spec:
    parts = {"cdi_version": "0.3.0", "kind": "v/c", "devices": (CdiDevice(name="d", container_edits=ENV),)}
    return Spec(**{**parts, **changes})  # type: ignore[arg-type]


def with_edits(edits: ContainerEdits) -> Spec:
    return spec_of(cdi_version="1.1.0", devices=(CdiDevice(name="d", container_edits=edits),))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (spec_of(cdi_version="0.9.0"), "version '0.9.0' is unknown"),
        (spec_of(kind="nonsense"), "vendor must start"),
        (spec_of(kind="1v/c"), "vendor must start"),
        (spec_of(kind="v/"), "class must start"),
        (spec_of(kind="v/" + "c" * 64), "class must start"),
        (spec_of(kind="v/c-"), "class must start"),
        (spec_of(devices=()), "has no device"),
        (spec_of(devices=(CdiDevice(name="d"),)), "has no container edits"),
        (spec_of(devices=(CdiDevice(name="-d", container_edits=ENV),)), "must start and end"),
        (spec_of(devices=(CdiDevice(name="d", container_edits=ENV),) * 2), "defined twice"),
        (with_edits(ContainerEdits(env=("A",))), "not NAME=value"),
        (with_edits(ContainerEdits(env=("=a",))), "not NAME=value"),
        (with_edits(ContainerEdits(env=("A=\0",))), "not NAME=value"),
        (with_edits(ContainerEdits(device_nodes=(CdiDeviceNode(path=""),))), "needs a path"),
        (with_edits(ContainerEdits(device_nodes=(CdiDeviceNode(path="/d", type="z"),))), "needs a path"),
        (
            with_edits(ContainerEdits(device_nodes=(CdiDeviceNode(path="/d", permissions="x"),))),
            "are not rwm",
        ),
        (with_edits(ContainerEdits(mounts=(CdiMount(host_path="", container_path="/"),))), "a mount needs"),
        (with_edits(ContainerEdits(hooks=(Hook(hook_name="never", path="/x"),))), "hook 'never'"),
        (with_edits(ContainerEdits(hooks=(Hook(hook_name="prestart", path="/x", env=("",)),))), "NAME=value"),
        (
            with_edits(ContainerEdits(net_devices=(NetDevice(host_interface_name="", name="x"),))),
            "network device",
        ),
    ],
)  # fmt: skip
def test_invalid_specs_are_rejected_with_a_reason(spec: Spec, text: str) -> None:
    with pytest.raises(CdiError, match=text):
        check_spec(spec)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"cdiVersion":"0.3.0","kind":"v/c","devices":[],"new":1}', b"\xff"]
)
def test_files_that_are_not_specifications(data: bytes) -> None:
    with pytest.raises(CdiError):
        decode_spec(data)


def test_a_leading_v_is_tolerated_when_reading() -> None:
    data = encode_spec(spec_of()).replace(b"0.3.0", b"v0.3.0")
    assert decode_spec(data).cdi_version == "v0.3.0"


uids = st.from_regex(r"[a-f0-9]{8}-[a-f0-9]{4}", fullmatch=True)
requests = st.from_regex(r"[a-z]([a-z0-9-]{0,5}[a-z0-9])?", fullmatch=True)


@given(uids, requests)
def test_device_names_of_claims_lead_back_to_them(uid: str, request_name: str) -> None:
    name = claim_device_name(uid, request_name)
    assert parse_claim_device_name(name) == (uid, request_name)
    spec = claim_spec("dra.cpu/claim", uid, {request_name: ENV})
    assert spec.cdi_version == "0.3.0"


@pytest.mark.parametrize("name", ["", "claim-", "claim-x", "claim-_r", "x_y", "claim-a_b_c", "claim-a_b/c"])
def test_other_names_have_no_claim(name: str) -> None:
    assert parse_claim_device_name(name) is None


@pytest.mark.parametrize("part", ["", "a/b", "a_b", "-a", "ä"])
def test_invalid_uids_and_requests_are_rejected(part: str) -> None:
    with pytest.raises(CdiError):
        claim_device_name(part, "r")
    with pytest.raises(CdiError):
        claim_device_name("u", part)


def test_one_letter_names_are_fine() -> None:
    check_kind("v/c")
