"""Hostile texts stay text, in their place."""

import pytest

from qmd.console.render import Templates, address, command_line
from qmd.console.text import age, lines, moment, size, visible


def rendered(template: str, **values: object) -> str:
    templates = Templates()
    return templates._environment.from_string(template).render(values)


@pytest.mark.parametrize("sign", ["\u202e", "\u2066", "\u200f", "\ufeff", "\U000e0041", "\u2028"])
def test_characters_that_change_the_direction_are_made_visible(sign):
    assert visible(f"a{sign}b") == f"a\u27e8U+{ord(sign):04X}\u27e9b"


@pytest.mark.parametrize("sign", ["\x00", "\x1b", "\x7f", "\x85", "\ud800"])
def test_control_characters_are_made_visible(sign):
    assert sign not in visible(f"a{sign}b")
    assert sign not in lines(f"a{sign}b")


def test_a_line_stays_one_line_and_a_body_keeps_its_lines():
    assert "\n" not in visible("a\nb\r\nc")
    assert lines("a\r\nb\tc") == "a\nb\tc"


def test_piles_of_marks_are_cut():
    assert len(visible("e" + "\u0301" * 1000)) == 4


def test_a_long_text_is_cut_and_says_so():
    assert visible("x" * 500, 10) == "x" * 10 + "\u2026"


def test_markup_of_messages_is_escaped():
    page = rendered(
        '<p title="{{ label|visible }}">{{ label|t }}</p>', label='"><script>x</script>'
    )

    assert "<script" not in page
    assert page.count('"') == 2


def test_an_address_quotes_names():
    found = address("hosts", "a/b", "queue", name="x&y=<", empty="")

    assert found == "/hosts/a%2Fb/queue?name=x%26y%3D%3C"


def test_a_command_can_be_copied_into_a_shell():
    assert command_line(["qmd", "purge", "a b; rm"]) == "qmd purge 'a b; rm'"


def test_numbers_for_people():
    assert [size(0), size(1500), size(2_500_000)] == ["0 B", "1.5 kB", "2.5 MB"]
    assert [age(5), age(600), age(90_000), age(None)] == ["5 s", "10 min", "25 h", "\u2013"]
    assert moment(0) == "\u2013"
    assert moment(1_000) == "1970-01-01 00:00:01"
    assert moment(10**18) == str(10**18)
