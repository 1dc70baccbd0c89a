"""`qmd move`: messages from one queue of this computer to another."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from qmd.cli.choice import Which, choice_options, dry_run_option
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.dry_run import meant, meant_ids
from qmd.cli.output import counted
from qmd.cli.parameters import json_option, queue_argument
from qmd.cli.progress import Progress, backlog

if TYPE_CHECKING:
    from qmd.client import QueueManager
    from qmd.client.administration import Moved

STEP_MESSAGES = 10_240


@click.command()
@queue_argument("source")
@queue_argument("target")
@choice_options
@dry_run_option
@json_option
@pass_configuration
def move(
    configuration: Configuration,
    source: str,
    target: str,
    which: Which,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move messages from SOURCE to TARGET.

    Both are queues of this computer.  The first move to a subqueue, such as 'orders;retry', creates
    it.  Messages keep their order.  A dead letter that is moved to a queue becomes a normal
    message, and does not expire.
    """
    from qmd.cli.output import print_json, printable

    expected = None if dry_run else _expected(configuration, source, which)
    with backlog("moving", expected, "moved", enabled=not (as_json or dry_run)) as progress:
        if expected is None:
            moved = configuration.ask(
                lambda qm: qm.move(source, target, which.choice, limit=which.limit, dry_run=dry_run)
            )
        else:
            steps = partial(_in_steps, source, target, expected, progress)
            moved = configuration.ask(steps)
    if as_json:
        facts = {"source": source, "target": target, "dry_run": dry_run, **moved._asdict()}
        if dry_run:
            facts["lookup_ids"] = meant_ids(configuration, source, which.choice, which.limit)
        print_json(facts)
        return
    if dry_run:
        meant(configuration, source, which.choice, which.limit)
    would = "would move" if dry_run else "moved"
    click.echo(
        f"{would} {counted(moved.messages, 'message')} ({moved.bytes} bytes)"
        f" from {printable(source)} to {printable(target)}"
    )
    if moved.taken:
        click.echo(
            f"skipped {counted(moved.taken, 'message')} that applications have taken", err=True
        )


async def _in_steps(
    source: str, target: str, expected: int, progress: Progress, qm: QueueManager
) -> Moved:
    """Move the first `expected` messages of a queue, and report each step."""
    from qmd.client.administration import Moved

    messages = size = taken = 0
    while messages < expected:
        done = await qm.move(source, target, limit=min(expected - messages, STEP_MESSAGES))
        messages, size, taken = messages + done.messages, size + done.bytes, done.taken
        progress.advance(done.messages)
        if not done.messages:
            break
    return Moved(messages, size, taken)


def _expected(configuration: Configuration, source: str, which: Which) -> int | None:
    """Return how many messages a move without a selection has; None: only some are selected."""
    from qmd.control_protocol.messages import EVERY_MESSAGE

    if which.choice != EVERY_MESSAGE:
        return None
    present = int(configuration.ask(lambda qm: qm.show_queue(source))["messages"])
    return present if which.limit is None else min(present, which.limit)
