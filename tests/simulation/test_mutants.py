"""Each mutant of `make mutants` must apply to the present code."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.simulation.mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent.parent
MUTANTS_MIN = 40


def test_each_mutant_applies_to_one_place_and_compiles():
    assert {mutant.name: fault for mutant in MUTANTS if (fault := fault_of(mutant))} == {}


def fault_of(mutant: Mutant) -> str:
    """Return the reason why a mutant cannot be tried; an empty text: it can."""
    source = read(mutant.file)
    if (places := source.count(mutant.old)) != 1:
        return f"{places} places of {mutant.file}"
    try:
        ast.parse(source.replace(mutant.old, mutant.new))
    except SyntaxError as error:
        return str(error)
    file, _, name = mutant.test.partition("::")
    return "" if not file or f"def {name}" in read(file) else f"there is no {mutant.test}"


@cache
def read(file: str) -> str:
    return (ROOT / file).read_text()


def test_mutants_differ_in_their_names_and_changes():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= MUTANTS_MIN
    changes = {(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}
    assert len(changes) == len(MUTANTS)
