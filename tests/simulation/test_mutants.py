"""The faults that `make mutants` puts into the code have to be faults of the present code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.simulation.mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent.parent
MUTANTS_MIN = 40


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_applies_to_one_place_and_leaves_a_program(mutant: Mutant):
    source = (ROOT / mutant.file).read_text()

    assert source.count(mutant.old) == 1
    ast.parse(source.replace(mutant.old, mutant.new))
    file, _, name = mutant.test.partition("::")
    assert not file or f"def {name}" in (ROOT / file).read_text()


def test_there_are_enough_of_them_each_with_a_name_of_its_own():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= MUTANTS_MIN
