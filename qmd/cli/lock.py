"""`qmd lock`: take messages for some time, and settle them later, from any process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from qmd.cli.choice import filter_options
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.output import counted
from qmd.cli.parameters import duration, json_option, lookup_id, queue_argument
from qmd.cli.program import BadValue, ExitCode, Group

if TYPE_CHECKING:
    from qmd.client import Locked


@click.group(cls=Group)
def lock() -> None:
    """Take messages for some time, and settle them later.

    They return to their queue when the time is over, which counts as an attempt.
    """


def _id(text: str) -> bytes:
    try:
        lock_id = bytes.fromhex(text)
    except ValueError:
        lock_id = b""
    if len(lock_id) != 16:
        raise BadValue("bad_lock_id", f"{text!r} is not the id of a lock: 32 hexadecimal digits")
    return lock_id


lock_argument = click.argument("lock_id", metavar="LOCK", type=_id)
time_option = click.option(
    "--time",
    "lock_s",
    type=duration,
    default="60s",
    show_default=True,
    help="Time of the lock.",
)


@lock.command()
@queue_argument()
@time_option
@click.option("--count", type=click.IntRange(1, 4096), default=1, metavar="N", help="At most N.")
@click.option("--timeout", type=duration, default="0s", help="The time to wait for a message.")
@filter_options
@json_option
@pass_configuration
@click.pass_context
def take(
    context: click.Context,
    configuration: Configuration,
    queue: str,
    lock_s: float,
    count: int,
    timeout: float,
    filters: dict[str, Any],
    as_json: bool,
) -> None:
    """Take messages of a queue under a new lock.

    Prints the id of the lock, and the messages; with --json each message with its properties and
    `lock`, the id of the lock.  Exit code 6 when there was no message.
    """
    from qmd.cli.messages import Printer, Wanted
    from qmd.cli.output import print_json
    from qmd.client import chosen

    choice = chosen(**filters) if any(filters.values()) else None
    locked = configuration.ask(
        lambda qm: qm.take_locked(queue, count, lock_s=lock_s, timeout_s=timeout, choice=choice)
    )
    if as_json:
        for message in locked.messages:
            print_json({"lock": locked.id.hex(), **message.to_json()})
    elif locked.messages:
        click.echo(f"lock {locked.id.hex()}, for {lock_s:g} s")
        printer = Printer(Wanted(None, False, 0.0, False, False))
        printer.print(locked.messages)
        printer.end()
    if not locked.messages:
        context.exit(ExitCode.NOTHING_THERE)


@lock.command()
@lock_argument
@time_option
@pass_configuration
def renew(configuration: Configuration, lock_id: bytes, lock_s: float) -> None:
    """Let a lock end later: this time from now."""
    configuration.ask(lambda qm: qm.locked(lock_id, "").renew(lock_s))
    click.echo(f"renewed for {lock_s:g} s")


def _settling(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        pass_configuration,
        json_option,
        click.option(
            "--lookup-id", "lookup_ids", type=lookup_id, multiple=True, help="Only this message."
        ),
        queue_argument(),
        lock_argument,
    ):
        command = option(command)
    return command


def _settle(
    configuration: Configuration,
    lock_id: bytes,
    queue: str,
    lookup_ids: tuple[int, ...],
    how: str,
    reason: str,
    done: str,
    *,
    as_json: bool,
) -> None:
    from qmd.cli.output import print_json

    def verb(locked: Locked) -> Any:
        return locked.settle(how, lookup_ids, reason)

    count = configuration.ask(lambda qm: verb(qm.locked(lock_id, queue)))
    if as_json:
        print_json({"lock": lock_id.hex(), "messages": count})
    else:
        click.echo(f"{done} {counted(count, 'message')}")


@lock.command()
@_settling
def remove(
    configuration: Configuration,
    lock_id: bytes,
    queue: str,
    lookup_ids: tuple[int, ...],
    as_json: bool,
) -> None:
    """Remove the messages of a lock, or some: their work is done."""
    _settle(configuration, lock_id, queue, lookup_ids, "remove", "", "removed", as_json=as_json)


@lock.command()
@click.option("--failed", is_flag=True, help="Their processing failed: count an attempt.")
@click.option("--reason", default="", metavar="TEXT", help="For their history.")
@_settling
def give_back(
    configuration: Configuration,
    lock_id: bytes,
    queue: str,
    lookup_ids: tuple[int, ...],
    failed: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Return the messages of a lock, or some, to their places."""
    how = "fail" if failed else "give_back"
    _settle(configuration, lock_id, queue, lookup_ids, how, reason, "gave back", as_json=as_json)


@lock.command()
@click.option("--reason", default="", metavar="TEXT", help="The reason for their senders.")
@_settling
def reject(
    configuration: Configuration,
    lock_id: bytes,
    queue: str,
    lookup_ids: tuple[int, ...],
    reason: str,
    as_json: bool,
) -> None:
    """Reject the messages of a lock, or some: see `qmd reject`."""
    _settle(
        configuration, lock_id, queue, lookup_ids, "reject", reason, "rejected", as_json=as_json
    )


@lock.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List the locks."""
    from qmd.cli.output import print_rows

    found = configuration.ask(lambda qm: qm.list_locks())
    rows = found if as_json else [each | {"queues": ", ".join(each["queues"])} for each in found]
    columns = [
        ("LOCK", "lock"),
        ("QUEUES", "queues"),
        ("MESSAGES", "messages"),
        ("ENDS IN S", "left_s"),
        ("OWNER", "owner"),
    ]
    print_rows(rows, columns, as_json=as_json, none="there are no locks")
