"""Generate Python code from every ``.proto`` below ``proto/``, or check that it is current.

``proto/drakit/wire/nri/nri.proto`` becomes ``src/drakit/wire/nri/nri_pb2.py`` and ``.pyi``: the
path below ``proto/`` is the package path, which also makes it unique in protobuf's process-wide
pool (upstream calls all of its files ``api.proto``, and two of one name cannot be loaded).
The generator is the locked grpcio-tools of ``.venv``; its output depends on nothing else.

    python tools/generate_protos.py            write
    python tools/generate_protos.py --check    exit with 1 and list the differences
"""

from __future__ import annotations

import argparse
import importlib.resources
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "proto"
SOURCES = ROOT / "src"

STUB_HEADER = b"# mypy: ignore-errors\n"
"""The stubs leave type arguments out, which strict checking of *them* would reject."""


def generate(target: Path) -> dict[Path, bytes]:
    """Run the generator; return every generated file by its path relative to *target*."""
    names = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    if not names:
        raise SystemExit(f"no .proto file below {PROTOS}")
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    status = protoc.main(
        ["protoc", f"-I{PROTOS}", f"-I{well_known}", f"--python_out={target}", f"--pyi_out={target}", *names]
    )
    if status:
        raise SystemExit(f"protoc failed with status {status}; see its message above")
    made = {path.relative_to(target): path.read_bytes() for path in target.rglob("*_pb2.py")}
    for path in target.rglob("*_pb2.pyi"):
        made[path.relative_to(target)] = STUB_HEADER + path.read_bytes()
    return dict(sorted(made.items()))


def checked_in() -> dict[Path, bytes]:
    """The generated files that are in the source tree now."""
    found = [*SOURCES.rglob("*_pb2.py"), *SOURCES.rglob("*_pb2.pyi")]
    return {path.relative_to(SOURCES): path.read_bytes() for path in sorted(found)}


def main(arguments: list[str] | None = None) -> int:
    """Write or check; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail if not current")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        wanted = generate(Path(directory))
    present = checked_in()
    stale = [path for path in wanted if present.get(path) != wanted[path]]
    orphans = [path for path in present if path not in wanted]
    if options.check:
        for path in stale:
            print(f"src/{path} does not match its .proto: run `make proto`", file=sys.stderr)
        for path in orphans:
            print(f"src/{path} no longer has a .proto: run `make proto`", file=sys.stderr)
        return 1 if stale or orphans else 0
    for path in stale:
        (SOURCES / path).parent.mkdir(parents=True, exist_ok=True)
        (SOURCES / path).write_bytes(wanted[path])
        print(f"wrote src/{path}")
    for path in orphans:
        (SOURCES / path).unlink()
        print(f"removed src/{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
