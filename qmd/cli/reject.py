"""`qmd reject`: remove messages from their queue that no application accepts."""

from __future__ import annotations

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import confirm, json_option, queue_argument, yes_option
from qmd.cli.program import ExitCode


@click.command()
@queue_argument()
@click.option("--count", type=click.IntRange(min=1), default=1, metavar="N", help="So many.")
@click.option("--reason", default="", help="The reason, shown with the dead letters.")
@yes_option
@json_option
@pass_configuration
@click.pass_context
def reject(
    context: click.Context,
    configuration: Configuration,
    queue: str,
    count: int,
    reason: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Reject the first message of a queue.  Asks first, or needs --yes.

    It is removed from the queue.  A sender that requested it is notified, and keeps it as a dead
    letter; a message that no sender keeps goes to a dead-letter queue of this computer.  Prints the
    ids.  Exit code 6 when there were fewer than requested.
    """
    import asyncio

    from qmd.cli.output import print_json

    if not yes:
        first = "the first message" if count == 1 else f"the first {count} messages"
        confirm(f"reject {first} of {queue}")
    rejected = asyncio.run(_reject(configuration, queue, count, reason))
    for message_id in rejected:
        if as_json:
            print_json({"id": message_id, "rejected": True})
        else:
            click.echo(message_id)
    if len(rejected) < count:
        context.exit(ExitCode.NOTHING_THERE)


async def _reject(configuration: Configuration, queue: str, count: int, reason: str) -> list[str]:
    async with configuration.connect() as qm, await qm.take(queue, count) as taken:
        if taken:
            await taken.reject(reason)
        return [message.id for message in taken.messages]
