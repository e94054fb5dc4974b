"""ttrpc frames and the multiplexer: any cut of the byte stream decodes the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drakit.wire.nri.frames import (
    HEADER,
    LONGEST_READ,
    LONGEST_SENT,
    REQUEST,
    RESPONSE,
    Frame,
    FrameDecoder,
    MessageTooLongError,
    encode_frame,
)
from drakit.wire.nri.mux import HEADER as MUX_HEADER
from drakit.wire.nri.mux import MuxDecoder, MuxError, mux_message

frames = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 255), st.binary(max_size=300))


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def decode(decoder: FrameDecoder, parts: list[bytes]) -> list[tuple[int, int, bytes | None]]:
    return [
        (frame.stream, frame.kind, None if frame.data is None else bytes(frame.data))
        for part in parts
        for frame in decoder.feed(part)
    ]


@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 5000), max_size=40))
def test_frames_survive_any_cut_of_the_stream(sent: list[tuple[int, int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(*each) for each in sent)
    decoder = FrameDecoder()
    assert decode(decoder, pieces(stream, cuts)) == sent
    assert not decoder.pending
    one_by_one = FrameDecoder()
    assert decode(one_by_one, [bytes([byte]) for byte in stream]) == sent


def test_a_half_frame_is_pending() -> None:
    decoder = FrameDecoder()
    assert list(decoder.feed(encode_frame(1, REQUEST, b"abc")[:-1])) == []
    assert decoder.pending
    assert list(decoder.feed(b"c")) == [Frame(1, REQUEST, 0, bytearray(b"abc"))]
    assert not decoder.pending


@pytest.mark.parametrize("length", [0, 1, 4085, 4086, 4087, 4096, 4097, LONGEST_SENT])
def test_lengths_around_the_edges(length: int) -> None:
    frame = encode_frame(3, RESPONSE, bytes(length))
    mux, decoder = MuxDecoder(), FrameDecoder()
    found = [
        each
        for connection, piece in mux.feed(mux_message(1, frame))
        for each in decoder.feed(piece)
        if connection == 1
    ]
    assert [(f.stream, len(f.data or b"")) for f in found] == [(3, length)]


def test_nothing_longer_than_a_peer_accepts_is_sent() -> None:
    with pytest.raises(MessageTooLongError, match="4194305 bytes is longer"):
        encode_frame(1, REQUEST, bytes(LONGEST_SENT + 1))


def test_an_old_runtime_may_send_more_than_we_may() -> None:
    decoder = FrameDecoder()
    frame = encode_frame(1, REQUEST, bytes(LONGEST_SENT * 2), LONGEST_READ)
    assert [len(f.data or b"") for f in decoder.feed(frame)] == [LONGEST_SENT * 2]


def test_a_frame_that_is_too_long_is_skipped_not_stored() -> None:
    decoder = FrameDecoder(limit=10)
    stream = encode_frame(1, REQUEST, bytes(11)) + encode_frame(3, REQUEST, b"fits")
    assert decode(decoder, [stream]) == [(1, REQUEST, None), (3, REQUEST, b"fits")]
    assert decode(decoder, [bytes([each]) for each in stream]) == [(1, REQUEST, None), (3, REQUEST, b"fits")]


@given(st.integers(0, 20_000))
def test_the_first_mux_frame_fits_a_go_peers_buffer_and_there_are_at_most_two(length: int) -> None:
    message = bytes(length)
    data, sizes = mux_message(2, message), []
    while data:
        connection, size = MUX_HEADER.unpack_from(data)
        assert connection == 2
        sizes.append(size)
        data = data[MUX_HEADER.size + size :]
    assert sizes[0] <= 4096
    assert len(sizes) <= 2
    assert sum(sizes) == length


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 2, 7]), st.binary(max_size=60)), max_size=8),
    st.lists(st.integers(0, 5000), max_size=30),
)
def test_connections_are_separated_whatever_the_chunks(
    sent: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(MUX_HEADER.pack(c, len(data)) + data for c, data in sent)
    decoder = MuxDecoder()
    streams: dict[int, bytes] = {}
    for part in pieces(stream, cuts):
        for connection, piece in decoder.feed(part):
            streams[connection] = streams.get(connection, b"") + bytes(piece)
    expected: dict[int, bytes] = {}
    for connection, data in sent:
        if data:
            expected[connection] = expected.get(connection, b"") + data
    assert streams == expected
    assert not decoder.pending


def test_a_frame_no_peer_would_send_ends_the_stream() -> None:
    with pytest.raises(MuxError, match="cannot be NRI"):
        list(MuxDecoder().feed(MUX_HEADER.pack(1, LONGEST_READ + HEADER.size + 1)))
