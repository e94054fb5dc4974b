"""Immutable sets of small numbers (CPUs, NUMA nodes), in the kernel's two formats (``lib/bitmap-str.c``).

* list, as in ``cpuset.cpus`` or ``shared_cpu_list``: ``0-3,8,10-12`` with optional strides ``0-31:2/8``
  (of every 8 CPUs the first 2);
* mask, as in ``shared_cpu_map`` or ``/proc/<pid>/status``: 32-bit hexadecimal words, highest first,
  joined by commas: ``ffffffff,00000000``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NoReturn

MAX_CPU: Final = 1 << 17
"""Numbers from here on are rejected: Linux supports at most 8192 CPUs (``NR_CPUS`` on x86),
and a damaged file must not make us build a bitmask of gigabytes."""

_LONGEST_TEXT: Final = 1 << 20
_DIGITS: Final = frozenset("0123456789")
_HEX: Final = frozenset("0123456789abcdefABCDEF")


class CpuSetError(ValueError):
    """A text that is not a valid CPU set; the message shows the reason and the position."""

    def __init__(self, reason: str, text: str, position: int) -> None:
        shown, at = text, position
        if len(shown) > 60:  # keep the message short and the position visible
            start = max(0, min(position - 25, len(text) - 50))
            shown, at = "…" + text[start : start + 50] + "…", position - start + 1
        super().__init__(f"{reason} at position {position}: {shown!r}\n  {shown}\n  {' ' * at}^")
        self.reason = reason
        self.text = text
        self.position = position


class _Scanner:
    """Reads decimal numbers and punctuation of a list, remembering the position."""

    __slots__ = ("at", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, reason: str, position: int | None = None) -> NoReturn:
        raise CpuSetError(reason, self.text, self.at if position is None else position)

    def take(self, char: str) -> bool:
        if self.at < len(self.text) and self.text[self.at] == char:
            self.at += 1
            return True
        return False

    def number(self, what: str) -> int:
        start, text = self.at, self.text
        while self.at < len(text) and text[self.at] in _DIGITS:
            self.at += 1
        if self.at == start:
            found = repr(text[start]) if start < len(text) else "the end"
            self.fail(f"expected {what}, found {found}")
        if self.at - start > 9 or int(text[start : self.at]) >= MAX_CPU:
            self.fail(f"{what} is larger than {MAX_CPU - 1}", start)
        return int(text[start : self.at])


def _parse_plain(text: str) -> int | None:
    """The mask of a list of numbers and ranges only, as the kernel writes it; else ``None``."""
    if not text.isascii():
        return None
    mask = 0
    for item in text.rstrip("\n").split(","):
        first, dash, last = item.partition("-")
        if not dash:
            last = first
        if not (first.isdigit() and last.isdigit() and len(first) < 7 and len(last) < 7):
            return None
        low, high = int(first), int(last)
        if not low <= high < MAX_CPU:
            return None
        mask |= ((2 << (high - low)) - 1) << low
    return mask


class CpuSet:
    """An immutable, ordered set of CPU (or node) numbers: one bitmask, so that algebra is fast.

    >>> CpuSet.parse("0-3,8") | CpuSet([9])
    CpuSet('0-3,8-9')
    """

    __slots__ = ("_mask",)
    _mask: int

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        """The set of the given numbers. Raises ``ValueError`` for a number out of range."""
        mask = 0
        for number in numbers:
            if not 0 <= number < MAX_CPU:
                raise ValueError(f"CPU number {number} is outside 0..{MAX_CPU - 1}")
            mask |= 1 << number
        object.__setattr__(self, "_mask", mask)

    @classmethod
    def from_mask(cls, mask: int) -> CpuSet:
        """The set of the bits in *mask*. Raises ``ValueError`` if out of range."""
        if mask < 0 or mask.bit_length() > MAX_CPU:
            raise ValueError(f"mask must be between 0 and 2**{MAX_CPU} - 1")
        self = cls.__new__(cls)
        object.__setattr__(self, "_mask", mask)
        return self

    @classmethod
    def range(cls, start: int, stop: int) -> CpuSet:
        """All numbers from *start* up to, not including, *stop*; empty if there are none."""
        if start < 0:
            raise ValueError(f"CPU number {start} is negative")
        return cls.from_mask(((1 << (stop - start)) - 1) << start if stop > start else 0)

    @classmethod
    def parse(cls, text: str) -> CpuSet:
        """Read the kernel's list format, strides included; blank text is the empty set.

        Surrounding white space and a trailing newline or NUL are accepted, as files of
        sysfs carry them. Anything else raises :class:`CpuSetError` with the position.
        """
        if len(text) > _LONGEST_TEXT:
            raise CpuSetError(f"text of {len(text)} characters is too long", text, _LONGEST_TEXT)
        plain = _parse_plain(text)
        if plain is not None:
            return cls.from_mask(plain)
        scan = _Scanner(text.rstrip(" \t\r\n\0"))
        while scan.take(" ") or scan.take("\t"):
            pass
        if scan.at == len(scan.text):
            return cls.from_mask(0)
        mask = 0
        while True:
            mask |= cls._parse_item(scan)
            if scan.at == len(scan.text):
                return cls.from_mask(mask)
            if not scan.take(","):
                scan.fail(f"expected ',' or '-', found {scan.text[scan.at]!r}")

    @staticmethod
    def _parse_item(scan: _Scanner) -> int:
        begin = scan.at
        first = last = scan.number("a CPU number")
        if scan.take("-"):
            last = scan.number("the end of the range")
            if last < first:
                scan.fail(f"range {first}-{last} runs backwards", begin)
        width = last - first + 1
        if not scan.take(":"):
            return ((1 << width) - 1) << first
        used = scan.number("the number of CPUs to use of each group")
        if not scan.take("/"):
            scan.fail("expected '/' and the group size")
        group = scan.number("the group size")
        if group == 0 or not 0 < used <= group:
            scan.fail(f"stride {used}/{group} must use 1 to {max(group, 1)} of each group", begin)
        pattern, step = (1 << used) - 1, group
        while step < width:  # double the pattern until it covers the range
            pattern |= pattern << step
            step *= 2
        return (pattern & ((1 << width) - 1)) << first

    @classmethod
    def parse_mask(cls, text: str) -> CpuSet:
        """Read the kernel's mask format, words of 1 to 8 hexadecimal digits; raises :class:`CpuSetError`."""
        stripped = text.strip(" \t\r\n\0")
        if len(stripped) > MAX_CPU // 2:
            raise CpuSetError("mask is too long", stripped, MAX_CPU // 2)
        mask, at = 0, 0
        for word in stripped.split(","):
            for offset, char in enumerate(word):
                if char not in _HEX:
                    raise CpuSetError(f"expected a hexadecimal digit, found {char!r}", stripped, at + offset)
            if not 1 <= len(word) <= 8:
                raise CpuSetError("a word has 1 to 8 hexadecimal digits", stripped, at)
            mask = mask << 32 | int(word, 16)
            at += len(word) + 1
        if mask.bit_length() > MAX_CPU:
            raise CpuSetError(f"mask names CPUs above {MAX_CPU - 1}", stripped, 0)
        return cls.from_mask(mask)

    def __str__(self) -> str:
        """The kernel's list format: ``0-3,8``; empty for the empty set."""
        parts: list[str] = []
        mask, base = self._mask, 0
        while mask:
            skip = (mask & -mask).bit_length() - 1
            mask >>= skip
            base += skip
            run = (~mask & (mask + 1)).bit_length() - 1  # trailing ones
            parts.append(str(base) if run == 1 else f"{base}-{base + run - 1}")
            mask >>= run
            base += run
        return ",".join(parts)

    def to_mask_text(self) -> str:
        """The kernel's mask format, eight digits a word: ``00000001,00000000``."""
        words = max(1, -(-self._mask.bit_length() // 32))
        return ",".join(f"{self._mask >> 32 * i & 0xFFFFFFFF:08x}" for i in reversed(range(words)))

    def __repr__(self) -> str:
        return f"CpuSet({str(self)!r})"

    @property
    def mask(self) -> int:
        """The bitmask: bit *n* is set when *n* is in the set."""
        return self._mask

    def __len__(self) -> int:
        return self._mask.bit_count()

    def __bool__(self) -> bool:
        return self._mask != 0

    def __iter__(self) -> Iterator[int]:
        """The numbers in ascending order."""
        mask = self._mask
        if mask.bit_length() > 512 and mask.bit_count() > 8:
            # Long and not sparse: walk machine-sized words, not one huge integer.
            data = mask.to_bytes(-(-mask.bit_length() // 64) * 8, "little")
            for base in range(0, len(data), 8):
                word = int.from_bytes(data[base : base + 8], "little")
                while word:
                    low = word & -word
                    yield base * 8 + low.bit_length() - 1
                    word ^= low
            return
        while mask:
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number >= 0 and bool(self._mask >> number & 1)

    def min(self) -> int:
        """The lowest number. Raises ``ValueError`` for the empty set."""
        if not self._mask:
            raise ValueError("an empty CpuSet has no lowest CPU")
        return (self._mask & -self._mask).bit_length() - 1

    def max(self) -> int:
        """The highest number. Raises ``ValueError`` for the empty set."""
        if not self._mask:
            raise ValueError("an empty CpuSet has no highest CPU")
        return self._mask.bit_length() - 1

    def lowest(self, count: int) -> CpuSet:
        """The *count* lowest numbers, or all if there are fewer."""
        return CpuSet.from_mask(self._lowest_mask(max(0, count)))

    def highest(self, count: int) -> CpuSet:
        """The *count* highest numbers, or all if there are fewer."""
        rest = self._lowest_mask(max(0, len(self) - max(0, count)))
        return CpuSet.from_mask(self._mask ^ rest)

    def _lowest_mask(self, count: int) -> int:
        """Halve the span by popcount until exactly *count* bits lie below it."""
        mask = self._mask
        if count >= mask.bit_count():
            return mask
        low, high = 0, mask.bit_length()
        while low < high:
            middle = (low + high) // 2
            if (mask & ((1 << middle) - 1)).bit_count() < count:
                low = middle + 1
            else:
                high = middle
        return mask & ((1 << low) - 1)

    def __or__(self, other: CpuSet) -> CpuSet:
        return CpuSet.from_mask(self._mask | other._mask)

    def __and__(self, other: CpuSet) -> CpuSet:
        return CpuSet.from_mask(self._mask & other._mask)

    def __sub__(self, other: CpuSet) -> CpuSet:
        return CpuSet.from_mask(self._mask & ~other._mask)

    def isdisjoint(self, other: CpuSet) -> bool:
        """Whether the two have no number in common."""
        return not self._mask & other._mask

    def __le__(self, other: CpuSet) -> bool:
        return not self._mask & ~other._mask

    def __lt__(self, other: CpuSet) -> bool:
        return self._mask != other._mask and self <= other

    @staticmethod
    def union(sets: Iterable[CpuSet]) -> CpuSet:
        """The union of all *sets*."""
        mask = 0
        for each in sets:
            mask |= each._mask
        return CpuSet.from_mask(mask)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CpuSet) and self._mask == other._mask

    def __hash__(self) -> int:
        return hash((CpuSet, self._mask))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"CpuSet is immutable: cannot set {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"CpuSet is immutable: cannot delete {name!r}")

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return CpuSet.from_mask, (self._mask,)


EMPTY: Final = CpuSet()
"""The empty set."""
