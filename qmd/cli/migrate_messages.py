"""`qmd migrate windows`: copies of messages, and two hosts side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.migrate import FILE, failures, migrate, windows
from qmd.cli.output import counted, print_json, printable
from qmd.cli.parameters import confirm, json_option, yes_option

__all__ = ["migrate"]


@windows.command("messages")
@click.argument("file", type=FILE)
@click.option(
    "--log",
    "log_file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file that keeps the ids of imported messages; always give the same one.",
)
@click.option("--dry-run", is_flag=True, help="Only check and count.")
@yes_option
@json_option
@pass_configuration
def messages(
    configuration: Configuration,
    file: Path,
    log_file: Path,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Import the copies of messages in FILE into the queues of the same names.

    The programs that receive on Windows must have stopped.  Messages keep their ids, times, labels
    and order; each is imported once, however often this is run.
    """
    from qmd.migration.import_copies import ImportLog, import_copies, messages_of

    if not dry_run and not yes:
        confirm("import the messages; their receivers on Windows have stopped")
    with failures(), file.open("rb") as lines:
        for _ in messages_of(lines):  # a broken line prevents the import
            pass
        lines.seek(0)

        import asyncio

        async def run() -> dict[str, dict[str, int]]:
            async with configuration.connect() as qm:
                return await import_copies(
                    qm, messages_of(lines), ImportLog(log_file), dry_run=dry_run
                )

        counts = asyncio.run(run())
    for queue, row in counts.items():
        if as_json:
            print_json({"queue": queue, **row, "dry_run": dry_run})
        else:
            would = "would be imported" if dry_run else "imported"
            click.echo(
                f"{printable(queue)}: {counted(row['imported'], 'message')} {would},"
                f" {row['known']} known"
            )


@windows.command()
@click.argument("file", type=FILE)
@click.argument("queue")
@click.option("--later", is_flag=True, help="Messages that only QUEUE has are no difference.")
@json_option
@click.pass_context
@pass_configuration
def compare(
    configuration: Configuration,
    context: click.Context,
    file: Path,
    queue: str,
    later: bool,
    as_json: bool,
) -> None:
    """Compare the copies in FILE of a queue on Windows with QUEUE here, by their contents.

    Exit code 1: they differ.  FILE may have other queues too.
    """
    import asyncio

    from qmd.migration.align import present, sides_of
    from qmd.migration.compare import compare as compared
    from qmd.migration.import_copies import messages_of

    async def here() -> tuple[str, Any]:
        async with configuration.connect() as qm:
            name = str((await qm.show_queue(queue))["name"])
            return name, [side for _, side in await present(qm, name)]

    name, second = asyncio.run(here())
    with failures(), file.open("rb") as lines:
        result = compared(sides_of(messages_of(lines), name), second)
    same = not result.missing and result.same_order and (later or not result.extra)
    if as_json:
        print_json({"queue": name, "same": same, **result._asdict()})
    else:
        click.echo(
            f"{printable(name)}: {result.first} on Windows, {result.second} here; missing here"
            f" {result.missing}, only here {result.extra}, order"
            f" {'kept' if result.same_order else 'differs'}"
        )
        for text, ids in (("missing", result.only_first), ("only here", result.only_second)):
            for each in ids:
                click.echo(f"  {text}: {printable(each)}")
    if not same:
        context.exit(1)


@windows.command()
@click.argument("file", type=FILE)
@click.argument("queue")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--any-time", is_flag=True, help="Compare the contents alone, and no times.")
@yes_option
@json_option
@click.pass_context
@pass_configuration
def align(
    configuration: Configuration,
    context: click.Context,
    file: Path,
    queue: str,
    dry_run: bool,
    any_time: bool,
    yes: bool,
    as_json: bool,
) -> None:
    r"""Move messages aside that the old host's programs received.

    FILE has the messages of the queue on Windows and of its journal.  Each message of QUEUE that
    was sent at the same time (within 5 seconds) and has the contents of one in the journal is moved
    to the subqueue `aligned`.  To undo it: qmd move --all 'QUEUE;aligned' QUEUE.

    Exit code 1: messages here have the contents of received ones, but another time of sending.
    They were not moved.  Look at both: they are either other messages, or copies that were sent
    separately; then repeat the command with --any-time.
    """
    from qmd.migration.align import align as aligned
    from qmd.migration.align import sides_of
    from qmd.migration.import_copies import messages_of

    if not dry_run and not yes:
        confirm(f"move the messages of {printable(queue)} aside that the old host has received")

    import asyncio

    async def run() -> tuple[str, Any]:
        async with configuration.connect() as qm:
            name = str((await qm.show_queue(queue))["name"])
            with file.open("rb") as lines:
                received = sides_of(messages_of(lines), f"{name};journal")
                lines.seek(0)
                waiting = sides_of(messages_of(lines), name)
            return name, await aligned(
                qm, name, received, waiting, any_time=any_time, dry_run=dry_run
            )

    with failures():
        name, result = asyncio.run(run())
    if as_json:
        print_json({"queue": name, "dry_run": dry_run, **result._asdict()})
    else:
        would = "would be moved" if dry_run else "moved"
        click.echo(
            f"{printable(name)}: {counted(result.moved, 'message')} {would} aside; of those"
            f" received on Windows, {result.not_here} are not here"
        )
        if result.other_time:
            click.echo(
                f"  {counted(result.other_time, 'message')} here with the contents of one of those"
                " was sent at another time, and stays: see --any-time"
            )
    if result.other_time:
        context.exit(1)


@windows.command()
@click.argument("old")
@click.argument("new")
@click.argument("queues", nargs=-1, required=True)
@json_option
def drain(old: str, new: str, queues: tuple[str, ...], as_json: bool) -> None:
    """Print the steps of replacing the host OLD by NEW, with the way back from each.

    QUEUES are private queues, such as orders.  Nothing is changed; docs/migration.md explains each
    step.
    """
    from qmd.migration.drain import drain_plan

    for number, step in enumerate(drain_plan(old, new, queues), 1):
        if as_json:
            print_json({"step": number, **step})
            continue
        click.secho(f"{number}. {step['title']}", bold=True)
        click.echo(f"   {step['text']}")
        for part, heading in (
            ("windows", f"on {old}:"),
            ("commands", f"on {new}:"),
            ("senders", "at each sender:"),
            ("back", "back:"),
        ):
            if step[part]:
                click.echo(f"   {heading}")
            for command in step[part]:
                click.echo(f"     {command}")
