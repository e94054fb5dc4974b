"""Build the OCI image of the drivers without a container engine: ``make image``.

The image contains only Debian's Python, the wheels of ``requirements.lock`` and drakit: no shell, no
package manager. Debian packages are downloaded by apt into a private cache (no root
needed) and unpacked; Python bytecode is compiled ahead of time; the archive has fixed timestamps and
a fixed order, so that equal inputs give equal bytes. It is an OCI layout that ``ctr images import`` and
``docker load`` both accept (it also contains docker's ``manifest.json``).

    python tools/build_image.py --output build/drakit-image.tar

``--rootfs`` writes the files to a directory instead: ``Containerfile`` builds an image with the same
content from it.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASE = "trixie"
PYTHON = "3.13"
PACKAGES = (
    "base-files",
    "libc6",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    f"libpython{PYTHON}-minimal",
    f"libpython{PYTHON}-stdlib",
    "libssl3t64",
    "libuuid1",
    "libzstd1",
    f"python{PYTHON}-minimal",
    "zlib1g",
)
# Parts of the standard library that no driver imports, removed to save space on every node.
DROPPED = (
    "__phello__",
    "curses",
    "dbm",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "multiprocessing",
    "pydoc_data",
    "sitecustomize",  # a link to /etc, through which the file of the build machine would be compiled
    "sqlite3",
    "test",
    "tkinter",
    "turtledemo",
    "unittest",
    "venv",
    "xmlrpc",
)
PLATFORMS = {"x86_64": ("amd64", "x86_64-linux-gnu"), "aarch64": ("arm64", "aarch64-linux-gnu")}
SITE = "opt/drakit"
SHELLS = {"sh", "bash", "dash", "busybox"}
LISTS_LAST = 24 * 3600.0
"""Seconds for which the package lists of the archive are cached."""
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "1767225600"))  # 2026-01-01


def say(text: str) -> None:
    """Print progress, with the time since the start."""
    print(f"[{time.monotonic() - STARTED:5.1f} s] {text}", file=sys.stderr, flush=True)


STARTED = time.monotonic()


class CommandError(RuntimeError):
    """A command failed; the message has its output."""


def run(command: list[str], **options: object) -> str:
    """Run a command and return its output. Raises :class:`CommandError`."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise CommandError(f"{' '.join(command[:4])} … failed:\n{done.stdout}{done.stderr}")
    output: str = done.stdout
    return output


# -- Debian --------------------------------------------------------------------------------------


def debian_mirror() -> str:
    """The Debian archive that apt uses on this machine."""
    form = "$(SITE)|$(ORIGIN)"
    rows = [r.split("|") for r in run(["apt-get", "indextargets", "--format", form]).splitlines()]
    for site, origin in rows:
        if origin == "Debian" or site.rstrip("/").endswith("/debian"):
            return site
    raise SystemExit("apt on this machine knows no Debian archive; run 'apt-get update' once")


def download_packages(cache: Path, architecture: str) -> list[Path]:
    """Download the newest PACKAGES of RELEASE into the cache; returns the files in order."""
    for part in ("lists/partial", "archives/partial", "etc"):
        (cache / part).mkdir(parents=True, exist_ok=True)
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    if not keyring.exists():
        raise SystemExit(f"{keyring} is missing: apt-get install debian-archive-keyring")
    mirror = debian_mirror()
    (cache / "etc/sources.list").write_text(
        f"deb [signed-by={keyring} arch={architecture}] {mirror} {RELEASE} main\n"
    )
    (cache / "status").touch()
    options = [
        f"Dir::Etc::SourceList={cache}/etc/sources.list",
        "Dir::Etc::SourceParts=/dev/null",
        f"Dir::State::Lists={cache}/lists",
        f"Dir::State::status={cache}/status",
        f"Dir::Cache={cache}",
        f"APT::Architecture={architecture}",
        "APT::Sandbox::User=root",
    ]
    apt = ["apt-get", *(word for option in options for word in ("-o", option))]
    read = cache / "lists-read"
    if time.time() - (read.stat().st_mtime if read.exists() else 0) < LISTS_LAST:
        try:
            return fetch(apt, cache / "downloads")
        except CommandError as error:  # a package was superseded: update the lists
            say(str(error))
    say(f"Debian {RELEASE}: package lists")
    try:
        run([*apt, "update", "--error-on=any"])
        read.touch()
    except CommandError as error:
        if not read.exists():
            raise
        say(f"{error}\nthe archive is not reachable: using the cached packages")
    return fetch(apt, cache / "downloads")


def fetch(apt: list[str], downloads: Path) -> list[Path]:
    """Download the missing files of PACKAGES, according to the lists."""
    downloads.mkdir(exist_ok=True)
    say(f"Debian {RELEASE}: {len(PACKAGES)} packages")
    uris = run([*apt, "download", "--print-uris", *PACKAGES]).splitlines()
    names = [row.split()[1] for row in uris if row.startswith("'")]
    if missing := [name for name in names if not (downloads / name).exists()]:
        run([*apt, "download", *PACKAGES], cwd=downloads)
        say(f"downloaded {len(missing)}")
    return sorted(downloads / name for name in names)


