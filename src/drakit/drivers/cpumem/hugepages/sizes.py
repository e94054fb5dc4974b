"""Page sizes as spelled by Kubernetes, cgroups and sysfs."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))
_SPELLING: Final = re.compile(r"(\d{1,12})(Ki?|Mi?|Gi?)B?", re.IGNORECASE)


def size_name(size: int) -> str:
    """As Kubernetes spells it: ``2Mi``, ``1Gi``, ``64Ki``."""
    for unit, factor in _UNITS:
        if size >= factor and not size % factor:
            return f"{size // factor}{unit}"
    return str(size)


def kernel_size_name(size: int) -> str:
    """As the files of the hugetlb controller spell it: ``2MB``, ``1GB``, ``64KB``."""
    return size_name(size).replace("i", "B")


def parse_size(text: str) -> int:
    """A page size in bytes from any common spelling (``2Mi``, ``2M``, ``2MB``, ``2048kB``).

    All units are powers of two: no page has a decimal size. Raises ``ValueError``.
    """
    found = _SPELLING.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a valid page size; write it like 2Mi or 1Gi")
    factor = dict(_UNITS)[found[2][0].upper() + "i"]
    size = int(found[1]) * factor
    if size <= 0 or size & (size - 1):
        raise ValueError(f"{text!r} is not a valid page size: it must be a power of two")
    return size
