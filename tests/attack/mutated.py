"""Contents of requests with a few random faults: other bytes, missing, repeated and odd ones."""

from __future__ import annotations

import random
from collections.abc import Sequence


def mutated(chance: random.Random, data: bytes, odd: Sequence[bytes], *, faults_max: int) -> bytes:
    """Return `data` with 1 to `faults_max` faults; pieces of `odd` are among them."""
    found = bytearray(data)
    for _ in range(chance.randint(1, faults_max)):
        if not found:
            break
        at = chance.randrange(len(found))
        match chance.randrange(4):
            case 0:
                found[at] = chance.randrange(256)
            case 1:
                del found[at : at + chance.randint(1, 8)]
            case 2:
                found[at:at] = found[at : at + chance.randint(1, 30)]
            case _:
                found[at:at] = chance.choice(odd)
    return bytes(found)
