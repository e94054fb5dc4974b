"""Proxy from the API server to the guests, so that ``kubectl logs`` and ``exec`` work.

The address of a guest exists only inside its user-mode network. The API server is configured to
reach nodes through this HTTP CONNECT proxy on a Unix socket, which maps each node to a port of
the loopback interface. It runs as a separate process:
``python -m tests.e2e.bed.egress SOCKET ROUTES``, the routes being re-read each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

_KUBELET_PORT = "10250"
_CHUNK = 1 << 16


def egress_configuration(socket: Path) -> str:
    """The API server's side: everything bound for the cluster goes to ``socket``."""
    transport = {"uds": {"udsName": str(socket)}}
    connection = {"proxyProtocol": "HTTPConnect", "transport": transport}
    return json.dumps(
        {
            "apiVersion": "apiserver.k8s.io/v1beta1",
            "kind": "EgressSelectorConfiguration",
            "egressSelections": [{"name": "cluster", "connection": connection}],
        }
    )


def add_route(routes: Path, node: str, port: int) -> None:
    """Route connections to a node's kubelet to a port of the loopback interface.

    The API server asks for a node by its hostname, which is its name, before its addresses.
    """
    known = json.loads(routes.read_text()) if routes.exists() else {}
    partial = routes.with_suffix(".partial")
    partial.write_text(json.dumps({**known, node: port}))
    partial.rename(routes)


async def _serve(socket: Path, routes: Path) -> None:
    async def connected(near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        try:
            await _relay(near, near_out, json.loads(routes.read_text()))
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            print(f"egress: {error!r}", flush=True)
        finally:
            near_out.close()

    server = await asyncio.start_unix_server(connected, socket)
    await server.serve_forever()


async def _relay(near: asyncio.StreamReader, near_out: asyncio.StreamWriter, routes: dict[str, int]) -> None:
    head = (await near.readuntil(b"\r\n\r\n")).decode()
    method, target, _ = head.split(" ", 2)
    node, _, port = target.rpartition(":")
    if method != "CONNECT" or port != _KUBELET_PORT or node not in routes:
        near_out.write(b"HTTP/1.1 502 no such node\r\n\r\n")
        raise ValueError(f"no route for {method} {target}")
    far, far_out = await asyncio.open_connection("127.0.0.1", routes[node])
    near_out.write(b"HTTP/1.1 200 OK\r\n\r\n")
    try:
        await asyncio.gather(_pump(near, far_out), _pump(far, near_out))
    finally:
        far_out.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await source.read(_CHUNK):
            sink.write(chunk)
            await sink.drain()
        sink.write_eof()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), Path(sys.argv[2])))
