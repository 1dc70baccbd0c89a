"""The table of conformance: every sentence has a row, and every row code and tests that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.rules import BadRules, Rule, faults, read_rules
from tests.conformance.table import PAGE, page

#: Sentences with MUST or SHOULD, in the sections of the table.
SENTENCES = {
    "MS-MQQB": 743,
    "MC-MQSRM": 723,
    "MS-MQMQ": 231,
}
GOOD = Rule(
    "MS-MQQB",
    "1",
    1,
    "A rule.",
    ("tests.conformance.rules:Rule.name",),
    ("tests/conformance/test_rules.py::test_no_row_is_without_its_code_and_its_test",),
)


def test_no_row_is_without_its_code_and_its_test() -> None:
    rules = read_rules()

    assert faults(rules) == []
    for document, count in SENTENCES.items():
        assert sum(rule.document == document for rule in rules) == count


def test_the_page_shows_the_rules() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(read_rules()), (
        "write it: python -m tests.conformance.table"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"code": ()}, "no code"),
        ({"tests": ()}, "no test"),
        ({"code": ("tests.conformance.rules:gone",)}, "no symbol"),
        ({"code": ("tests.conformance.rules:Rule.gone",)}, "no symbol"),
        ({"code": ("tests.conformance.gone:Rule",)}, "no symbol"),
        ({"tests": ("tests/conformance/test_rules.py::test_gone",)}, "no test tests/"),
        ({"tests": ("tests/conformance/gone.py::test_gone",)}, "no test tests/"),
        ({"verdict": "differs"}, "without a reason"),
        ({"number": 2}, "are missing or doubled"),
    ],
)
def test_a_row_that_lacks_something_is_a_fault(changes: dict[str, object], words: str) -> None:
    assert faults([GOOD]) == []

    (fault,) = faults([GOOD._replace(**changes)])  # type: ignore[arg-type]

    assert words in fault


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[MS-MQQB]", "1. No verdict. {because: so}", "code: UNKNOWN:Symbol", "alias x"],
)
def test_a_line_that_breaks_the_grammar_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "odd.txt").write_text(f"[MS-MQQB 1]\n{line}\n")

    with pytest.raises(BadRules, match=r"odd\.txt, line 2"):
        read_rules(tmp_path)
