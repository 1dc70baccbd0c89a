"""One target under atheris: `python -m tests.fuzz.engine TARGET [libFuzzer arguments]`.

It runs in a process of its own, because libFuzzer ends it.  The packages of the project are
instrumented, and so are the functions that are derived from layouts, which no import hook sees.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from typing import Any

import atheris

INSTRUMENTED = ["protocol", "qmd"]
STRUCTURED = 0.7  # of the mutations; the others are libFuzzer's own

with atheris.instrument_imports(include=INSTRUMENTED):
    from protocol.codec.derive import Codec
    from tests.fuzz.limits import Memory
    from tests.fuzz.target import Target
    from tests.fuzz.targets import TARGETS


def main() -> None:
    name, *options = sys.argv[1:]
    target = TARGETS[name]
    for codec in [it for it in gc.get_objects() if isinstance(it, Codec)]:
        atheris.instrument_func(codec.parse)
        atheris.instrument_func(codec.build)
    mutator = {} if target.mutate is None else {"custom_mutator": _mutator(target)}
    atheris.Setup([sys.argv[0], *options], _test_one_input(target), **mutator)
    atheris.Fuzz()


def _test_one_input(target: Target) -> Callable[[bytes], None]:
    memory = Memory()

    def test_one_input(data: bytes) -> None:
        target.check(data)
        memory.check()

    return test_one_input


def _mutator(target: Target) -> Callable[[bytes, int, int], bytes]:
    mutate: Any = target.mutate

    def mutator(data: bytes, size_max: int, seed: int) -> bytes:
        drawn = random.Random(seed)
        if drawn.random() < STRUCTURED:
            return bytes(mutate(data, size_max, drawn))
        return bytes(atheris.Mutate(data, min(size_max, len(data) + 64)))

    return mutator


if __name__ == "__main__":
    main()
