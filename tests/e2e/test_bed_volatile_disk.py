"""The volatile disk loses unflushed writes and nothing else; needs no machine."""

from __future__ import annotations

import random
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.bed.debian import make_image, qemu
from tests.e2e.bed.host import Ability
from tests.e2e.bed.pins import Pins
from tests.e2e.bed.volatile_disk import VolatileDisk, files_of

SIZE = 1 << 16
READ, WRITE, FLUSH, TRIM = 0, 1, 3, 4


class Client:
    """NBD client like that of the emulator."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        assert self.take(18)[:8] == b"NBDMAGIC"
        self.socket.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, 0))
        self.size, flags = struct.unpack(">QH", self.take(10))
        assert flags == 1 | 4 | 8

    def take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise ConnectionError("the disk hung up")
            data += part
        return data

    def ask(self, kind: int, offset: int, length: int, data: bytes = b"", fua: bool = False) -> int:
        head = struct.pack(">IHHQQI", 0x25609513, fua, kind, 7, offset, length)
        self.socket.sendall(head + data)
        magic, error, cookie = struct.unpack(">IIQ", self.take(16))
        assert (magic, cookie) == (0x67446698, 7)
        return int(error)

    def write(self, offset: int, data: bytes, fua: bool = False) -> None:
        assert self.ask(WRITE, offset, len(data), data, fua) == 0

    def read(self, offset: int, length: int) -> bytes:
        assert self.ask(READ, offset, length) == 0
        return self.take(length)

    def flush(self) -> None:
        assert self.ask(FLUSH, 0, 0) == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[VolatileDisk]:
    with VolatileDisk(tmp_path / "disk.sock", bytes(SIZE)) as disk:
        yield disk


@pytest.fixture
def client(disk: VolatileDisk) -> Iterator[Client]:
    client = Client(disk.path)
    with client.socket:
        yield client


def test_flushed_writes_survive_and_others_are_lost(disk: VolatileDisk, client: Client) -> None:
    assert client.size == SIZE
    client.write(0, b"flushed")
    client.flush()
    client.write(100, b"not flushed")
    assert client.read(0, 7) == b"flushed"
    assert client.read(100, 11) == b"not flushed"
    assert disk.unflushed == 1
    assert disk.after_cut()[:120] == b"flushed" + bytes(113)
    disk.cut()
    with pytest.raises((ConnectionError, BrokenPipeError)):
        client.flush()
    disk.switch_on()
    again = Client(disk.path)
    with again.socket:
        assert again.read(0, 120) == b"flushed" + bytes(113)


def test_a_write_with_fua_is_durable_alone(disk: VolatileDisk, client: Client) -> None:
    client.write(0, b"before")
    client.write(100, b"at once", fua=True)
    left = disk.after_cut()
    assert left[:6] == bytes(6)
    assert left[100:107] == b"at once"


def test_a_power_cut_may_keep_any_part_of_the_unflushed_writes(disk: VolatileDisk, client: Client) -> None:
    client.write(1024, bytes([1]) * 4096)  # the end of one sector and the beginning of the next
    client.write(8192, bytes([2]) * 512)
    seen = {
        (left[1024], left[4096], left[8192])
        for left in (disk.after_cut(random.Random(seed)) for seed in range(100))
    }
    assert seen == {(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 2)}
    for seed in range(20):
        left = disk.after_cut(random.Random(seed))
        assert len(set(left[1024:4096])) == len(set(left[4096:5120])) == 1, "a sector is torn"


def test_a_forced_write_is_not_lost_to_an_older_one(disk: VolatileDisk, client: Client) -> None:
    client.write(0, bytes([1]) * 512)
    client.write(0, bytes([2]) * 512, fua=True)
    assert {disk.after_cut(random.Random(seed))[0] for seed in range(50)} == {2}


def test_the_power_can_fail_at_any_write(disk: VolatileDisk, client: Client) -> None:
    client.write(0, b"a")
    client.flush()
    disk.observer = disk.cut
    with pytest.raises(ConnectionError):
        client.write(0, b"b")
    assert disk.after_cut()[:1] == b"a"


def test_nothing_is_answered_while_the_power_is_off(disk: VolatileDisk) -> None:
    disk.cut()
    client = Client(disk.path)
    with client.socket, pytest.raises(ConnectionError):
        client.flush()


def test_unsupported_requests_are_errors(client: Client) -> None:
    assert client.ask(TRIM, 0, 512) == 22
    assert client.ask(READ, SIZE - 1, 2) == 22


def test_the_emulator_writes_and_flushes(disk: VolatileDisk, ability: Ability, pins: Pins) -> None:
    if not ability.vm:
        pytest.skip(f"no emulator on this machine: {ability.why_not()}")
    program = qemu(pins).program("qemu-io")
    where = f"nbd+unix:///?socket={disk.path}"

    def do(*commands: str) -> str:
        words = [word for command in commands for word in ("-c", command)]
        done = subprocess.run([*program, "-f", "raw", *words, where], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    do("write -P 5 0 4096", "flush")
    assert disk.flushes
    assert disk.after_cut()[:4096] == bytes([5]) * 4096
    assert "pattern" not in do("read -P 5 0 4096").lower()


def test_files_are_read_from_a_file_system_that_was_cut_off(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "claims").mkdir(parents=True)
    (tree / "claims" / "a.json").write_text("{}")
    make_image(tmp_path / "image", tree, "8M", tmp_path / "log")
    image = (tmp_path / "image").read_bytes()
    found = files_of(image, "/claims", tmp_path / "found")
    assert [each.name for each in found.iterdir()] == ["a.json"]
    with pytest.raises(RuntimeError, match="damaged"):
        files_of(image[: len(image) // 2] + bytes(len(image) // 2)[:100], "/claims", tmp_path / "x")
