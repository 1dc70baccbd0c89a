"""`qmd audit-log`: the requests of operators, and the proof that none was changed or left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure, Group

if TYPE_CHECKING:
    from qmd.client import QueueManager


@click.group("audit-log", cls=Group)
def audit_log() -> None:
    """Show and verify the log of the operators' requests.  docs/audit-log.md"""


@audit_log.command()
@click.option(
    "--last", type=click.IntRange(1, 1000), default=50, show_default=True, metavar="N",
    help="The last N entries.",
)  # fmt: skip
@click.option("--all", "all_", is_flag=True, help="All entries that are kept.")
@json_option
@pass_configuration
def show(configuration: Configuration, last: int, all_: bool, as_json: bool) -> None:
    """Show entries, the oldest first."""
    from qmd.cli.output import print_json, print_rows

    pages = configuration.ask(lambda qm: _pages(qm, 0 if all_ else -last, only_one=not all_))
    entries = [
        {"number": number, "digest": digest.hex(), **json.loads(text)}
        for page in pages
        for number, text, digest in page["entries"]
    ]
    if as_json:
        for entry in entries:
            print_json(entry)
        return
    columns = [
        ("NUMBER", "number"),
        ("TIME", "time"),
        ("WHO", "who"),
        ("FROM", "from"),
        ("REQUEST", "request"),
        ("WHAT", "what"),
    ]
    rows = [_row(entry) for entry in entries]
    print_rows(rows, columns, as_json=False, none="no entries")


@audit_log.command()
@click.option(
    "--head", metavar="NUMBER:DIGEST",
    help="An entry that was noted before, as this command prints it: it must still be there.",
)  # fmt: skip
@json_option
@pass_configuration
def verify(configuration: Configuration, head: str | None, as_json: bool) -> None:
    """Check that no entry was changed, removed or inserted.

    Prints the head, the number and the digest of the last entry.  Note it elsewhere and give it to
    a later check with --head: without it, an attacker that can write the database could have made
    the whole log anew.  Exit code 1: the log was changed.
    """
    from qmd.cli.output import print_json

    expected = _parsed(head)
    number, digest, count, first = _verified(configuration.ask(lambda qm: _pages(qm, 0)), expected)
    if as_json:
        print_json(
            {"entries": count, "first": first, "head": f"{number}:{digest.hex()}", "intact": True}
        )
        return
    click.echo(f"{count} entries from {first} to {number} are intact")
    click.echo(f"head {number}:{digest.hex()}")


async def _pages(qm: QueueManager, start: int, *, only_one: bool = False) -> list[dict[str, Any]]:
    """Return the pages of the log from an entry on."""
    pages = [await qm.audit_entries(start)]
    while not only_one and pages[-1]["entries"]:
        pages.append(await qm.audit_entries(pages[-1]["entries"][-1][0] + 1))
    return pages


def _verified(
    pages: list[dict[str, Any]], expected: tuple[int, bytes] | None
) -> tuple[int, bytes, int, int]:
    """Return number and digest of the last entry, how many there are, and the first.

    Raises Failure.
    """
    from qmd.control_protocol.audit import chained

    number, digest = pages[0]["anchor"]
    first, count, is_met = number + 1, 0, expected is None
    if expected is not None and expected[0] <= number:
        is_met = expected == (number, digest) or expected[0] < number
        if expected[0] < number:
            click.echo(f"qmd: entry {expected[0]} is not kept any more", err=True)
    for at, text, stated in _entries(pages):
        if at != number + 1:
            raise _changed(f"entry {number + 1} is missing: {at} follows {number}")
        number, digest = at, chained(digest, at, text)
        if digest != stated:
            raise _changed(f"the digest of entry {at} does not fit: it or an earlier one differs")
        if expected is not None and expected[0] == at:
            if expected[1] != digest:
                raise _changed(f"entry {at} is not the one that was noted")
            is_met = True
        count += 1
    if not is_met:
        raise _changed("the log ends before the noted entry, or begins with another one")
    return number, digest, count, first


def _entries(pages: list[dict[str, Any]]) -> Iterator[tuple[int, str, bytes]]:
    for page in pages:
        yield from page["entries"]


def _changed(reason: str) -> Failure:
    return Failure(ExitCode.FAILED, f"the audit log was changed: {reason}", "audit_log_changed")


def _parsed(head: str | None) -> tuple[int, bytes] | None:
    if head is None:
        return None
    number, _, digest = head.partition(":")
    try:
        return int(number), bytes.fromhex(digest)
    except ValueError as error:
        raise click.UsageError(
            "--head is NUMBER:DIGEST, as `qmd audit-log verify` prints"
        ) from error


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of an entry."""
    from qmd.cli.output import printable

    when = datetime.fromtimestamp(entry["at_ms"] / 1000, UTC).isoformat(timespec="milliseconds")
    kind = entry["kind"]
    if kind == "request":
        shown = " ".join(
            f"{name}={json.dumps(value, ensure_ascii=False)}"
            for name, value in entry["arguments"].items()
            if value not in (None, "", [], False)
        )
        what = f"{entry['verb']} {shown}"
    elif kind == "result":
        what = " ".join(filter(None, (entry["result"], entry["code"])))
    else:
        what = f"entries up to {entry['up_to']} were dropped"
    return {
        "number": entry["number"],
        "time": when.replace("+00:00", "Z"),
        "who": entry.get("who", ""),
        "from": entry.get("from", ""),
        "request": entry.get("request", ""),
        "what": printable(what),
    }
