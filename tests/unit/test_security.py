"""The threat model: each row of SECURITY.md names tests, and these tests exist."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.attack.removals.catalogue import ALL, WITHOUT_REMOVAL
from tests.attack.removals.removal import Removal

ROOT = Path(__file__).resolve().parents[2]
HEAD = ["attack", "what it could do", "protection", "test"]
ATTACKERS_MIN = 8


class Row(NamedTuple):
    attacker: str
    cells: list[str]

    def tests(self) -> list[tuple[str, str]]:
        """Return the file and the function of each test that the row names."""
        return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", self.cells[-1])


def rows_of(text: str) -> list[Row]:
    """Return the rows of the tables with the head of attacks, with the section of each."""
    rows, attacker, is_attacks = [], "", False
    for line in text.splitlines():
        if line.startswith("#"):
            attacker = line.lstrip("# ")
        if not line.startswith("|"):
            is_attacks = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells == HEAD:
            is_attacks = True
        elif is_attacks and not re.fullmatch(r"[|\s:-]+", line):
            rows.append(Row(attacker, cells))
    return rows


ROWS = rows_of((ROOT / "SECURITY.md").read_text())


def rows_about(removal: Removal) -> list[Row]:
    """Return the rows of the attack of a removal that name its test."""
    named = tuple(removal.test.split("::"))
    return [row for row in ROWS if row.cells[0].startswith(removal.attack) and named in row.tests()]


@cache
def functions(file: str) -> frozenset[str]:
    """Return the names of the tests in a file, those of classes included."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


def test_the_threat_model_has_attacks_of_every_attacker() -> None:
    assert len({row.attacker for row in ROWS}) >= ATTACKERS_MIN


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.attacker}: {row.cells[0]}"[:70])
def test_each_attack_has_a_protection_and_tests_that_exist(row: Row) -> None:
    assert len(row.cells) == len(HEAD), row.cells
    assert all(row.cells), row.cells
    assert row.tests(), f"no test is named: {row.cells[0]}"
    missing = [f"{file}::{name}" for file, name in row.tests() if name not in functions(file)]
    assert not missing


def test_each_file_of_attacks_is_named() -> None:
    named = {file for row in ROWS for file, _ in row.tests()}
    attacks = {f"tests/attack/{path.name}" for path in (ROOT / "tests/attack").glob("test_*.py")}

    assert not attacks - named, "enter the attacks in SECURITY.md, with their protections"


@pytest.mark.parametrize("removal", ALL, ids=lambda each: f"{each.attack}: {each.test}"[-90:])
def test_each_removal_belongs_to_a_row_and_can_be_applied(removal: Removal) -> None:
    assert len(rows_about(removal)) == 1
    for change in removal.changes:
        assert (ROOT / change.file).read_text().count(change.old) == 1, change
        assert change.new != change.old


def test_each_row_has_a_removal_or_the_reason_why_it_has_none() -> None:
    tried = {row.cells[0] for each in ALL for row in rows_about(each)}
    excused = {
        row.cells[0] for row in ROWS for text in WITHOUT_REMOVAL if row.cells[0].startswith(text)
    }

    assert not tried & excused
    assert {row.cells[0] for row in ROWS} == tried | excused
    assert all(WITHOUT_REMOVAL.values())


def test_a_row_without_a_test_is_noticed() -> None:
    table = f"### A peer\n\n| {' | '.join(HEAD)} |\n| --- | --- | --- | --- |\n"
    [row] = rows_of(table + "| junk | harm | none | `tests/unit/test_security.py::test_none` |\n")

    assert row.attacker == "A peer"
    assert row.tests() == [("tests/unit/test_security.py", "test_none")]
    assert "test_none" not in functions("tests/unit/test_security.py")
    assert "test_a_row_without_a_test_is_noticed" in functions("tests/unit/test_security.py")
