"""`qmd events`: the history of all messages, for operators and for data pipelines."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import duration, json_option
from qmd.cli.program import ExitCode, Failure, Group

if TYPE_CHECKING:
    from qmd.client import QueueManager

LINES_DEFAULT = 20


@click.group(cls=Group)
def events() -> None:
    """Read the history of messages.

    Each line is one event of one message.  docs/events.md describes its fields.
    """


@events.command()
@click.option("--follow", is_flag=True, help="Continue with new events, until Ctrl-C.")
@click.option("--queue", default="", help="Only events of this queue.")
@click.option("--kind", "kinds", multiple=True, help="Only this kind; can be given several times.")
@click.option("--since", type=duration, help="All events of this time, such as 1h.")
@click.option(
    "--lines",
    type=click.IntRange(min=0, max=4096),
    help=f"The number of last events.  [default: {LINES_DEFAULT}, all with --since]",
)
@json_option
@pass_configuration
@click.pass_context
def tail(
    context: click.Context,
    configuration: Configuration,
    follow: bool,
    queue: str,
    kinds: tuple[str, ...],
    since: float | None,
    lines: int | None,
    as_json: bool,
) -> None:
    """Print the last events, the oldest first."""
    import asyncio
    import time

    from qmd.cli.interrupt import Interrupt
    from qmd.cli.parameters import system_queue

    if lines is not None and since is not None:
        raise click.UsageError("--lines and --since are mutually exclusive")
    since_at = None if since is None else time.time() - since
    wanted: dict[str, Any] = {"queue": system_queue(queue), "kinds": kinds}
    printer = _Printer(as_json=as_json)

    async def run() -> bool:
        with Interrupt() as interrupt:
            async with configuration.connect() as qm:
                work = _tail(qm, printer, wanted, since_at, lines, follow=follow)
                await interrupt.unless(work)
            return bool(interrupt)

    if asyncio.run(run()):
        context.exit(ExitCode.INTERRUPTED)


async def _tail(
    qm: QueueManager,
    printer: _Printer,
    wanted: dict[str, Any],
    since: float | None,
    lines: int | None,
    *,
    follow: bool,
) -> None:
    cursor = ""
    if since is None:
        count = LINES_DEFAULT if lines is None else lines
        page = await qm.events(last=max(count, 1), **wanted)
        printer.print(page["events"] if count else [])
        cursor = page["cursor"]
        if not follow:
            return
    while True:
        page = await qm.events(cursor, since=since, timeout_s=None if follow else 0.0, **wanted)
        printer.print(page["events"])
        printer.warn_of_missing(page["missing_blocks"])
        cursor = page["cursor"]
        if page["end"] and not follow:
            return


class _Printer:
    def __init__(self, *, as_json: bool) -> None:
        from qmd.cli.why import EventTable

        self._as_json = as_json
        self._table = EventTable()

    def print(self, rows: list[dict[str, Any]]) -> None:
        if self._as_json:
            for event in rows:
                sys.stdout.write(json.dumps(event) + "\n")
        else:
            self._table.print(rows)
        sys.stdout.flush()

    def warn_of_missing(self, blocks: int) -> None:
        if blocks:
            click.echo(f"qmd: {blocks} blocks of events are no longer kept and left out", err=True)


@events.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option(
    "--from",
    "from_",
    metavar="CURSOR|TIME",
    default="",
    help="The beginning: the `next` of an earlier export, or a time in ISO 8601.  [default: the "
    "oldest event that is kept]",
)
@click.option("--to", metavar="TIME", help="Events before this time.  [default: all]")
@click.option("--queue", default="", help="Only events of this queue.")
@click.option("--kind", "kinds", multiple=True, help="Only this kind; can be given several times.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["ndjson", "parquet"]),
    help="parquet needs the extra `spark`: pip install '.[spark]'.  [default: parquet for a FILE "
    "that ends in .parquet, else ndjson]",
)
@json_option
@pass_configuration
def export(
    configuration: Configuration,
    file: Path,
    from_: str,
    to: str | None,
    queue: str,
    kinds: tuple[str, ...],
    form: str | None,
    as_json: bool,
) -> None:
    """Write events to FILE, one per line or row.

    FILE appears when it is complete, and replaces an existing one; `-` is standard output.  Prints
    the number of events, and the cursor for the next export.
    """
    import asyncio

    from qmd.cli.event_files import open_writer
    from qmd.cli.output import print_json
    from qmd.cli.parameters import system_queue

    to_stdout = str(file) == "-"
    form = form or ("parquet" if file.suffix.lower() == ".parquet" else "ndjson")
    if to_stdout and form == "parquet":
        raise click.UsageError("parquet is written to a file, not to standard output")
    since, cursor = _beginning(from_)
    wanted: dict[str, Any] = {
        "queue": system_queue(queue),
        "kinds": kinds,
        "since": since,
        "until": None if to is None else _time(to, "--to"),
    }

    async def run() -> tuple[int, str, int]:
        count = missing = 0
        at = cursor
        async with configuration.connect() as qm:
            await _require_log_of(qm, cursor)
            with open_writer(None if to_stdout else file, form) as writer:
                async with aclosing(_pages(qm, cursor, wanted)) as pages:
                    async for page in pages:
                        writer.write(page["events"])
                        count += len(page["events"])
                        missing += page["missing_blocks"]
                        at = page["cursor"]
        return count, at, missing

    count, at, missing = asyncio.run(run())
    summary = {
        "events": count,
        "next": at,
        "missing_blocks": missing,
        "file": None if to_stdout else str(file),
    }
    if as_json and not to_stdout:
        print_json(summary)
    else:
        click.echo(f"{count} events; continue with --from {at}", err=to_stdout)
    if missing:
        click.echo(f"qmd: {missing} blocks of events are no longer kept and left out", err=True)


async def _pages(
    qm: QueueManager, cursor: str, wanted: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    while True:
        page = await qm.events(cursor, limit=4096, **wanted)
        yield page
        cursor = page["cursor"]
        if page["end"]:
            return


async def _require_log_of(qm: QueueManager, cursor: str) -> None:
    """Raise Failure if `cursor` is behind the end of the log: it is of another one.

    After a restored backup the log numbers its blocks again.  The export would skip all of them up
    to the cursor.
    """
    newest = (await qm.events(last=1))["events"] if cursor else []
    if newest and int(cursor.partition(".")[0]) > newest[0]["block"] + 1:
        raise Failure(
            ExitCode.REFUSED,
            f"--from {cursor} is behind the newest block of the log, {newest[0]['block']}: a backup"
            " of the data folder was restored since that export; export all events to a new file,"
            " without --from",
            "ship_log_changed",
        )


def _beginning(text: str) -> tuple[float | None, str]:
    """Return a time, or a cursor."""
    block, _, index = text.partition(".")
    if not text or (block.isdigit() and index.isdigit()):
        return None, text
    return _time(text, "--from"), ""


def _time(text: str, option: str) -> float:
    """Parse a time to seconds since 1970.  Without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise Failure(
            ExitCode.USAGE,
            f"{option}: {text!r} is neither a cursor such as 17.0 nor a time such as"
            " 2026-01-31T12:00:00Z",
            "bad_time",
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
