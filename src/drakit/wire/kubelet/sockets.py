"""Unix socket files: names, path length, ownership and removal of stale ones.

The path of a unix socket has at most 107 bytes. Binding with asyncio or grpc removes any file at the
path, even the socket of a live process. A killed process leaves its sockets behind, to which the
kubelet then connects forever.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
import re
import socket
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from drakit.core import atomicfile

LONGEST_PATH: Final = 107
"""``sun_path`` has 108 bytes, including the final NUL."""

LOCK_NAME: Final = "sockets.lock"
"""In the plugin directory; held while an instance cleans and binds its sockets."""

RECORD_NAME: Final = "sockets.list"
"""In the plugin directory: sockets bound by instances of this driver, one path per line.

A hashed name does not show its owner; only sockets listed here may be removed."""

_POD_UID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"


class SocketPathError(ValueError):
    """No socket can be created at the configured path."""


class SocketInUseError(RuntimeError):
    """Another process listens on the socket of this instance."""


def service_socket(plugin_dir: str, instance_uid: str | None) -> str:
    """Path of the service socket; raises :class:`SocketPathError`.

    ``dra.sock``, or with an instance UID the first name that fits of ``dra-<uid>.sock``,
    ``dra-<hash>.sock`` and ``<hash>.sock``.
    """
    if instance_uid is None:
        names = ["dra.sock"]
    else:
        short = _digest(instance_uid.encode(), 8)
        names = [f"dra-{instance_uid}.sock", f"dra-{short}.sock", f"{short}.sock"]
    return _first_fitting(plugin_dir, names, "the plugin directory")


def registration_socket(registry_dir: str, driver: str, instance_uid: str | None) -> str:
    """Path of the registration socket, named as by the Go helper (1.37).

    Raises :class:`SocketPathError` when no name fits.
    """
    if instance_uid is None:
        names = [f"{driver}-reg.sock"]
    else:
        both = f"{driver}\0{instance_uid}".encode()
        names = [
            f"{driver}-{instance_uid}-reg.sock",
            f"{driver}-{_digest(instance_uid.encode(), 8)}-reg.sock",
            f"dra-{_digest(both, 16)}-reg.sock",
        ]
    return _first_fitting(registry_dir, names, "the kubelet's registration directory")


def _digest(data: bytes, size: int) -> str:
    digest = hashlib.sha256(data).digest()[:size]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _first_fitting(directory: str, names: list[str], what: str) -> str:
    paths = [os.path.join(directory, name) for name in names]
    for path in paths:
        if len(os.fsencode(path)) <= LONGEST_PATH:
            return path
    shortest = min(len(os.fsencode(path)) for path in paths)
    raise SocketPathError(
        f"{paths[-1]} has {shortest} bytes, a unix socket may have {LONGEST_PATH}: choose a "
        f"shorter path for {what} {directory} (for example a bind mount), "
        f"{shortest - LONGEST_PATH} bytes less"
    )


@dataclass(slots=True)
class BoundSocket:
    """A listening socket and its file."""

    path: str
    listening: socket.socket
    identity: tuple[int, int]

    def is_in_place(self) -> bool:
        """Whether the file was neither removed nor replaced."""
        return _identity(self.path) == self.identity

    def remove_file(self) -> None:
        """Remove the file, unless another instance replaced it."""
        if self.is_in_place():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)


def bind(path: str) -> BoundSocket:
    """Listen at *path*; replaces the socket of a dead process, but not that of a live one.

    The caller holds the lock :data:`LOCK_NAME`, so that instances that start at the same time do not
    take each other's sockets. Raises :class:`SocketInUseError`, ``OSError``, and
    :class:`SocketPathError` when the file is not a socket.
    """
    remove_if_dead(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listening.bind(path)
    except BaseException as error:
        listening.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise _not_replaceable(path) from None
        raise
    try:
        # Before listen(), so that nobody else can have connected.
        os.chmod(path, 0o600)
        identity = _identity(path)
        assert identity is not None
        listening.listen(128)
    except BaseException:
        listening.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        raise
    return BoundSocket(path, listening, identity)


def _not_replaceable(path: str) -> Exception:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return SocketPathError(f"{path} exists and is not a socket; remove it")
    return SocketInUseError(
        f"another instance already listens on {path}: stop it first, or give each instance its own "
        f"instance UID (the pod's UID) so that both can run during a rolling update"
    )


def remove_if_dead(path: str) -> bool:
    """Remove the socket file *path* if no process listens on it; returns whether it was removed."""
    if not _rejects(path):
        return False
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return True


def _rejects(path: str) -> bool:
    """Whether *path* is a socket on which no process listens.

    Only ECONNREFUSED proves it; with a full backlog (EAGAIN) or a missing permission a process exists.
    """
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        return probe.connect_ex(path) == errno.ECONNREFUSED


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def record(plugin_dir: str, path: str) -> None:
    """Record that an instance of this driver is about to bind *path*. Requires the lock."""
    _write_record(plugin_dir, {*recorded(plugin_dir), path})


def recorded(plugin_dir: str) -> list[str]:
    """The recorded sockets of instances of this driver."""
    try:
        with open(os.path.join(plugin_dir, RECORD_NAME), encoding="utf-8") as file:
            return [line for line in file.read().splitlines() if line]
    except FileNotFoundError:
        return []


def clean_stale(plugin_dir: str, registry_dir: str, driver: str) -> list[str]:
    """Remove the sockets of dead instances of *driver*; returns their paths. Requires the lock.

    Considers recorded sockets and those with unhashed names, which other implementations of the same
    driver use.
    """
    named = _matching(registry_dir, rf"{re.escape(driver)}(-{_POD_UID})?-reg\.sock")
    services = _matching(plugin_dir, rf"dra(-{_POD_UID})?\.sock")
    candidates = {*recorded(plugin_dir), *named, *services}
    removed = [path for path in sorted(candidates) if remove_if_dead(path)]
    _write_record(plugin_dir, (p for p in recorded(plugin_dir) if os.path.lexists(p)))
    return removed


def _matching(directory: str, pattern: str) -> list[str]:
    return [os.path.join(directory, name) for name in os.listdir(directory) if re.fullmatch(pattern, name)]


def _write_record(plugin_dir: str, paths: Iterable[str]) -> None:
    wanted = sorted(paths)
    if wanted != recorded(plugin_dir):
        text = "".join(f"{path}\n" for path in wanted)
        atomicfile.write_atomic(os.path.join(plugin_dir, RECORD_NAME), text.encode(), 0o600)
