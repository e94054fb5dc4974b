"""Build artifacts cached outside the tree, keyed by version and recipe.

A build uses a temporary directory that is renamed when complete, under a kernel lock:
an interrupted build leaves nothing that looks finished, and concurrent runs build only
once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .progress import say


def cache_root() -> Path:
    """``$DRAKIT_CACHE``, by default ``~/.cache/drakit``; created when absent."""
    root = Path(os.environ.get("DRAKIT_CACHE") or Path.home() / ".cache" / "drakit")
    root.mkdir(parents=True, exist_ok=True)
    return root


class Artifact(ABC):
    """An artifact: its name, version, and everything that affects the result."""

    name: str
    version: str

    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """Everything that requires a rebuild when it changes, as plain data."""

    @abstractmethod
    def build(self, directory: Path, log: Path) -> None:
        """Build into the empty ``directory``; slow commands write to ``log``."""

    def directory(self) -> Path:
        """The directory of the finished artifact."""
        text = json.dumps(self.recipe(), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return cache_root() / f"{self.name}-{self.version}-{digest}"

    def is_built(self) -> bool:
        """True if ``get`` would return immediately."""
        return self.directory().is_dir()

    def get(self) -> Path:
        """Return the directory of the artifact, building it first if necessary."""
        final = self.directory()
        if final.is_dir():
            return final
        with locked(final.with_name(f"{final.name}.lock")):
            if final.is_dir():
                return final
            partial = final.with_name(f".partial-{final.name}")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            log = final.with_name(f"{final.name}.log")
            log.unlink(missing_ok=True)
            self.build(partial, log)
            partial.rename(final)
            say(f"{self.name} {self.version} is in {final}")
        return final


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path``; the kernel drops it when the process dies."""
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another run that holds {path.name}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
