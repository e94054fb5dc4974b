"""Where tests write their many small files."""

from __future__ import annotations

import os
import tempfile


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A temporary directory, in memory where the system offers that."""
    memory = "/dev/shm"
    return tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None)
