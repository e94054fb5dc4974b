"""Programs built from released Go modules of the module proxy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cache import Artifact, cache_root, locked
from .pins import Pins
from .progress import run_step

_BUILD_FLAGS = ("-trimpath", "-buildvcs=false")
_LINK_FLAGS = "-s -w"
_C_FLAGS = ("-std=c99", "-Os", "-static")


def _environment() -> dict[str, str]:
    # CGO off: static programs, which run on this machine and in the guest alike.
    return {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GOWORK": "off"}


@dataclass(frozen=True)
class GoModule:
    """A generated module that requires one released module, with its local replacements.

    Kubernetes replaces its staging modules by directories of its repository, which the
    module proxy does not serve; each of them is also released as ``v0.<minor>.<patch>``.
    """

    module: str
    version: str
    packages: tuple[str, ...]

    @property
    def _staging_version(self) -> str:
        return "v0." + self.version.split(".", 1)[1]

    def prepared(self, log: Path) -> Path:
        """A directory with a complete go.mod and go.sum for ``packages``."""
        directory = cache_root() / "go" / f"{self.module.replace('/', '-')}-{self.version}"
        directory.mkdir(parents=True, exist_ok=True)
        done = directory / "go.sum.done"
        with locked(directory / "lock"):
            if not done.exists():
                self._write(directory)
                run_step(
                    f"modules of {self.module} {self.version}",
                    ["go", "mod", "tidy", "-e"],
                    log=log,
                    cwd=directory,
                    env=_environment(),
                )
                done.touch()
        return directory

    def _write(self, directory: Path) -> None:
        upstream = self._upstream_go_mod()
        lines = ["module drakit.test/build", f"go {upstream['Go']}"]
        lines.append(f"require {self.module} v{self.version}")
        for entry in upstream.get("Replace") or []:
            if entry["New"]["Path"].startswith("./staging/"):
                path = entry["Old"]["Path"]
                lines.append(f"replace {path} => {path} {self._staging_version}")
        (directory / "go.mod").write_text("\n".join(lines) + "\n")
        imports = "\n".join(f'import _ "{package}"' for package in self.packages)
        (directory / "tools.go").write_text(f"//go:build tools\n\npackage tools\n\n{imports}\n")

    def downloaded(self) -> Path:
        """The files of the module, as released."""
        return Path(self._download()["Dir"])

    def _upstream_go_mod(self) -> dict[str, Any]:
        parsed: dict[str, Any] = _go_json("mod", "edit", "-json", self._download()["GoMod"])
        return parsed

    def _download(self) -> dict[str, Any]:
        found: dict[str, Any] = _go_json("mod", "download", "-json", f"{self.module}@v{self.version}")
        return found


def _go_json(*words: str) -> Any:
    done = subprocess.run(["go", *words], env=_environment(), cwd="/", stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


class Program(Artifact):
    """A program; its artifact directory contains one file of the same name."""

    def path(self) -> Path:
        """The program, built when absent."""
        return self.get() / self.name


@dataclass(frozen=True)
class GoProgram(Program):
    """A program of a module, compiled with the build tags ``tags``."""

    name: str
    package: str
    source: GoModule
    variables: tuple[tuple[str, str], ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def version(self) -> str:  # type: ignore[override]
        """The version of the module it comes from."""
        return self.source.version

    def recipe(self) -> dict[str, Any]:
        """Package, module and flags."""
        return {
            "package": self.package,
            "module": f"{self.source.module} v{self.source.version}",
            "flags": [*_BUILD_FLAGS, *self._tag_flags(), self._link_flags()],
        }

    def _tag_flags(self) -> list[str]:
        return ["-tags", ",".join(self.tags)] if self.tags else []

    def _link_flags(self) -> str:
        return " ".join([_LINK_FLAGS, *(f"-X {key}={value}" for key, value in self.variables)])

    def build(self, directory: Path, log: Path) -> None:
        """Compile; Go's caches let an interrupted build continue."""
        if shutil.which("go") is None:
            raise RuntimeError(f"Go is not on the PATH: {self.name} cannot be built")
        output = ("-o", str(directory / self.name), self.package)
        run_step(
            f"go build {self.name} {self.version}",
            ["go", "build", *_BUILD_FLAGS, *self._tag_flags(), "-ldflags", self._link_flags(), *output],
            log=log,
            cwd=self.source.prepared(log),
            env=_environment(),
        )