def unpack(packages: list[Path], root: Path) -> None:
    """Unpack the packages without documentation, locales and tools."""
    # trixie's merged /usr: the links must exist first, or packages would create directories.
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in packages:
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(data.stdout)) as archive:
            archive.extractall(root, filter="tar")
    for useless in (
        "usr/share/doc",
        "usr/share/man",
        "usr/share/lintian",
        "usr/share/locale",
        "usr/share/binfmts",
        "usr/share/applications",
        "usr/share/pixmaps",
        "usr/lib/python3/dist-packages",
        "var",
        "etc/update-motd.d",
        "usr/share/base-files",
        "usr/share/common-licenses",
        "usr/lib/valgrind",
    ):
        shutil.rmtree(root / useless, ignore_errors=True)
    library = root / f"usr/lib/python{PYTHON}"
    for name in DROPPED:
        shutil.rmtree(library / name, ignore_errors=True)
        (library / f"{name}.py").unlink(missing_ok=True)
    for config in library.glob("config-*"):
        shutil.rmtree(config)
    shutil.rmtree(root / "usr/lib/x86_64-linux-gnu/gconv", ignore_errors=True)
    for name in ("tmp", "run", "proc", "sys", "dev", "etc", "var/run", "var/lib"):
        (root / name).mkdir(parents=True, exist_ok=True)


# -- Python --------------------------------------------------------------------------------------


def install_wheels(root: Path, machine: str, wheel: Path) -> None:
    """Install the locked dependencies and drakit's wheel for the Python of the image."""
    site = root / SITE
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    target = [
        "install",
        "--target",
        str(site),
        "--no-compile",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version",
        PYTHON,
        "--implementation",
        "cp",
        "--abi",
        f"cp{PYTHON.replace('.', '')}",
        "--abi",
        "abi3",
        "--abi",
        "none",
    ]
    for glibc in range(41, 16, -1):
        target += ["--platform", f"manylinux_2_{glibc}_{machine}"]
    target += ["--platform", f"manylinux2014_{machine}"]
    say("wheels of requirements.lock")
    run([*pip, *target, "--require-hashes", "-r", str(ROOT / "requirements.lock")])
    say(f"drakit {wheel.name}")
    # By name, not by path: pip would write the path of the scratch directory into the image.
    run([*pip, *target, "--no-index", "--find-links", str(wheel.parent), "drakit"])
    for extra in ("bin", *[p.name for p in site.glob("*.so.*")]):
        shutil.rmtree(site / extra, ignore_errors=True)
    forget_programs(site)


def forget_programs(site: Path) -> None:
    """Remove pip's programs, which are not in the image, from the records: they name this Python."""
    for record in sorted(site.glob("*.dist-info/RECORD")):
        rows = record.read_text().splitlines(keepends=True)
        record.write_text("".join(row for row in rows if not row.startswith("../../bin/")))


def build_wheel(directory: Path) -> Path:
    """Build drakit's wheel from this tree."""
    say("drakit's wheel")
    run(
        [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--quiet",
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            str(directory),
            str(ROOT),
        ],
        env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)},
    )
    return next(directory.glob("drakit-*.whl"))


def add_programs(root: Path) -> None:
    """One small program per console script of pyproject.toml."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    (root / "usr/local/bin").mkdir(parents=True, exist_ok=True)
    for name, target in scripts.items():
        module, function = target.split(":")
        program = root / "usr/local/bin" / name
        # -I would forbid the site directory below; -s and -E leave the user's settings out.
        program.write_text(
            f"#!/usr/bin/python{PYTHON} -sE\nimport sys\nsys.path.insert(0, '/{SITE}')\n"
            f"from {module} import {function}\nsys.exit({function}())\n"
        )
        program.chmod(0o755)


def compile_bytecode(root: Path, triplet: str) -> None:
    """Compile everything with the image's Python, unchecked: files in an image do not change."""
    say("bytecode")
    libraries = f"{root}/usr/lib/{triplet}"
    loader = next(Path(libraries).glob("ld-linux-*.so*"))
    python = [str(loader), "--library-path", libraries, f"{root}/usr/bin/python{PYTHON}", "-s"]
    # The bytecode must not depend on the build: the compiler's imports would contain the path of the
    # scratch directory, and sets are ordered by their hashes.
    fixed = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    environment = {"PYTHONHOME": f"{root}/usr", "PATH": os.environ["PATH"], **fixed}
    for directory, shown in (
        (f"{root}/usr/lib/python{PYTHON}", f"/usr/lib/python{PYTHON}"),
        (f"{root}/{SITE}", f"/{SITE}"),
    ):
        run(
            [
                *python,
                "-m",
                "compileall",
                "-q",
                "--invalidation-mode",
                "unchecked-hash",
                "-s",
                directory,
                "-p",
                shown,
                directory,
            ],
            env=environment,
        )


