"""JSON files that are valid for one boot of the node, and the identity of the running boot.

Cgroups, hugepage pools and the monotonic clock start over at boot, so what a process recorded about
them in an earlier boot must be ignored.
"""

from __future__ import annotations

import contextlib
import os
from typing import Generic, Protocol, TypeVar

import msgspec

from drakit.core import atomicfile


def boot_id(proc: str = "/proc") -> str:
    """The identity of the running boot; empty if the kernel does not provide it."""
    try:
        with open(f"{proc}/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except OSError:
        return ""


class BootDocument(Protocol):
    """A ``msgspec.Struct`` with the boot in which it was written."""

    @property
    def boot(self) -> str:
        """The boot ID (see :func:`boot_id`)."""


DocumentT = TypeVar("DocumentT", bound=BootDocument)


class BootRecord(Generic[DocumentT]):
    """The document of type *kind* in the file *path*, ignored unless it was written in *boot*."""

    def __init__(self, path: str, kind: type[DocumentT], boot: str) -> None:
        self.path = path
        self.boot = boot
        self._decoder = msgspec.json.Decoder(kind)

    def load(self) -> DocumentT | None:
        """The document, None if there is none of this boot. Raises ``OSError``, ``ValueError`` if invalid."""
        try:
            with open(self.path, "rb") as file:
                document = self._decoder.decode(file.read())
        except FileNotFoundError:
            return None
        return document if document.boot == self.boot else None

    def save(self, document: DocumentT) -> None:
        """Replace the file atomically and durably, creating its directory. Raises ``OSError``."""
        atomicfile.ensure_directory(os.path.dirname(self.path))
        atomicfile.write_atomic(self.path, msgspec.json.encode(document))

    def save_unsynced(self, document: DocumentT) -> None:
        """Replace the file atomically but not durably: it need not survive a power failure.

        Callers hold a lock: the temporary file has a fixed name. Raises ``OSError``.
        """
        temporary = f"{self.path}.new"
        atomicfile.step("create", temporary)
        try:
            with open(temporary, "wb") as file:
                file.write(msgspec.json.encode(document))
            atomicfile.step("rename", self.path)
            os.replace(temporary, self.path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # a partial file occupies space that others need
            raise

    def remove(self) -> None:
        """Remove the file durably; a missing one is not an error. Raises other ``OSError``."""
        atomicfile.remove_durably(self.path)
