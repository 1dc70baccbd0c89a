"""`qmd dead-letter`: messages that could not be delivered, with reasons and remedies."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qmd.cli.choice import Which, choice_options, dry_run_option, filter_options
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.output import counted
from qmd.cli.parameters import SYSTEM_QUEUES, confirm, json_option, queue_argument, yes_option
from qmd.cli.program import Group
from qmd.cli.progress import backlog, expected

if TYPE_CHECKING:
    from qmd.client import Choice, Moved, QueueManager
    from qmd.client.pieces import OnPiece

T = TypeVar("T")


@click.group("dead-letter", cls=Group)
def dead_letter() -> None:
    """Manage messages that could not be delivered.

    By default in both system dead-letter queues, or in the queue that --queue names: an
    application's own, for example.
    """


def _queues_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--queue`, which is passed as a list of queues."""

    @click.option("--queue", multiple=True, help="Only this queue.  [default: both system queues]")
    @functools.wraps(command)
    def with_queues(*arguments: Any, queue: tuple[str, ...], **named: Any) -> None:
        both = ("dead-letter", "transactional-dead-letter")
        queues = [SYSTEM_QUEUES.get(each.lower(), each) for each in queue or both]
        command(*arguments, queues=queues, **named)

    return with_queues


@dead_letter.command("list")
@_queues_option
@json_option
@pass_configuration
def list_(configuration: Configuration, queues: list[str], as_json: bool) -> None:
    """List dead letters, grouped by class, destination and reason."""
    from qmd.cli.output import print_rows

    groups = [
        {
            **group,
            "oldest_at": _time(group.pop("oldest_at_ms")),
            "newest_at": _time(group.pop("newest_at_ms")),
        }
        for group in _of_each(configuration, queues, lambda qm, queue: qm.dead_letters(queue))
    ]
    columns = [
        ("MESSAGES", "messages"),
        ("QUEUE", "queue"),
        ("CLASS", "class"),
        ("DESTINATION", "destination"),
        ("OLDEST", "oldest_at"),
        ("REASON", "reason"),
    ]
    print_rows(groups, columns, as_json=as_json, none="no dead letters")


@dead_letter.command()
@_queues_option
@filter_options
@json_option
@pass_configuration
def show(
    configuration: Configuration, queues: list[str], filters: dict[str, Any], as_json: bool
) -> None:
    """Print all dead letters, or chosen ones."""
    import asyncio

    from qmd.cli.messages import Printer, Wanted

    printer = Printer(Wanted(None, False, 0.0, as_json, False))

    async def run() -> None:
        from qmd.client import chosen

        choice = chosen(**filters)
        async with configuration.connect() as qm:
            for queue in queues:
                async for message in qm.peek_each(queue, where=choice.where):
                    if message.is_among(choice):
                        printer.print([message])

    asyncio.run(run())
    printer.end()


@dead_letter.command()
@click.argument("message", metavar="MESSAGE-ID|LOOKUP-ID")
@json_option
@pass_configuration
def why(configuration: Configuration, message: str, as_json: bool) -> None:
    """Explain why a message is there: `qmd why` for a dead letter."""
    from qmd.cli.output import print_json
    from qmd.cli.why import print_account

    account = configuration.ask(lambda qm: qm.why(message))
    if as_json:
        print_json(account)
    else:
        print_account(account)