def check_content(root: Path) -> None:
    """Fail if the image contains forbidden files: setuid programs, shells, device files."""
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        shown = path.relative_to(root)
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            raise SystemExit(f"/{shown} is neither a file nor a directory nor a link")
        if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
            raise SystemExit(f"/{shown} is a setuid or setgid program")
        if shown.name in SHELLS:
            raise SystemExit(f"/{shown} is a shell")


# -- OCI -----------------------------------------------------------------------------------------


def layer_of(root: Path) -> bytes:
    """The root file system as one tar: sorted, owned by root, with one timestamp."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            info = archive.gettarinfo(str(path), str(path.relative_to(root)))
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = EPOCH
            if info.isreg() and info.type != tarfile.LNKTYPE:
                with path.open("rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
    return buffer.getvalue()


def digest(data: bytes) -> str:
    """The architecture in OCI notation."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def write_image(layer: bytes, architecture: str, name: str, output: Path) -> int:
    """Write the archive; returns its size."""
    packed = gzip.compress(layer, 9, mtime=0)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH))
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": created,
        "config": {
            "Cmd": ["dra-driver-cpu"],
            "WorkingDir": "/",
            "Env": ["PATH=/usr/local/bin:/usr/bin", "PYTHONDONTWRITEBYTECODE=1", "MALLOC_ARENA_MAX=1"],
            "Labels": {
                "org.opencontainers.image.title": "drakit",
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        "history": [{"created": created, "created_by": "tools/build_image.py"}],
    }
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, kind: str) -> dict[str, object]:
        blobs[digest(data)] = data
        return {"mediaType": kind, "digest": digest(data), "size": len(data)}

    oci = "application/vnd.oci.image."
    config_entry = blob(json.dumps(config, sort_keys=True).encode(), f"{oci}config.v1+json")
    layer_entry = blob(packed, f"{oci}layer.v1.tar+gzip")
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}manifest.v1+json",
        "config": config_entry,
        "layers": [layer_entry],
    }
    entry = blob(json.dumps(manifest, sort_keys=True).encode(), f"{oci}manifest.v1+json")
    # The CRI looks images up by their full name; a dot in "name:0.1.0" does not make it a host.
    host, slash, _ = name.partition("/")
    is_full = slash and ("." in host or ":" in host)
    qualified = name if is_full else f"docker.io/library/{name}"
    entry["annotations"] = {
        "io.containerd.image.name": qualified,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    files = {
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [entry]}, sort_keys=True).encode(),
        "manifest.json": json.dumps(
            [
                {
                    "Config": "blobs/sha256/" + str(config_entry["digest"])[7:],
                    "RepoTags": [name],
                    "Layers": ["blobs/sha256/" + str(layer_entry["digest"])[7:]],
                }
            ]
        ).encode(),
        **{f"blobs/sha256/{key[7:]}": data for key, data in blobs.items()},
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_suffix(".partial")
    with tarfile.open(partial, "w") as archive:
        for path, data in sorted(files.items()):
            info = tarfile.TarInfo(path)
            info.size, info.mtime, info.mode = len(data), EPOCH, 0o644
            archive.addfile(info, io.BytesIO(data))
    partial.replace(output)
    return output.stat().st_size


def main() -> int:
    """Build the image for the architecture of this machine, or the requested one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=ROOT / "build/drakit-image.tar")
    parser.add_argument("--rootfs", type=Path, help="write the image's files to this new directory instead")
    parser.add_argument("--name", default="drakit:0.1.0", help="image name and tag")
    parser.add_argument("--machine", default=os.uname().machine, choices=sorted(PLATFORMS))
    options = parser.parse_args()
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is missing: the image is made of Debian packages; build it on Debian")
    architecture, triplet = PLATFORMS[options.machine]
    cache = Path(os.environ.get("DRAKIT_CACHE", Path.home() / ".cache/drakit")) / f"image-{architecture}"
    with tempfile.TemporaryDirectory(prefix="drakit-image-") as scratch:
        root = Path(scratch) / "root"
        unpack(download_packages(cache, architecture), root)
        install_wheels(root, options.machine, build_wheel(Path(scratch)))
        add_programs(root)
        if options.machine == os.uname().machine:
            compile_bytecode(root, triplet)
        check_content(root)
        if options.rootfs:
            shutil.copytree(root, options.rootfs, symlinks=True)
            say(f"{options.rootfs}: the image's files")
            return 0
        layer = layer_of(root)
        size = write_image(layer, architecture, options.name, options.output)
    say(f"{options.output}: {size / 1e6:.1f} MB packed, {len(layer) / 1e6:.1f} MB unpacked, {options.name}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CommandError as error:
        sys.exit(str(error))