@dataclass(frozen=True)
class CProgram(Program):
    """A static C program whose sources lie in ``directory_in_module`` of a Go module."""

    name: str
    directory_in_module: str
    source: GoModule

    @property
    def version(self) -> str:  # type: ignore[override]
        """The version of the module it comes from."""
        return self.source.version

    def recipe(self) -> dict[str, Any]:
        """Where the sources are, and the flags."""
        return {
            "sources": self.directory_in_module,
            "module": f"{self.source.module} v{self.source.version}",
            "flags": _C_FLAGS,
        }

    def build(self, directory: Path, log: Path) -> None:
        """Compile all of its files at once."""
        if shutil.which("gcc") is None:
            raise RuntimeError(f"gcc is not on the PATH: {self.name} cannot be built")
        sources = sorted((self.source.downloaded() / self.directory_in_module).glob("*.c"))
        words = ["gcc", *_C_FLAGS, "-o", str(directory / self.name), *map(str, sources)]
        run_step(f"gcc {self.name} {self.version}", words, log=log)


def build_file(source: Path, program: Path, log: Path) -> None:
    """Compile one Go file that needs only the standard library."""
    if shutil.which("go") is None:
        raise RuntimeError(f"Go is not on the PATH: {program.name} cannot be built")
    words = ["go", "build", *_BUILD_FLAGS, "-ldflags", _LINK_FLAGS, "-o", str(program), str(source)]
    run_step(f"go build {source.name}", words, log=log, cwd=source.parent, env=_environment())


def kubernetes_programs(pins: Pins) -> dict[str, GoProgram]:
    """The programs of Kubernetes by name, reporting their true version."""
    version = pins.kubernetes
    packages = {name: f"{pins.kubernetes_module}/cmd/{name}" for name in pins.kubernetes_programs}
    module = GoModule(pins.kubernetes_module, version, tuple(packages.values()))
    stamp = "k8s.io/component-base/version"
    major, minor, _ = version.split(".")
    variables = (
        (f"{stamp}.gitVersion", f"v{version}"),
        (f"{stamp}.gitMajor", major),
        (f"{stamp}.gitMinor", minor),
    )
    return {name: GoProgram(name, path, module, variables) for name, path in packages.items()}


def etcd_program(pins: Pins) -> GoProgram:
    """The etcd server."""
    return GoProgram("etcd", pins.etcd_module, GoModule(pins.etcd_module, pins.etcd, (pins.etcd_module,)))


def helm_program(pins: Pins) -> GoProgram:
    """Helm, to render the charts."""
    package = f"{pins.helm_module}/cmd/helm"
    return GoProgram("helm", package, GoModule(pins.helm_module, pins.helm, (package,)))


def containerd_programs(pins: Pins) -> dict[str, GoProgram]:
    """containerd, its runc shim and ctr; empty when the guest uses Debian's."""
    if pins.containerd_is_debians:
        return {}
    packages = {name: f"{pins.containerd_module}/cmd/{name}" for name in pins.containerd_programs}
    module = GoModule(pins.containerd_module, pins.containerd, tuple(packages.values()))
    variables = ((f"{pins.containerd_module}/version.Version", f"v{pins.containerd}"),)
    return {name: GoProgram(name, path, module, variables) for name, path in packages.items()}


def crio_programs(pins: Pins) -> dict[str, Program]:
    """CRI-O and pinns, which creates the namespaces of a sandbox."""
    package = f"{pins.crio_module}/cmd/crio"
    module = GoModule(pins.crio_module, pins.crio, (package,))
    return {
        "crio": GoProgram("crio", package, module, tags=pins.crio_tags),
        "pinns": CProgram("pinns", "pinns/src", module),
    }


def runtime_programs(pins: Pins) -> dict[str, Program]:
    """The programs of the selected container runtime."""
    return crio_programs(pins) if pins.is_crio else dict(containerd_programs(pins))