@dead_letter.command()
@_queues_option
@choice_options
@click.option(
    "--to", default="", metavar="QUEUE", help="The destination.  [default: the original one]"
)
@dry_run_option
@json_option
@pass_configuration
def requeue(
    configuration: Configuration,
    queues: list[str],
    which: Which,
    to: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Send dead letters again, as new messages.

    They go to their original destinations, unless --to names another one.  The commit that accepts
    the new message removes the dead letter.
    """
    _each(
        configuration,
        queues,
        which,
        lambda qm, queue, limit, on_piece: qm.resend(
            queue, which.choice, to=to, limit=limit, dry_run=dry_run, on_piece=on_piece
        ),
        "sent again",
        as_json=as_json,
        dry_run=dry_run,
    )


@dead_letter.command()
@queue_argument("target")
@_queues_option
@choice_options
@dry_run_option
@json_option
@pass_configuration
def move(
    configuration: Configuration,
    target: str,
    queues: list[str],
    which: Which,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move dead letters unchanged to the queue TARGET of this computer.

    They become normal messages there, and do not expire.
    """
    _each(
        configuration,
        queues,
        which,
        lambda qm, queue, limit, on_piece: qm.move(
            queue, target, which.choice, limit=limit, dry_run=dry_run, on_piece=on_piece
        ),
        "moved",
        as_json=as_json,
        dry_run=dry_run,
    )


@dead_letter.command()
@_queues_option
@filter_options
@yes_option
@dry_run_option
@json_option
@pass_configuration
def purge(
    configuration: Configuration,
    queues: list[str],
    filters: dict[str, Any],
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove all dead letters, or chosen ones.  Asks first, or needs --yes."""
    from qmd.cli.output import print_json
    from qmd.client import chosen

    choice = chosen(**filters)

    def purge_all(on_piece: OnPiece | None = None) -> int:
        async def verb(qm: QueueManager) -> int:
            dry = on_piece is None
            return sum(
                [
                    await qm.purge_queue(queue, choice, dry_run=dry, on_piece=on_piece)
                    for queue in queues
                ]
            )

        return configuration.ask(verb)

    is_asked = dry_run or not yes
    count = purge_all() if is_asked else expected(configuration, queues, choice)
    if not dry_run and count != 0:
        if not yes:
            confirm(f"purge {counted(count or 0, 'dead letter')}")
        with backlog("purging", count, "purged", enabled=not as_json) as progress:
            count = purge_all(progress.advance)
    count = count or 0
    if as_json:
        facts: dict[str, Any] = {"queues": queues, "messages": count, "dry_run": dry_run}
        if dry_run:
            facts["lookup_ids"] = _meant(configuration, queues, choice, None, quiet=True)
        print_json(facts)
    else:
        if dry_run:
            _meant(configuration, queues, choice, None)
        click.echo(f"{'would purge' if dry_run else 'purged'} {counted(count, 'dead letter')}")


def _each(
    configuration: Configuration,
    queues: list[str],
    which: Which,
    verb: Callable[[QueueManager, str, int | None, OnPiece], Awaitable[Moved]],
    done: str,
    *,
    as_json: bool,
    dry_run: bool,
) -> None:
    """Call the verb for each of the queues, with one limit for all.

    Messages that are named are in one of the queues.
    """
    from qmd.cli.output import print_json
    from qmd.client import NoSuchMessage

    is_named = bool(which.choice.lookup_ids or which.choice.message_ids)

    count = None if dry_run else expected(configuration, queues, which.choice, which.limit)

    async def run(qm: QueueManager) -> tuple[int, int]:
        messages = taken = 0
        for index, queue in enumerate(queues):
            limit = None if which.limit is None else which.limit - messages
            if limit == 0:
                break
            try:
                moved = await verb(qm, queue, limit, progress.advance)
            except NoSuchMessage:
                if not is_named or index == len(queues) - 1:
                    raise
                continue
            messages, taken = messages + moved.messages, taken + moved.taken
            if is_named:
                break
        return messages, taken

    with backlog(done, count, done, enabled=not (as_json or dry_run)) as progress:
        messages, taken = configuration.ask(run)
    if as_json:
        facts = {"queues": queues, "messages": messages, "taken": taken, "dry_run": dry_run}
        if dry_run:
            found = _meant(configuration, queues, which.choice, which.limit, quiet=True)
            facts["lookup_ids"] = found
        print_json(facts)
        return
    if dry_run:
        _meant(configuration, queues, which.choice, which.limit)
    click.echo(f"{'would be ' if dry_run else ''}{done}: {counted(messages, 'dead letter')}")
    if taken:
        click.echo(f"skipped {taken} that applications have taken", err=True)


def _meant(
    configuration: Configuration,
    queues: list[str],
    choice: Choice,
    limit: int | None,
    *,
    quiet: bool = False,
) -> list[int]:
    """Return the lookup ids of the dead letters of a dry run; print them, unless `quiet`."""
    from qmd.cli.dry_run import meant, meant_ids

    found: list[int] = []
    for queue in queues:
        left = None if limit is None else limit - len(found)
        found += (meant_ids if quiet else meant)(configuration, queue, choice, left)
    return found


def _of_each(
    configuration: Configuration,
    queues: list[str],
    verb: Callable[[QueueManager, str], Awaitable[list[T]]],
) -> list[T]:
    async def run(qm: QueueManager) -> list[T]:
        return [found for queue in queues for found in await verb(qm, queue)]

    return configuration.ask(run)


def _time(at_ms: int) -> str:
    from datetime import UTC, datetime

    moment = datetime.fromtimestamp(at_ms / 1000, UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="seconds") + "Z"
