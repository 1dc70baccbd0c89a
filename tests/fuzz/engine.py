"""Targets under atheris: `python -m tests.fuzz.engine JOBS < RUNS`.

Standard input has one run on each line, as JSON: `[target, file for the output, [libFuzzer
arguments]]`.  For each ended run a line `target exit-code` is printed.

The packages of the project are instrumented, and so are the functions that are derived from
layouts, which no import hook sees.  That takes longer than a short run: it is done once, and each
target then runs in a forked process, because libFuzzer ends its process.
"""

from __future__ import annotations

import gc
import json
import os
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
    jobs = int(sys.argv[1])
    for codec in [it for it in gc.get_objects() if isinstance(it, Codec)]:
        atheris.instrument_func(codec.parse)
        atheris.instrument_func(codec.build)
    running: dict[int, str] = {}
    for line in sys.stdin:
        if len(running) >= jobs:
            _wait(running)
        name, output, options = json.loads(line)
        process = os.fork()
        if process == 0:
            _fuzz(TARGETS[name], output, options)
        running[process] = name
    while running:
        _wait(running)


def _wait(running: dict[int, str]) -> None:
    """Wait until one of the forked processes ends, and print its result."""
    process, status = os.wait()
    print(running.pop(process), os.waitstatus_to_exitcode(status), flush=True)


def _fuzz(target: Target, output: str, options: list[str]) -> None:
    """Run one target; libFuzzer ends the process."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        mutator = {} if target.mutate is None else {"custom_mutator": _mutator(target)}
        atheris.Setup(["fuzz", *options], _test_one_input(target), **mutator)
        atheris.Fuzz()
    except BaseException as error:  # the loop of the parent process must not go on in this one
        print(repr(error), file=sys.stderr, flush=True)
    finally:
        os._exit(1)


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
