"""Selectors: their rules, one by one; tests/properties/test_selectors.py compares them with SQL."""

import pytest

from qmd.core.selectors.like import TEXT_CHARACTERS_MAX, compile_like
from qmd.core.selectors.operations import Value
from qmd.core.selectors.parser import DEPTH_MAX, OPERANDS_MAX, parse_selector
from qmd.core.selectors.tokens import BadSelector
from tests.unit.searches import never_going_back

PROPERTIES: dict[str, Value] = {
    "region": "east",
    "weight": 3,
    "price": 2.5,
    "urgent": True,
    "late": False,
    "x-opt": "quoted",
    "a.b$c": 7,
    "größe": 12,
    "quote": "it's",
}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("region = 'east'", True),
        ("region <> 'east'", False),
        ("weight > 2 and price <= 2.5", True),
        ("weight * 2 + 1 = 7", True),
        ("weight + 1 * 2 = 5", True),
        ("(weight + 1) * 2 = 8", True),
        ("7 / 2 = weight", True),  # integers, as in Java
        ("-7 / 2 = -weight", True),
        ("7 / 2.0 = 3.5", True),
        ("weight = 3.0", True),
        ("10 - 4 - 3 = weight", True),
        ("- - weight = 3 AND +weight = 3", True),
        ("weight = 0x3 AND 010 = 8 AND weight = 3L AND price = 25e-1 AND .5 < 1. AND 1f = 1", True),
        ("urgent", True),
        ("urgent AND NOT late", True),
        ("urgent = TRUE AND late = false", True),
        ("NOT (urgent AND late)", True),
        ("late OR urgent", True),
        ("late OR urgent AND late", False),
        ("weight BETWEEN 3 AND 4 AND weight NOT BETWEEN 4 AND 5", True),
        ("region IN ('west', 'east') AND region NOT IN ('north')", True),
        ("region LIKE 'e%' AND region LIKE '_ast' AND region NOT LIKE 'E%'", True),
        ("quote = 'it''s'", True),
        ("\"x-opt\" = 'quoted' AND a.b$c = 7 AND größe = 12", True),
        ("missing IS NULL AND weight IS NOT NULL", True),
        # Unknown values.
        ("missing = 1", False),
        ("NOT missing = 1", False),
        ("NOT missing", False),
        ("missing = 1 OR urgent", True),
        ("missing = 1 AND late", False),
        ("NOT (missing = 1 AND late)", True),
        ("missing + 1 > 0 OR missing IN ('a') OR missing LIKE '%'", False),
        ("NOT (missing BETWEEN 1 AND 2)", False),
        ("NOT (weight BETWEEN 4 AND missing)", True),
        ("weight / 0 = 1 OR NOT weight / 0 = 1", False),
        # Values of other kinds: the comparison is false (clause 3.8.1.3).
        ("region = 3", False),
        ("NOT region = 3", True),
        ("urgent = 1", False),
        ("region > 3", False),
        ("weight LIKE '3'", False),
        ("weight IN ('3')", False),
        ("region", False),
        ("NOT region", False),
        ("region + 1 = 2", False),
        # No number grows too large, and none ends the evaluation.
        ("9223372036854775807 + 1 > 9223372036854775807", True),
        ("-9223372036854775808 < 0", True),
        ("1e300 * 1e300 > 1e308", True),
        (" * ".join(["9223372036854775807"] * 40) + " * 0.5 > 1", False),
    ],
)
def test_conditions(text: str, matches: bool) -> None:
    assert parse_selector(text).matches(PROPERTIES.get) is matches


@pytest.mark.parametrize(
    ("text", "reason", "at"),
    [
        ("", "empty", 0),
        ("   ", "empty", 0),
        ("5", "a condition is expected in place of a number", 0),
        ("'a' AND b", "a condition is expected in place of a text", 0),
        ("a = ", "in place of the end", 4),
        ("a = 1 b", "'b' is not expected", 6),
        ("a = 'x", "a text without its end", 4),
        ("a ! b", "an unexpected '!'", 2),
        ("a LIKE 5", "a text is expected", 7),
        ("a LIKE 'x' ESCAPE 'ab'", "ESCAPE takes one character", 18),
        ("a LIKE 'x\\' ESCAPE '\\'", "ends with the escape character", 7),
        ("'x' LIKE 'y'", "the name of a property is expected before LIKE", 0),
        ("1 IN ('y')", "the name of a property is expected before IN", 0),
        ("a IN ()", "a text is expected", 6),
        ("a IS 5", "NULL is expected", 5),
        ("a NOT 5", "BETWEEN, LIKE or IN", 6),
        ("'x' < 3", "a number is expected in place of a text", 0),
        ("1 = 'a'", "a number is compared with a text", 0),
        ("TRUE > 1", "a number is expected in place of a condition", 0),
        ("9223372036854775808 = a", "more than 64 bits", 0),
        ("09 = a", "leading 0", 0),
        ("(a", ") is expected", 2),
    ],
)
def test_refusals_name_the_reason_and_the_place(text: str, reason: str, at: int) -> None:
    with pytest.raises(BadSelector, match=reason.replace("(", r"\(").replace(")", r"\)")) as error:
        parse_selector(text)
    assert error.value.at == at


def test_a_selector_that_is_too_complex_is_refused() -> None:
    parse_selector("(" * (DEPTH_MAX - 1) + "a" + ")" * (DEPTH_MAX - 1))
    for text, reason in (
        ("(" * DEPTH_MAX + "a" + ")" * DEPTH_MAX, "levels"),
        ("+".join("a" * (OPERANDS_MAX + 1)) + " = 1", "operands"),
        ("a = '" + "x" * 5000 + "'", "characters"),
    ):
        with pytest.raises(BadSelector, match=reason):
            parse_selector(text)
    chain = " OR ".join(["a = 1"] * (OPERANDS_MAX // 2))
    assert parse_selector(chain).matches({"a": 1}.get)
    assert parse_selector("NOT " * 1000 + "a").matches({"a": True}.get)


def test_a_pattern_never_goes_back() -> None:
    """With a search that goes back this would take longer than the age of the universe."""
    text = "a" * TEXT_CHARACTERS_MAX
    with never_going_back():
        assert compile_like("%".join("a" * 500) + "%b")(text) is False
        assert compile_like("%" + "_a%" * 500 + "b")(text) is False
        assert compile_like("%" + "_a%" * 500)(text) is True


def test_a_text_that_is_too_long_is_not_compared() -> None:
    text = "a" * (TEXT_CHARACTERS_MAX + 1)
    assert compile_like("a%")(text) is None
    assert compile_like("a")(text) is None
    assert not parse_selector("t LIKE 'a%'").matches({"t": text}.get)


@pytest.mark.parametrize(
    ("pattern", "escape", "text", "matches"),
    [
        ("", "", "", True),
        ("", "", "a", False),
        ("%", "", "", True),
        ("_", "", "", False),
        ("a%a", "", "a", False),
        ("a%a", "", "aa", True),
        ("%ab%ab", "", "ab", False),
        ("a\\%", "\\", "a%", True),
        ("a\\%", "\\", "ab", False),
        ("a\\\\%", "\\", "a\\b", True),
        ("\\_\\a", "\\", "_a", True),
        ("_.", "", "\n.", True),
        ("[a]%", "", "[a]x", True),
    ],
)
def test_patterns(pattern: str, escape: str, text: str, matches: bool) -> None:
    assert compile_like(pattern, escape)(text) is matches
