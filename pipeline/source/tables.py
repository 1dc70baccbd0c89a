"""Tables of SQL: `CREATE TABLE orders USING qmd OPTIONS (endpoint ..., queue ...)`.

Spark stores the options of a table, but passes none of them to a Python source that reads or
writes the table: the source gets the stored columns only.  So the options are kept where Spark
passes them on, in the comment of the first column, as `qmd options {...}`.  They are names of
files and queues; a secret is never an option.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pipeline.source.errors import SourceError
from pipeline.source.option_names import SCHEMA, is_option

MARK = "qmd options "
_OF_A_TABLE = "provider"  # Spark names it among the options when a table is created
# Spark's own properties of a table, which it puts among the options.
_PROPERTIES = {
    *("provider", "owner", "location", "external", "is_managed_location", "comment"),
    *("collation", "serialization.format"),
}
_PREFIX = "option."


def is_new_table(given: Mapping[str, str]) -> bool:
    """Return whether Spark asks for the columns of a table that it creates."""
    return _OF_A_TABLE in {name.lower() for name in given}


def options_of_table(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options without Spark's own properties of a table."""
    return {
        name: value
        for name, value in given.items()
        if name.lower() not in _PROPERTIES and not name.lower().startswith(_PREFIX)
    }


def table_ddl(ddl: str, given: Mapping[str, str]) -> str:
    """Return the columns of a new table, which carry its options.

    All columns may be null, so that INSERT INTO may leave them out.
    """
    columns = ddl.replace(" NOT NULL", "")
    text = (MARK + json.dumps(dict(sorted(given.items())))).replace("\\", "\\\\")
    first, comma, rest = _split(columns)
    return f"{first} COMMENT '{text.replace(chr(39), chr(92) + chr(39))}'{comma}{rest}"


def _split(columns: str) -> tuple[str, str, str]:
    """Return the first column, and the others with the comma before them."""
    depth = 0
    for at, sign in enumerate(columns):
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and not depth:
            return columns[:at], ",", columns[at + 1 :]
    return columns, "", ""


def with_table_options(given: Mapping[str, str], schema: Any, use: str) -> dict[str, str]:
    """Return the options of a use, completed by those of its table, if the columns carry any.

    Options of reading do not count for writing, and the other way round: one table has both.
    """
    stored: dict[str, str] = {}
    for field in () if schema is None else schema.fields:
        comment = (field.metadata or {}).get("comment", "")
        if comment.startswith(MARK):
            stored = _parsed(comment.removeprefix(MARK))
            break
    own = {name.lower() for name in given}
    fitting = {
        name: value
        for name, value in stored.items()
        if is_option(name.lower(), use) and name.lower() not in own
    }
    if "destination" in own:
        fitting = {name: value for name, value in fitting.items() if name.lower() != "queue"}
    return {**fitting, **given}


def only_of(given: Mapping[str, str], use: str) -> dict[str, str]:
    """Return the options without those that are for reading only, for a view that is written."""
    return {
        name: value
        for name, value in given.items()
        if is_option(name.lower(), use) or not is_option(name.lower(), SCHEMA)
    }


def _parsed(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise SourceError(
            f"qmd: the comment of a table's first column is no list of options ({error}); create"
            " the table again",
            code="source_option",
        ) from error
    return {str(name): str(value) for name, value in found.items()}
