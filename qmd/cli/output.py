"""Output of results: tables and lists of text, or JSON lines for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

Row = Mapping[str, Any]
Columns = Sequence[tuple[str, str]]  # heading, key


def print_rows(rows: Iterable[Row], columns: Columns, *, as_json: bool, none: str) -> None:
    """Print a table with `columns`, or each row as JSON; print `none` for an empty table."""
    rows = list(rows)
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        print_table(rows, columns)
    else:
        click.echo(none, err=True)


def print_facts(facts: Row, *, as_json: bool) -> None:
    """Print all facts about one object."""
    if as_json:
        print_json(facts)
    else:
        _print_facts(facts, "")


def print_json(row: Row) -> None:
    click.echo(json.dumps(row))


def print_table(rows: Sequence[Row], columns: Columns) -> None:
    cells = [[shown(row.get(key)) for _, key in columns] for row in rows]
    headings = [heading for heading, _ in columns]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    is_number = [all(type(row.get(key)) in (int, float) for row in rows) for _, key in columns]

    def line(texts: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, is_number, strict=True)
        )
        return "  ".join(padded).rstrip()

    click.secho(line(headings), bold=True)
    for texts in cells:
        click.echo(line(texts))


def shown(value: Any) -> str:
    """Return a value as text that contains no control characters of terminals."""
    match value:
        case None | "" | []:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(shown, value))
        case Mapping():
            return ", ".join(f"{key} {shown(each)}" for key, each in value.items())
        case bytes():
            return value.hex()
    return printable(str(value))


def counted(number: int, what: str) -> str:
    """Return a number with its noun: `1 message`, `2 messages`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def printable(text: str) -> str:
    r"""Escape control characters as `\x1b`: labels and bodies must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _print_facts(facts: Row, indent: str) -> None:
    width = max((len(str(key)) for key in facts), default=0)
    for key, value in facts.items():
        name = printable(str(key)).replace("_", " ")
        if isinstance(value, Mapping) and value:
            click.secho(f"{indent}{name}", bold=True)
            _print_facts(value, f"{indent}  ")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            click.secho(f"{indent}{name}", bold=True)
            for each in value:
                click.echo(f"{indent}  {shown(each)}")
        else:
            click.echo(f"{indent}{name.ljust(width)}  {shown(value)}")
