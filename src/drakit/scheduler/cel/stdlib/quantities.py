"""Quantities in CEL expressions.

``asInteger()`` and ``isInteger()`` of Kubernetes depend on how apimachinery stores the text, not on
the value: ``0.5Gi``, ``1000m`` and ``123456Gi`` are integers that it does not recognize as such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from drakit.core.quantity import Quantity

_PARTS: Final = re.compile(r"[+-]?0*([0-9]*)(?:\.([0-9]*))?([a-zA-Z]?i?)(?:[eE]?([+-]?[0-9]+))?")
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL: Final = {
    "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Amount:
    """A quantity; *integral* if apimachinery stores it as int64, *computed* if it is a result."""

    quantity: Quantity
    integral: bool
    computed: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Amount) and self.quantity == other.quantity

    def __hash__(self) -> int:
        return hash(self.quantity)

    def plus(self, other: Amount) -> Amount:
        """The sum."""
        return Amount(self.quantity + other.quantity, self.integral and other.integral, True)

    def minus(self, other: Amount) -> Amount:
        """The difference."""
        return Amount(self.quantity - other.quantity, self.integral and other.integral, True)


def amount(text: str) -> Amount:
    """Parse a quantity. Raises ``QuantityError``."""
    return Amount(Quantity(text), _integral(text))


def stored(quantity: Quantity) -> Amount:
    """A quantity in the canonical form in which the API server stores it."""
    return Amount(quantity, _integral(str(quantity)))


def whole(number: int) -> Amount:
    """An integer as a quantity."""
    return Amount(Quantity(number), True)


def _integral(text: str) -> bool:
    match = _PARTS.fullmatch(text)
    if match is None:
        return False
    digits, fraction, suffix, exponent = match[1], match[2] or "", match[3], match[4]
    if suffix in _BINARY:
        power = _BINARY[suffix]
        if fraction or 15 - len(digits) - int(power * 0.3) - 1 < 0:
            return False
        return int(digits or "0") << power < 2**63
    scale = int(exponent) if exponent else _DECIMAL.get(suffix, -99)
    if 18 - len(digits) - len(fraction) < 0 or not 0 <= scale - len(fraction) < 19:
        return False
    number: int = int(digits + fraction or "0") * 10 ** (scale - len(fraction))
    return number < 2**63
