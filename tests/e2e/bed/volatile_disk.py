"""Simulated disk that loses all writes that were not flushed when the power fails.

It is served to the emulator through NBD, by a thread of this process. Writes are kept in memory; only a flush
(or a write with FUA, for itself) makes them durable. A power cut discards the rest, or keeps an arbitrary
part of it, because the cache of a real disk may write in any order. :meth:`VolatileDisk.after_cut` computes
the state after a power cut at this moment, so that many states can be tested without a reboot.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from .node import Node

_MAGIC, _OPTION_MAGIC, _REPLY_MAGIC = 0x4E42444D41474943, 0x49484156454F5054, 0x3E889045565A9
_REQUEST, _SIMPLE_REPLY = 0x25609513, 0x67446698
_FIXED_NEWSTYLE, _NO_ZEROES = 1, 2
_OPT_EXPORT_NAME, _OPT_ABORT, _OPT_GO = 1, 2, 7
_REP_ACK, _REP_INFO, _REP_UNSUPPORTED = 1, 3, (1 << 31) + 1
_HAS_FLAGS, _SEND_FLUSH, _SEND_FUA = 1, 4, 8
_READ, _WRITE, _DISCONNECT, _FLUSH = 0, 1, 2, 3
_FUA = 1
_EINVAL = 22
_SECTOR = 4096
"""The unit of an atomic write, as in disks with sectors of 4 KiB."""


class VolatileDisk:
    """The disk and its server on the unix socket ``path``; closed at the end of a ``with`` block."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        self.flushes = 0
        self.observer: Callable[[], None] | None = None
        """Called after every write and flush, before the response; may read the state and cut the power."""
        self._durable = bytearray(content)
        self._current = bytearray(content)
        self._pending: list[tuple[int, bytes, bool]] = []
        self._on = True
        self._lock = threading.RLock()
        self._connections: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(4)
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._disconnect()
        self.path.unlink(missing_ok=True)

    def qemu_arguments(self) -> list[str]:
        """The disk on QEMU's command line, after the others."""
        path = str(self.path).replace(",", ",,")
        server = f"file.driver=nbd,file.server.type=unix,file.server.path={path}"
        return ["-drive", f"{server},if=virtio,format=raw,cache=writeback"]

    # -- power -------------------------------------------------------------------------------------

    def after_cut(self, dice: random.Random | None = None) -> bytes:
        """The content after a power cut at this moment.

        Without *dice*, only flushed writes are kept; with it, also an arbitrary part of the rest.
        """
        with self._lock:
            return self._left(dice)

    def cut(self, dice: random.Random | None = None) -> None:
        """Cut the power: unflushed writes are lost, and requests are no longer answered."""
        with self._lock:
            left = self._left(dice)
            self._durable, self._current = bytearray(left), bytearray(left)
            self._pending.clear()
            self._on = False
        self._disconnect()

    def switch_on(self) -> None:
        """Restore the power."""
        with self._lock:
            self._on = True

    @property
    def unflushed(self) -> int:
        """How many writes a cut could lose now."""
        with self._lock:
            return len(self._pending)

    def _left(self, dice: random.Random | None) -> bytes:
        left = bytearray(self._durable)
        for offset, data, forced in self._pending if dice is not None else ():
            for start, part in _sectors(offset, data):
                if forced or (dice is not None and dice.random() < 0.5):
                    left[start : start + len(part)] = part
        return bytes(left)

    # -- the server --------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _disconnect(self) -> None:
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, EOFError):
            if self._greet(connection):
                while self._answer(connection):
                    pass
        with self._lock:
            self._connections.discard(connection)

    def _greet(self, connection: socket.socket) -> bool:
        """Negotiate the export; return whether the client stays."""
        flags = _FIXED_NEWSTYLE | _NO_ZEROES
        connection.sendall(struct.pack(">QQH", _MAGIC, _OPTION_MAGIC, flags))
        (client,) = struct.unpack(">I", _receive(connection, 4))
        what = struct.pack(">QH", len(self._durable), _HAS_FLAGS | _SEND_FLUSH | _SEND_FUA)
        while True:
            _, option, length = struct.unpack(">QII", _receive(connection, 16))
            _receive(connection, length)
            if option == _OPT_EXPORT_NAME:
                connection.sendall(what + (b"" if client & _NO_ZEROES else bytes(124)))
                return True
            if option == _OPT_GO:
                _reply(connection, option, _REP_INFO, struct.pack(">H", 0) + what)
                _reply(connection, option, _REP_ACK)
                return True
            if option == _OPT_ABORT:
                _reply(connection, option, _REP_ACK)
                return False
            _reply(connection, option, _REP_UNSUPPORTED)

    def _answer(self, connection: socket.socket) -> bool:
        """Serve one request; return whether there may be more."""
        head = _receive(connection, 28)
        _, flags, kind, cookie, offset, length = struct.unpack(">IHHQQI", head)
        data = _receive(connection, length) if kind == _WRITE else b""
        if kind == _DISCONNECT:
            return False
        with self._lock:
            if not self._on:
                return False
            error, answer = self._do(kind, flags, offset, length, data)
            if self.observer is not None and kind in {_WRITE, _FLUSH}:
                self.observer()
            if not self._on:
                return False
        connection.sendall(struct.pack(">IIQ", _SIMPLE_REPLY, error, cookie) + answer)
        return True

    def _do(self, kind: int, flags: int, offset: int, length: int, data: bytes) -> tuple[int, bytes]:
        if offset + length > len(self._current):
            return _EINVAL, b""
        if kind == _READ:
            return 0, bytes(self._current[offset : offset + length])
        if kind == _WRITE:
            self._current[offset : offset + length] = data
            if flags & _FUA:
                self._durable[offset : offset + length] = data
            self._pending.append((offset, data, bool(flags & _FUA)))
            return 0, b""
        if kind == _FLUSH:
            self._durable[:] = self._current
            self._pending.clear()
            self.flushes += 1
            return 0, b""
        return _EINVAL, b""


