"""Container image with one static program, built without a registry or container engine."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

IMAGE = "drakit.test/busybox:1"
# The runtime looks the sandbox image up by this name; it is the same image.
SANDBOX_IMAGE = "drakit.test/pause:1"


def write_image_archive(path: Path) -> None:
    """Write a docker-archive with busybox under both names to ``path``."""
    layer = _layer()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/bin/sleep", "infinity"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE, SANDBOX_IMAGE], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        _add(archive, "config.json", json.dumps(config).encode())
        _add(archive, "layer.tar", layer)
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _layer() -> bytes:
    program = shutil.which("busybox")
    if program is None:
        raise RuntimeError("busybox is not installed: apt-get install busybox-static")
    listing = subprocess.run([program, "--list"], stdout=subprocess.PIPE, check=True, text=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for name in ("bin", "etc", "proc", "sys", "dev", "run"):
            _add_entry(layer, name, tarfile.DIRTYPE, 0o755)
        _add_entry(layer, "tmp", tarfile.DIRTYPE, 0o1777)
        _add(layer, "bin/busybox", Path(program).read_bytes(), 0o755)
        for applet in listing.stdout.split():
            if applet != "busybox":
                _add_entry(layer, f"bin/{applet}", tarfile.SYMTYPE, 0o777, target="busybox")
        _add(layer, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\n")
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))


def _add_entry(archive: tarfile.TarFile, name: str, kind: bytes, mode: int, target: str = "") -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname = kind, mode, target
    archive.addfile(info)
