"""Decoders meet damaged bytes: a typed error or a value, never anything else.

100 000 inputs for each: see :mod:`tests.wire.damage`.
"""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError

from drakit.wire.cdi.spec import (
    CdiDevice,
    CdiDeviceNode,
    CdiError,
    CdiMount,
    ContainerEdits,
    Hook,
    decode_spec,
    encode_spec,
    make_spec,
)
from drakit.wire.nri import nri_pb2
from drakit.wire.nri.event_table import Event
from drakit.wire.nri.events import (
    PLUGIN_SERVICE_NAME,
    Configure,
    RuntimeEvent,
    Synchronize,
    decode_call,
    encode_call,
)
from drakit.wire.nri.frames import FrameDecoder
from drakit.wire.nri.mux import MuxDecoder, MuxError
from drakit.wire.nri.session import RpcRequest, RpcResponse, Session, StatusError
from drakit.wire.nri.values import (
    Adjustment,
    ContainerUpdate,
    NriContainer,
    PodSandbox,
    Resources,
    State,
    adjustment_from,
    adjustment_to,
    update_from,
    update_to,
)
from tests.wire.damage import damaged, survive
from tests.wire.nri.wire import CONFIGURED, EMPTY_OK, NO_CPUS, REGISTER

INPUTS = 100_000

POD = PodSandbox(id="p", name="pod", namespace="ns", uid="u", labels={"a": "b"}, cgroup_parent="/k")
LIMITS = Resources(cpus="0-3", mems="0", shares=2, quota=-1, memory_limit=5, unified={"a": "1"})
CONTAINER = NriContainer(
    id="c", pod_id="p", name="n", state=State.RUNNING, env=("A=1",), cdi_devices=("v/c=d",),
    labels={"x": "y"}, resources=LIMITS,
)  # fmt: skip


def test_session(scale: int) -> None:
    samples = [REGISTER, CONFIGURED, NO_CPUS, EMPTY_OK, REGISTER + CONFIGURED + NO_CPUS]
    chance = random.Random(1)

    def work(data: bytes) -> None:
        session = Session(serve=1, call=2)
        other = Session(serve=2, call=1)
        at = chance.randrange(len(data) + 1)
        for part in (data[:at], data[at:]):
            for event in (*session.receive(part), *other.receive(part)):
                assert isinstance(event, RpcRequest | RpcResponse)
        session.output()
        other.output()

    assert survive(work, MuxError, damaged(samples, 2, INPUTS * scale)) > len(samples)


def test_frames_whatever_their_bytes_use_every_byte(scale: int) -> None:
    chance = random.Random(3)

    def work(data: bytes) -> None:
        whole, pieces = FrameDecoder(200), FrameDecoder(200)
        expected = list(whole.feed(data))
        at = chance.randrange(len(data) + 1)
        assert [*pieces.feed(data[:at]), *pieces.feed(data[at:])] == expected
        assert pieces.pending == whole.pending

    samples = [CONFIGURED[8:], NO_CPUS[8:] + EMPTY_OK[8:], REGISTER[8:]]
    survive(work, ZeroDivisionError, damaged(samples, 4, INPUTS * scale))


def test_mux(scale: int) -> None:
    def work(data: bytes) -> None:
        total = sum(len(piece) for _, piece in MuxDecoder().feed(data))
        assert total <= len(data)

    survive(work, MuxError, damaged([REGISTER, CONFIGURED + EMPTY_OK], 5, INPUTS * scale))


@pytest.mark.parametrize(
    "call",
    [
        Configure(runtime_name="containerd", runtime_version="v2.4.0", request_timeout=2.0),
        Synchronize(pods=(POD, POD), containers=(CONTAINER, CONTAINER), more=True),
        RuntimeEvent(event=Event.CREATE_CONTAINER, pod=POD, container=CONTAINER),
        RuntimeEvent(event=Event.UPDATE_CONTAINER, pod=POD, container=CONTAINER, resources=LIMITS),
        RuntimeEvent(event=Event.START_CONTAINER, pod=POD, container=CONTAINER),
    ],
    ids=lambda call: type(call).__name__,
)
def test_calls(call: Configure, scale: int) -> None:
    method, payload = encode_call(call)
    samples = [payload]
    inputs = damaged(samples, 6, INPUTS * scale)
    accepted = survive(lambda data: decode_call(PLUGIN_SERVICE_NAME, method, data), StatusError, inputs)
    assert accepted > 1


def test_state_changes(scale: int) -> None:
    change = RuntimeEvent(event=Event.START_CONTAINER, pod=POD, container=CONTAINER)
    method, payload = encode_call(change, as_state_change=True)
    inputs = damaged([payload], 7, INPUTS * scale)
    assert survive(lambda data: decode_call(PLUGIN_SERVICE_NAME, method, data), StatusError, inputs)


def test_answers(scale: int) -> None:
    update = ContainerUpdate(container_id="c", resources=LIMITS)
    adjustment = adjustment_to(Adjustment(resources=LIMITS, env={"A": "1"}, updates=(update,)))

    def work(data: bytes) -> None:
        adjustment_from(nri_pb2.CreateContainerResponse.FromString(data))
        update_from(nri_pb2.ContainerUpdate.FromString(data))

    samples = [adjustment.SerializeToString(), update_to(update).SerializeToString()]
    assert survive(work, (DecodeError, ValueError), damaged(samples, 8, INPUTS * scale))


def test_cdi(scale: int) -> None:
    edits = ContainerEdits(
        env=("A=1",),
        device_nodes=(CdiDeviceNode(path="/dev/x", type="c", permissions="rw"),),
        mounts=(CdiMount(host_path="/a", container_path="/b"),),
        hooks=(Hook(hook_name="prestart", path="/c"),),
    )
    spec = make_spec("dra.cpu/claim", [CdiDevice(name="d", container_edits=edits)])
    samples = [encode_spec(spec), b'{"cdiVersion":"0.3.0"}', b"[]", b""]

    def work(data: bytes) -> None:
        decoded = decode_spec(data)
        assert decode_spec(encode_spec(decoded)) == decoded

    assert survive(work, CdiError, damaged(samples, 9, INPUTS * scale)) >= 1
