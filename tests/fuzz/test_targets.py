"""The fuzz targets without a fuzzer: their seeds, all earlier findings, and random mutations.

`make fuzz` runs the same targets guided by coverage.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.fuzz.limits import INPUT_BYTES_MAX
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
CORPUS_BYTES_MAX = 400 * 1024
MUTATIONS = 300


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_for_seeds_and_corpus(name: str):
    target = TARGETS[name]

    for seed in target.seeds():
        target.check(seed)
    for file in sorted((CORPUS / name).glob("*")):
        target.check(file.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_for_mutations_and_for_noise(name: str):
    target, random = TARGETS[name], Random(name)
    inputs = list(target.seeds())

    for _ in range(MUTATIONS):
        data = random.choice(inputs)
        if target.mutate is not None:
            data = target.mutate(data, INPUT_BYTES_MAX, random)
            inputs.append(data)
        target.check(data)
        target.check(random.randbytes(random.randrange(80)))
