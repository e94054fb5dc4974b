"""Kubernetes quantities (``2Gi``, ``1500m``, ``1e3``), exactly, as one integer of nano-units.

The rules are those of ``k8s.io/apimachinery/pkg/api/resource``:

* binary suffixes ``Ki Mi Gi Ti Pi Ei`` (powers of 1024), decimal ``n u m`` (none) ``k M G T P E``,
  or a decimal exponent ``e3``/``E3``;
* nothing finer than nano: more digits are rounded **up** (away from zero);
* a binary quantity is capped at 2⁶³ - 1, one below 1 becomes a decimal one;
* digits may be missing (``m`` is 0): the Go parser does not require them;
* the canonical form has no fraction, the largest suffix that keeps the number whole, and keeps the
  family (binary, decimal, exponent) it was written in. A binary quantity below 1024, or with a
  fraction, is written in decimal.
"""

from __future__ import annotations

import functools
import re
from typing import Final, Literal, NoReturn

_NANO: Final = 10**9
_MAX: Final = 2**63 - 1
_LARGEST_EXPONENT: Final = 1000
"""Larger exponents are rejected: they are never intended, and the number would be huge."""
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL: Final = {suffix: 3 * power for power, suffix in enumerate(("n", "u", "m", "", *"kMGTPE"), -3)}
_BINARY_NAMES: Final = {power: name for name, power in _BINARY.items()}
_DECIMAL_NAMES: Final = {power: name for name, power in _DECIMAL.items()}
_LONGEST_TEXT: Final = 256
_NUMBER: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?")
_EXPONENT: Final = re.compile(r"[eE]([+-]?[0-9]+)")

Family = Literal["binary", "decimal", "exponent"]


class QuantityError(ValueError):
    """A text that is not a valid quantity, with the reason and the position."""

    def __init__(self, reason: str, text: str, position: int) -> None:
        shown = text if len(text) <= 60 else text[:57] + "…"
        super().__init__(f"{reason} at position {position}: {shown!r}")
        self.reason = reason
        self.text = text
        self.position = position


def _split_number(text: str) -> tuple[int, str, str, int]:
    """Return sign, digits before and after the point, and where the suffix begins."""
    found = _NUMBER.match(text)
    assert found is not None  # it matches the empty text too
    return -1 if found[1] == "-" else 1, found[2], found[3] or "", found.end()


def _parse_suffix(text: str, at: int) -> tuple[Family, int]:
    """Return the family and the power (of 1024 or of 10) that the suffix stands for."""
    suffix = text[at:]
    if suffix in _BINARY:
        return "binary", _BINARY[suffix]
    if suffix in _DECIMAL:
        return "decimal", _DECIMAL[suffix]
    if exponent := _EXPONENT.fullmatch(suffix):
        power = int(exponent[1])
        if abs(power) > _LARGEST_EXPONENT:
            raise QuantityError(f"exponent is beyond {_LARGEST_EXPONENT}", text, at)
        return "exponent", power
    raise QuantityError(f"unknown suffix {suffix!r} (want one of Ki Mi Gi … n u m k M G … e3)", text, at)


