"""`qmd explain`: the meaning of an error, its cause, its remedy, and Microsoft's name for it."""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

import click

from qmd.catalogue import ENTRIES, Entry, find, hexadecimal, hresult, near
from qmd.cli.output import print_json, print_rows
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure, Misuse

COLUMNS_MAX = 100


# A negative number, as .NET prints an HRESULT, is not an option.
@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("error", required=False)
@click.option("--all", "all_", is_flag=True, help="List all errors.")
@json_option
def explain(error: str | None, all_: bool, as_json: bool) -> None:
    r"""Explain an error.

    ERROR is its id (QM-1201), its code (no_such_queue), or the form of Windows: a name
    (MQ_ERROR_QUEUE_NOT_FOUND), an HRESULT (0xC00E0003, -1072824317), a message class (0x8000).  No
    daemon is needed.
    """
    if (error is not None) == all_:
        raise Misuse("options_exclude", "give either an ERROR or --all")
    if error is None:
        rows = [_facts(entry) for entry in ENTRIES]
        columns = [("ID", "id"), ("CODE", "code"), ("MICROSOFT", "microsoft"), ("WHAT", "what")]
        print_rows(rows, columns, as_json=as_json, none="")
        return
    found = find(error)
    if not found.entries and found.value is None:
        like = near(error)
        hint = (
            f"did you mean {', '.join(like)}?" if like else ("list all errors: qmd explain --all")
        )
        raise Failure(ExitCode.NOT_FOUND, f"there is no error {error!r}; {hint}", "no_such_error")
    if as_json:
        for entry in found.entries:
            print_json(_facts(entry))
        return
    if not found.entries and found.value is not None:
        click.echo(
            f"{found.microsoft} is {hexadecimal(found.value)} in Windows; qmd does not use it."
        )
    for index, entry in enumerate(found.entries):
        if index:
            click.echo()
        _print(entry)


def _facts(entry: Entry) -> dict[str, Any]:
    value = hresult(entry)
    return {
        "id": entry.id,
        "code": entry.code,
        "family": entry.family or entry.code,
        "what": entry.what,
        "cause": entry.cause,
        "remedy": entry.remedy,
        "microsoft": entry.microsoft or None,
        "hresult": None if value is None else hexadecimal(value),
    }


def _print(entry: Entry) -> None:
    click.secho(f"{entry.id} {entry.code}", bold=True)
    _paragraph("", entry.what)
    _paragraph("Cause: ", entry.cause)
    _paragraph("Remedy: ", entry.remedy)
    value = hresult(entry)
    if value is not None:
        _paragraph("In Windows: ", f"{entry.microsoft}, {hexadecimal(value)}")


def _paragraph(heading: str, text: str) -> None:
    columns = min(shutil.get_terminal_size().columns, COLUMNS_MAX)
    click.echo(
        textwrap.fill(heading + text, columns, initial_indent="  ", subsequent_indent="    ")
    )
