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
from pipeline.source.option_names import SCHEMA, STREAM_WRITE, WRITE, is_option
from pipeline.source.option_values import names_of

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
    """Return the options without the table's properties, which Spark puts among them.

    Each option also comes as `option.NAME`; a property does not.
    """
    lower = {name.lower() for name in given}
    is_marked = any(name.startswith(_PREFIX) for name in lower)
    return {
        name: value
        for name, value in given.items()
        if not name.lower().startswith(_PREFIX)
        and (_PREFIX + name.lower() in lower if is_marked else name.lower() not in _PROPERTIES)
    }


def of_use(given: Mapping[str, str], use: str) -> dict[str, str]:
    """Return the options of a table that one of its uses has.

    Rows are written to the queue that is read, or to `destination`.  Raises SourceError if several
    queues are read: rows would go to all of them.
    """
    found = {name: value for name, value in given.items() if is_option(name.lower(), use)}
    names = {name.lower(): name for name in found}
    if use not in (WRITE, STREAM_WRITE) or "queue" not in names:
        return found
    if "destination" in names:
        del found[names["queue"]]
        return found
    queues = names_of(found[names["queue"]])
    if len(queues) > 1 or any("*" in queue for queue in queues):
        raise SourceError(
            f"qmd: the table reads several queues ({', '.join(queues)}); name the one that gets"
            " its rows: destination among the options of the table",
            code="source_option",
        )
    return found


def check_any(given: Mapping[str, str]) -> None:
    """Refuse a use without options.  Raises SourceError."""
    if not given:
        raise SourceError(
            'qmd: no options were given: name them with .option("endpoint", ...).  A table of SQL'
            " has its options if it is created by CREATE TABLE ... USING qmd OPTIONS (...),"
            " without a list of columns and without AS SELECT",
            code="source_option",
        )


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
        if name.lower() not in own and not (name.lower() == "queue" and "destination" in own)
    }
    return {**of_use(fitting, use), **given}


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
