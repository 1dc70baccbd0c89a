"""Each mutant of `make mutants` must apply to the present code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.simulation.mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent.parent
MUTANTS_MIN = 40


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_to_one_place_and_compiles(mutant: Mutant):
    source = (ROOT / mutant.file).read_text()

    assert source.count(mutant.old) == 1
    ast.parse(source.replace(mutant.old, mutant.new))
    file, _, name = mutant.test.partition("::")
    assert not file or f"def {name}" in (ROOT / file).read_text()


def test_mutants_differ_in_their_names_and_changes():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= MUTANTS_MIN
    changes = {(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}
    assert len(changes) == len(MUTANTS)
