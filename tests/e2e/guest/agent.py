"""Agent in the guest: run commands, copy files, run Python, relay sockets.

One TCP connection is one request: a line of JSON, then bytes if the request has any.
Standard library only, started with -S: under emulation every import costs.
"""

import contextlib
import json
import os
import socket
import subprocess
import threading
import traceback

PORT = 2222
CHUNK = 1 << 16


def main():
    """Serve forever, with one thread per connection."""
    with open("/bed-node/token") as file:
        token = file.read().strip()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", PORT))
    listener.listen(64)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, token), daemon=True).start()


def serve(connection, token):
    """Answer one request; a failure goes back as text."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = connection.makefile("rwb")
    try:
        line = stream.readline()
        if not line:
            return
        request = json.loads(line)
        if request.pop("token") != token:
            raise PermissionError("wrong token")
        answer, content = OPERATIONS[request.pop("op")](stream, connection, **request)
    except Exception:
        answer, content = {"error": traceback.format_exc()}, b""
    try:
        if answer is not None:
            stream.write(json.dumps(answer).encode() + b"\n" + content)
            stream.flush()
        stream.close()
        connection.close()
    except OSError:
        pass


def run(stream, _connection, argv, timeout, size=0):
    """Run a command with ``size`` bytes of input; its output comes back after the answer."""
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        out, err = process.communicate(stream.read(size), timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        out, err = process.communicate()
        err += b"\n[killed after %d s]" % timeout
    answer = {"status": process.returncode, "out": len(out), "err": len(err)}
    return answer, out + err


def put(stream, _connection, path, mode, size):
    """Write a file, complete or not at all."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = path + ".partial"
    with open(partial, "wb") as file:
        while size > 0:
            chunk = stream.read(min(size, CHUNK))
            if not chunk:
                raise EOFError("the sender went away")
            file.write(chunk)
            size -= len(chunk)
    os.chmod(partial, mode)
    os.rename(partial, path)
    return {}, b""


def get(_stream, _connection, path):
    """Read a file, also one of /proc or /sys."""
    with open(path, "rb") as file:
        content = file.read()
    return {"size": len(content)}, content


def python(_stream, _connection, source, arguments):
    """Run Python in this very process (no start-up time); ``result`` goes back."""
    names = dict(arguments)
    exec(compile(source, "<harness>", "exec"), names)
    return {"result": names["result"]}, b""


def connect(_stream, connection, unix):
    """Relay this connection to a unix socket, both ways, until both ends are closed.

    The caller sends its first byte only after our answer, so nothing sits in a buffer here.
    """
    other = socket.socket(socket.AF_UNIX)
    other.connect(unix)
    connection.sendall(b"{}\n")
    back = threading.Thread(target=pump, args=(other, connection), daemon=True)
    back.start()
    pump(connection, other)
    back.join()
    other.close()
    return None, b""


def pump(source, sink):
    """Copy bytes until the source ends, then end the sink's input."""
    try:
        while chunk := source.recv(CHUNK):
            sink.sendall(chunk)
    except OSError:
        pass
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


OPERATIONS = {"run": run, "put": put, "get": get, "python": python, "connect": connect}

if __name__ == "__main__":
    main()
