"""Client of the agent in a guest: one method per operation."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CHUNK = 1 << 16


class GuestError(RuntimeError):
    """A command in the guest failed, or the agent could not do what it was asked."""


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a command in the guest."""

    status: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class GuestAgent:
    """Client of the agent of one guest; every call uses a separate connection."""

    port: int
    token: str

    def run(self, argv: Sequence[str], limit: float, given: bytes = b"") -> Done:
        """Run a command, killed in the guest after ``limit`` seconds."""
        request = {"op": "run", "argv": list(argv), "timeout": limit, "size": len(given)}
        answer, content = self._ask(request, given, limit + 30)
        out = content[: answer["out"]].decode(errors="replace")
        return Done(answer["status"], out, content[answer["out"] :].decode(errors="replace"))

    def put(self, path: str, content: bytes, mode: int) -> None:
        """Write a file atomically; missing directories are created."""
        request = {"op": "put", "path": path, "mode": mode, "size": len(content)}
        self._ask(request, content, 300)

    def get(self, path: str) -> bytes:
        """Read a file, including files of ``/proc`` and ``/sys``."""
        return self._ask({"op": "get", "path": path}, b"", 120)[1]

    def python(self, source: str, limit: float, **arguments: object) -> Any:
        """Run Python source in the agent's process and return its variable ``result``."""
        request = {"op": "python", "source": source, "arguments": arguments}
        return self._ask(request, b"", limit)[0]["result"]

    def connect(self, path: str) -> socket.socket:
        """A connection to a unix socket of the guest."""
        connection = self._connection(60)
        connection.sendall(self._line({"op": "connect", "unix": path}))
        answer = bytearray()
        while not answer.endswith(b"\n"):
            byte = connection.recv(1)
            if not byte:
                raise GuestError(f"{path}: the agent closed the connection")
            answer += byte
        if "error" in json.loads(answer):
            connection.close()
            raise GuestError(f"{path}: {json.loads(answer)['error']}")
        connection.settimeout(None)
        return connection

    def _connection(self, limit: float) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=limit)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _line(self, request: dict[str, Any]) -> bytes:
        return json.dumps({**request, "token": self.token}).encode() + b"\n"

    def _ask(self, request: dict[str, Any], given: bytes, limit: float) -> tuple[Any, bytes]:
        with self._connection(limit) as connection:
            connection.sendall(self._line(request) + given)
            with connection.makefile("rb") as stream:
                line, content = stream.readline(), stream.read()
        if not line:
            # User-mode networking accepts before the guest does, so this means that it is not up yet.
            raise ConnectionError("the guest's agent does not answer")
        answer = json.loads(line)
        if "error" in answer:
            raise GuestError(f"{request['op']}: {answer['error']}")
        return answer, content


class Forwarder:
    """A Unix socket on this machine, forwarded to a Unix socket of the guest."""

    def __init__(self, agent: GuestAgent, remote: str, local: Path) -> None:
        self._agent, self._remote, self.path = agent, remote, local
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(local))
        self._listener.listen(32)
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        # A thread blocked in accept() wakes only when the socket is shut down.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(near,), daemon=True).start()

    def _relay(self, near: socket.socket) -> None:
        with near:
            try:
                far = self._agent.connect(self._remote)
            except (OSError, GuestError):
                return  # the caller sees its connection closed, as from a dead server
            with far:
                back = threading.Thread(target=_pump, args=(far, near), daemon=True)
                back.start()
                _pump(near, far)
                back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(_CHUNK):
            sink.sendall(chunk)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
