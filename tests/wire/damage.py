"""Damaged bytes for decoders: valid ones changed, cut, doubled and inserted, and plain noise.

The random numbers are seeded, so a failure repeats; it shows the bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

import pytest


def damaged(samples: list[bytes], seed: int, count: int) -> Iterator[bytes]:
    """Each sample as it is, then *count* damaged ones."""
    yield from samples
    chance = random.Random(seed)
    for _ in range(count):
        data = bytearray(chance.choice(samples))
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(data) + 1)
            match chance.randrange(6):
                case 0 if place < len(data):
                    data[place] = chance.randrange(256)
                case 1 if place < len(data):
                    data[place] ^= 1 << chance.randrange(8)
                case 2:
                    del data[place:]
                case 3:
                    data[place:place] = chance.randbytes(chance.randint(1, 5))
                case 4:
                    data[place:place] = data[: chance.randint(0, 20)]
                case _:
                    data = bytearray(chance.randbytes(chance.randint(0, 40)))
        yield bytes(data)


def survive(
    work: Callable[[bytes], object],
    allowed: type[Exception] | tuple[type[Exception], ...],
    inputs: Iterable[bytes],
) -> int:
    """Run *work* on all inputs; returns how many were accepted."""
    accepted = 0
    for data in inputs:
        try:
            work(data)
        except allowed:
            continue
        except Exception as error:
            pytest.fail(f"{data.hex()}: {error!r}")
        accepted += 1
    return accepted
