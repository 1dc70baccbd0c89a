"""Tables and lists in the text output of the command line."""

import pytest

from qmd.cli.output import print_facts, print_rows, shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", "-"),
        ([], "-"),
        (0, "0"),
        (False, "no"),
        (["a", 1], "a, 1"),
        ({"a": 1, "b": None}, "a 1, b -"),
        (b"\x01\xff", "01ff"),
        ("\x1b[2J\nÄ", r"\x1b[2J\nÄ"),
    ],
)
def test_values_are_shown_in_a_readable_form(value, text):
    assert shown(value) == text


def test_numbers_are_aligned_on_the_right(capsys):
    rows = [{"name": "a", "messages": 5, "open": True}, {"name": "long", "messages": 1000}]
    columns = [("NAME", "name"), ("MESSAGES", "messages"), ("OPEN", "open")]

    print_rows(rows, columns, as_json=False, none="nothing")

    assert capsys.readouterr().out == (
        "NAME  MESSAGES  OPEN\na            5  yes\nlong      1000  -\n"
    )


def test_nested_values_are_indented(capsys):
    facts = {"state": "waiting", "sequence": {"id": 7}, "history": [{"ago_s": 1, "result": "no"}]}

    print_facts(facts, as_json=False)

    assert capsys.readouterr().out == (
        "state     waiting\nsequence\n  id  7\nhistory\n  ago_s 1, result no\n"
    )