def _sectors(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Split a write at sector boundaries."""
    at = offset
    while at < offset + len(data):
        end = min((at // _SECTOR + 1) * _SECTOR, offset + len(data))
        yield at, data[at - offset : end - offset]
        at = end


def _receive(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _reply(connection: socket.socket, option: int, kind: int, data: bytes = b"") -> None:
    connection.sendall(struct.pack(">QIII", _REPLY_MAGIC, option, kind, len(data)) + data)


# Its file system ---------------------------------------------------------------------------

LABEL = "volatile"


def empty_file_system(place: Path) -> bytes:
    """A small ext4 file system with a journal and the label :data:`LABEL`, made in *place*."""
    image = place / "empty.img"
    size = ("-b", str(_SECTOR))
    made = _run("mke2fs", "-q", "-t", "ext4", *size, "-L", LABEL, str(image), "16M")
    if made.returncode:
        raise RuntimeError(f"mke2fs: {made.stderr}")
    return image.read_bytes()


def mount(node: Node, where: str = "/volatile") -> None:
    """Mount the disk in a guest that has booted."""
    node.run(
        f"for disk in /dev/vd?; do "
        f'[ "$(blkid -o value -s LABEL $disk)" = {LABEL} ] && mkdir -p {where} && '
        f"mount $disk {where}; done; mountpoint -q {where}"
    )


@contextlib.contextmanager
def attached(node: Node, disk: VolatileDisk) -> Iterator[None]:
    """Attach the disk to the node, which must be off at the beginning and the end."""
    emulator = node._emulator
    plain = emulator._command
    emulator._command = lambda: [*plain(), *disk.qemu_arguments()]  # type: ignore[method-assign]
    try:
        yield
    finally:
        emulator._command = plain  # type: ignore[method-assign]


def files_of(image: bytes, directory: str, target: Path) -> Path:
    """The files of *directory* in an ext4 *image* after its journal was replayed, as a boot would.

    Raises ``RuntimeError`` if the file system is damaged beyond its journal.
    """
    target.mkdir(parents=True)
    file = target / "disk.img"
    file.write_bytes(image)
    checked = _run("e2fsck", "-p", str(file))
    if checked.returncode > 1:  # 1: repaired, which is the journal
        raise RuntimeError(f"the file system is damaged: {checked.stdout}")
    found = target / "files"
    found.mkdir()
    _run("debugfs", "-R", f"rdump {directory} {found}", str(file))
    file.unlink()
    return found / Path(directory).name


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