def _divide_up(number: int, divisor: int) -> int:
    """Divide a number of either sign, rounding away from zero."""
    return -(-number // divisor) if number >= 0 else number // divisor


@functools.total_ordering
class Quantity:
    """An exact Kubernetes quantity; equal and ordered by value, whatever its spelling.

    >>> Quantity("1.5Gi") + Quantity("512Mi")
    Quantity('2Gi')
    """

    __slots__ = ("_family", "_nanos")
    _nanos: int
    _family: Family

    def __init__(self, value: str | int) -> None:
        """Raises :class:`QuantityError` for any text that the API server would reject."""
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise TypeError(f"a quantity is a text or a whole number, not {type(value).__name__}")
        if isinstance(value, int):
            nanos, family = value * _NANO, "decimal"
        else:
            nanos, family = self._read(value)
        object.__setattr__(self, "_nanos", nanos)
        object.__setattr__(self, "_family", family)

    @staticmethod
    def _read(text: str) -> tuple[int, Family]:
        if not text:
            raise QuantityError("a quantity cannot be empty", text, 0)
        if len(text) > _LONGEST_TEXT:
            raise QuantityError(f"text of {len(text)} characters is too long", text, _LONGEST_TEXT)
        sign, whole, fraction, at = _split_number(text)
        family, power = _parse_suffix(text, at)
        if not whole and not fraction and family == "binary" and power >= _BINARY["Pi"]:
            # apimachinery parses these in a second way, which requires digits.
            raise QuantityError("expected digits", text, at)
        digits = int(whole + fraction or "0")
        if family == "binary":
            nanos = _divide_up(digits * 1024**power * _NANO, 10 ** len(fraction))
            nanos = min(nanos, _MAX * _NANO)
            return sign * nanos, "decimal" if 0 < nanos < _NANO else "binary"
        shift = power - len(fraction) + 9
        nanos = digits * 10**shift if shift >= 0 else _divide_up(digits, 10**-shift)
        return sign * nanos, family

    @classmethod
    def from_nanos(cls, nanos: int, family: Family = "decimal") -> Quantity:
        """The quantity of *nanos* billionths, to be written in *family*."""
        self = cls.__new__(cls)
        object.__setattr__(self, "_nanos", nanos)
        object.__setattr__(self, "_family", family)
        return self

    @classmethod
    def from_bytes(cls, count: int) -> Quantity:
        """A whole number written with binary suffixes: ``from_bytes(2**31)`` is ``2Gi``."""
        return cls.from_nanos(count * _NANO, "binary")

    @property
    def nanos(self) -> int:
        """The exact value in billionths."""
        return self._nanos

    @property
    def family(self) -> Family:
        """The spelling it keeps: ``binary``, ``decimal`` or ``exponent``."""
        return self._family

    def ceil(self) -> int:
        """The value as an integer, rounded up (away from zero), as ``Quantity.Value()`` does."""
        return _divide_up(self._nanos, _NANO)

    def __str__(self) -> str:
        """The canonical form, as the API server writes it."""
        if self._nanos == 0:
            return "0"
        sign, nanos = ("-", -self._nanos) if self._nanos < 0 else ("", self._nanos)
        if self._family == "binary" and nanos >= 1024 * _NANO and nanos % _NANO == 0:
            number, power = nanos // _NANO, 0
            while number % 1024 == 0 and power < 6:
                number //= 1024
                power += 1
            return f"{sign}{number}{_BINARY_NAMES.get(power, '')}"
        number, power = nanos, -9
        exponent = self._family == "exponent"
        while number % 1000 == 0 and (power < 18 or exponent):
            number //= 1000
            power += 3
        if exponent:
            return f"{sign}{number}e{power}" if power else f"{sign}{number}"
        return f"{sign}{number}{_DECIMAL_NAMES[power]}"

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def _with(self, other: Quantity, nanos: int) -> Quantity:
        """*nanos* in the left operand's spelling, unless that is zero."""
        return Quantity.from_nanos(nanos, self._family if self._nanos else other._family)

    def __add__(self, other: Quantity) -> Quantity:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self._with(other, self._nanos + other._nanos)

    def __sub__(self, other: Quantity) -> Quantity:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self._with(other, self._nanos - other._nanos)

    def __mul__(self, factor: int) -> Quantity:
        if isinstance(factor, bool) or not isinstance(factor, int):
            return NotImplemented
        return Quantity.from_nanos(self._nanos * factor, self._family)

    __rmul__ = __mul__

    def __neg__(self) -> Quantity:
        return Quantity.from_nanos(-self._nanos, self._family)

    def __bool__(self) -> bool:
        return self._nanos != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self._nanos == other._nanos

    def __lt__(self, other: Quantity) -> bool:
        if not isinstance(other, Quantity):
            return NotImplemented
        return self._nanos < other._nanos

    def __hash__(self) -> int:
        return hash((Quantity, self._nanos))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"Quantity is immutable: cannot set {name!r}")

    def __reduce__(self) -> tuple[object, tuple[int, Family]]:
        return Quantity.from_nanos, (self._nanos, self._family)


ZERO: Final = Quantity(0)
"""No amount."""
