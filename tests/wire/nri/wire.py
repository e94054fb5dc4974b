"""Bytes and values several tests need."""

from __future__ import annotations

from hypothesis import strategies as st

from drakit.wire.nri.values import Adjustment, ContainerUpdate, NriContainer, PodSandbox, Resources, State

# Our own vectors, accepted by a Go peer (NRI 0.11 adaptation, ttrpc 1.2.7).
REGISTER = bytes.fromhex(
    "000000020000004a00000040000000010100"
    "0a1c6e72692e706b672e6170692e7631616c706861312e52756e74696d65"
    "120e5265676973746572506c7567696e"
    "1a0a0a0464656d6f12023130"
    "2080e497d012"
)  # fmt: skip
CONFIGURED = bytes.fromhex("000000010000000f00000005000000010200120310880d")
NO_CPUS = bytes.fromhex("00000001000000170000000d0000000502000a0b080912076e6f2063707573")
EMPTY_OK = bytes.fromhex("000000010000000a00000000000000070200")

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
texts = st.dictionaries(text, text, max_size=3)
numbers = st.none() | st.integers(0, 2**63 - 1)
resources = st.builds(
    Resources,
    cpus=text,
    mems=text,
    shares=st.none() | st.integers(0, 2**64 - 1),
    quota=st.none() | st.integers(-(2**63), 2**63 - 1),
    period=numbers,
    memory_limit=st.none() | st.integers(-1, 2**63 - 1),
    hugepage_limits=st.dictionaries(text, st.integers(0, 2**64 - 1), max_size=2),
    unified=texts,
)
pods = st.builds(
    PodSandbox,
    id=text,
    name=text,
    namespace=text,
    uid=text,
    labels=texts,
    annotations=texts,
    cgroup_parent=text,
)
containers = st.builds(
    NriContainer,
    id=text,
    pod_id=text,
    name=text.filter(bool),
    state=st.sampled_from(State),
    labels=texts,
    annotations=texts,
    env=st.lists(text, max_size=3).map(tuple),
    cdi_devices=st.lists(text, max_size=3).map(tuple),
    cgroups_path=text,
    resources=resources,
)
updates = st.builds(ContainerUpdate, container_id=text, resources=resources, ignore_failure=st.booleans())
adjustments = st.builds(
    Adjustment,
    resources=resources,
    env=texts,
    annotations=texts,
    cdi_devices=st.lists(text, max_size=2).map(tuple),
    updates=st.lists(updates, max_size=3).map(tuple),
)
