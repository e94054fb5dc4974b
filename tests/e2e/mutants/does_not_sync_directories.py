"""Responds before the name of a file, or its removal, is on disk."""

from __future__ import annotations

import os
import stat

_right = os.fsync


def _fsync(descriptor: int) -> None:
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        _right(descriptor)


os.fsync = _fsync  # type: ignore[assignment]
