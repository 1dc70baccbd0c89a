"""`qmd move`: messages from one queue of this computer to another."""

from __future__ import annotations

import click

from qmd.cli.choice import Which, choice_options, dry_run_option
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.dry_run import meant, meant_ids
from qmd.cli.output import counted
from qmd.cli.parameters import json_option, queue_argument
from qmd.cli.progress import backlog, expected


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

    count = None if dry_run else expected(configuration, [source], which.choice, which.limit)
    with backlog("moving", count, "moved", enabled=not (as_json or dry_run)) as progress:
        moved = configuration.ask(
            lambda qm: qm.move(
                source,
                target,
                which.choice,
                limit=which.limit,
                dry_run=dry_run,
                on_piece=progress.advance,
            )
        )
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
