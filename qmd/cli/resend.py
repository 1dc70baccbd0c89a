"""`qmd resend`: send a message again as a new one, with corrections if needed."""

from __future__ import annotations

import click

from qmd.cli.choice import dry_run_option
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import confirm, json_option, queue_argument, yes_option
from qmd.cli.parameters import lookup_id as as_lookup_id
from qmd.cli.program import ExitCode, Failure


@click.command()
@queue_argument("queue")
@click.argument("lookup_id", type=as_lookup_id, metavar="LOOKUP-ID", required=False)
@click.option("--all", "all_messages", is_flag=True, help="All messages, in their order.")
@click.option("--to", default="", metavar="QUEUE", help="The destination.  [default: unchanged]")
@click.option("--label", help="The label.  [default: unchanged]")
@click.option("--body", help="The body, as UTF-8.  [default: unchanged]")
@click.option("--edit", is_flag=True, help="Edit the body in your editor ($EDITOR).")
@click.option("--keep", is_flag=True, help="Keep the old message in its queue.")
@dry_run_option
@yes_option
@json_option
@pass_configuration
def resend(
    configuration: Configuration,
    queue: str,
    lookup_id: int | None,
    all_messages: bool,
    to: str,
    label: str | None,
    body: str | None,
    edit: bool,
    keep: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Send a message of QUEUE again, as a new message; or with --all each, in their order.

    The new message has its own id.  The old one is removed in the same commit.  Its id becomes the
    correlation id of the new one, unless it had one itself.
    """
    from qmd.cli.output import counted, print_json, printable
    from qmd.client import chosen

    if (lookup_id is None) != all_messages or (edit and all_messages):
        raise click.UsageError("give a LOOKUP-ID, or --all without --edit")
    if all_messages and not (dry_run or yes):
        confirm(f"send all messages of {printable(queue)} again")
    if edit and body is not None:
        raise click.UsageError("--body and --edit are mutually exclusive")
    content = None if body is None else body.encode()
    if edit and not dry_run and lookup_id is not None:
        content = _edited(configuration, queue, lookup_id)
    sent = configuration.ask(
        lambda qm: qm.resend(
            queue,
            chosen() if lookup_id is None else chosen(lookup_ids=[lookup_id]),
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
    sent_ones = f"message {lookup_id}" if lookup_id else counted(sent.messages, "message")
    click.echo(f"{would} {sent_ones} of {printable(queue)} again")


def _edited(configuration: Configuration, queue: str, lookup_id: int) -> bytes:
    """Return the body as saved in an editor.

    Raises Failure if it was not saved, or is not text.
    """
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
            "the body is not UTF-8 text, and cannot be edited; give --body",
            "body_not_text",
        ) from error
    edited = click.edit(text, extension=".txt", require_save=True)
    if edited is None:
        raise Failure(ExitCode.FAILED, "nothing was saved, so nothing is sent", "nothing_edited")
    # Editors end the last line with a newline; a body need not have one.
    return (edited if text.endswith("\n") else edited.removesuffix("\n")).encode()
