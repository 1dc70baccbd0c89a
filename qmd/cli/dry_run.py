"""Messages of a `--dry-run`: they are listed before their number is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qmd.cli.output import printable

if TYPE_CHECKING:
    from qmd.cli.configuration import Configuration
    from qmd.client import Choice, Message, QueueManager

SHOWN_MAX = 20  # lines of text; --json names all messages


def meant(
    configuration: Configuration, queue: str, choice: Choice | None = None, limit: int | None = None
) -> list[int]:
    """Print the first messages of `queue` that match `choice`, at most `limit`.

    Returns the lookup ids of all of them.  A choice of None matches every message.
    """
    shown, lookup_ids = configuration.ask(lambda qm: _look(qm, queue, choice, limit))
    for line in shown:
        click.echo(line)
    if len(lookup_ids) > len(shown):
        click.echo(f"    ... and {len(lookup_ids) - len(shown)} more")
    return lookup_ids


def meant_ids(
    configuration: Configuration, queue: str, choice: Choice | None = None, limit: int | None = None
) -> list[int]:
    """Return the lookup ids of the messages that match `choice`; print nothing."""
    return configuration.ask(lambda qm: _look(qm, queue, choice, limit))[1]


async def _look(
    qm: QueueManager, queue: str, choice: Choice | None, limit: int | None
) -> tuple[list[str], list[int]]:
    shown: list[str] = []
    lookup_ids: list[int] = []
    where = "" if choice is None else choice.where
    async for message in qm.peek_each(queue, where=where):
        if limit is not None and len(lookup_ids) == limit:
            break
        if choice is None or message.is_among(choice):
            lookup_ids.append(message.lookup_id)
            if len(shown) < SHOWN_MAX:
                shown.append(_line(message))
    return shown, lookup_ids


def _line(message: Message) -> str:
    return (
        f"    {message.lookup_id}  {message.sent_at:%Y-%m-%d %H:%M:%SZ}  {len(message.body)} bytes"
        f"  {printable(message.label) or '-'}"
    )
