"""Selectors against an oracle: SQL has the same three-valued logic, and SQLite evaluates it."""

import sqlite3
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from qmd.core.selectors.operations import Value
from qmd.core.selectors.parser import parse_selector
from qmd.core.selectors.tokens import BadSelector

NUMBERS = st.one_of(st.integers(-3, 9), st.sampled_from([0.5, -1.25, 2.0, 1e3]))
TEXTS = st.text("ab%_", max_size=4)
ROWS = st.fixed_dictionaries(
    {
        **dict.fromkeys(("i", "j"), st.none() | NUMBERS),
        **dict.fromkeys(("s", "t"), st.none() | TEXTS),
        **dict.fromkeys(("p", "q"), st.none() | st.booleans()),
    }
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


NUMERIC = st.recursive(
    st.sampled_from(["i", "j"]) | NUMBERS.map(lambda it: f"({it})" if it < 0 else str(it)),
    lambda inner: st.one_of(
        st.builds("{} {} {}".format, inner, st.sampled_from("+-*/"), inner),
        st.builds("({})".format, inner),
        inner.map("- {}".format),
    ),
    max_leaves=5,
)
NOT = st.sampled_from(["", "NOT "])
NAMES = st.sampled_from(["s", "t"])
CONDITIONS = st.one_of(
    st.builds(
        "{} {} {}".format, NUMERIC, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), NUMERIC
    ),
    st.builds("{} {}BETWEEN {} AND {}".format, NUMERIC, NOT, NUMERIC, NUMERIC),
    st.builds("{} {} {}".format, NAMES, st.sampled_from(["=", "<>"]), TEXTS.map(quoted) | NAMES),
    st.builds("{} {}LIKE {}".format, NAMES, NOT, TEXTS.map(quoted)),
    st.builds(
        "{} {}LIKE {} ESCAPE '!'".format,
        NAMES,
        NOT,
        st.lists(st.sampled_from(["a", "b", "%", "_", "!%", "!_", "!!"]), max_size=4)
        .map("".join)
        .map(quoted),
    ),
    st.builds(
        "{} {}IN ({})".format,
        NAMES,
        NOT,
        st.lists(TEXTS.map(quoted), min_size=1, max_size=3).map(", ".join),
    ),
    st.builds("{} IS {}NULL".format, st.sampled_from("ijstpq"), NOT),
    st.sampled_from(["p", "q", "p = TRUE", "q <> FALSE", "TRUE", "false", "p = q"]),
)
SELECTORS = st.recursive(
    CONDITIONS,
    lambda inner: st.one_of(
        st.builds("{} {} {}".format, inner, st.sampled_from(["AND", "OR"]), inner),
        inner.map("({})".format),
        inner.map("NOT {}".format),
    ),
    max_leaves=6,
)

_db = sqlite3.connect(":memory:")
_db.execute("PRAGMA case_sensitive_like = ON")


@settings(max_examples=500)
@given(SELECTORS, ROWS)
def test_selectors_agree_with_sql(text: str, row: dict[str, Value]) -> None:
    columns = ", ".join(f"? AS {name}" for name in row)
    (expected,) = _db.execute(
        f"SELECT ({text}) FROM (SELECT {columns})", tuple(row.values())
    ).fetchone()
    selector = parse_selector(text)
    assert selector.matches(row.get) is bool(expected)
    # The unknown value: neither the condition nor its negation is true.
    negated = parse_selector(f"NOT ({text})").matches(row.get)
    assert negated is (expected is not None and not expected)


@given(st.text("ab1. '\"()<>=+-*/,%_ANDORNOTINLIKEISNULLBETWEEN", max_size=60))
def test_any_text_is_a_selector_or_is_refused(text: str) -> None:
    with suppress(BadSelector):
        assert parse_selector(text).matches(lambda name: None) in (True, False)
