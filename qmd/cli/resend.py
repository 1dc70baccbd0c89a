"""`qmd resend`: a message once more, as a new one, corrected where that is needed."""

from __future__ import annotations

import click

from qmd.cli.choice import dry_run_option
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option, queue_argument
from qmd.cli.parameters import lookup_id as as_lookup_id
from qmd.cli.program import ExitCode, Failure


@click.command()
@queue_argument("queue")
@click.argument("lookup_id", type=as_lookup_id, metavar="LOOKUP-ID")
@click.option("--to", default="", metavar="QUEUE", help="Where it goes.  [default: as before]")
@click.option("--label", help="Its label.  [default: as before]")
@click.option("--body", help="Its body, as UTF-8.  [default: as before]")
@click.option("--edit", is_flag=True, help="Its body, from your editor ($EDITOR).")
@click.option("--keep", is_flag=True, help="Leave the old message where it is.")
@dry_run_option
@json_option
@pass_configuration
def resend(
    configuration: Configuration,
    queue: str,
    lookup_id: int,
    to: str,
    label: str | None,
    body: str | None,
    edit: bool,
    keep: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Send a message of QUEUE again, as a new message with an id of its own.

    The old one is removed in the same commit.  Its id is the new one's correlation id, where it
    had none itself.
    """
    from qmd.cli.output import print_json, printable
    from qmd.client import chosen

    if edit and body is not None:
        raise click.UsageError("--body and --edit exclude each other")
    content = None if body is None else body.encode()
    if edit and not dry_run:
        content = _edited(configuration, queue, lookup_id)
    sent = configuration.ask(
        lambda qm: qm.resend(
            queue,
            chosen(lookup_ids=[lookup_id]),
            to=to,
            label=label,
            body=content,
            keep=keep,
            dry_run=dry_run,
        )
    )
    if as_json:
        facts = {"queue": queue, "lookup_id": lookup_id, "kept": keep, "dry_run": dry_run}
        print_json({**facts, "messages": sent.messages})
        return
    would = "would send" if dry_run else "sent"
    click.echo(f"{would} message {lookup_id} of {printable(queue)} again")


def _edited(configuration: Configuration, queue: str, lookup_id: int) -> bytes:
    """The body as it was saved in an editor.  Raises Failure if it was not, or is no text."""
    found = configuration.ask(lambda qm: qm.peek(queue, lookup_id, 1))
    if not found or found[0].lookup_id != lookup_id:
        raise Failure(
            ExitCode.NOT_FOUND,
            f"{queue} has no message with the lookup id {lookup_id}",
            "no_such_message",
        )
    try:
        text = found[0].body.decode()
    except UnicodeDecodeError as error:
        raise Failure(
            ExitCode.USAGE,
            "the body is no UTF-8 text, and cannot be edited; give --body",
            "body_not_text",
        ) from error
    edited = click.edit(text, extension=".txt", require_save=True)
    if edited is None:
        raise Failure(ExitCode.FAILED, "nothing was saved, so nothing is sent", "nothing_edited")
    # Editors end the last line; a body need not.
    return (edited if text.endswith("\n") else edited.removesuffix("\n")).encode()
