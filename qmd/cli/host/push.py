"""`qmd push`: queues of which the HTTP door delivers the messages to URLs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure, Group


@click.group(cls=Group)
def push() -> None:
    """Deliver queues to URLs (webhooks), in order, by the HTTP door.

    Changes take effect within a second.  docs/http.md
    """


@push.command()
@click.argument("name")
@click.option("--queue", required=True, help="The queue of which the messages are delivered.")
@click.option("--url", required=True, help="Where: it must be among the push_targets of [http].")
@click.option("--attempts", default=10, show_default=True, help="Then it becomes a dead letter.")
@click.option("--first-pause", default=1.0, show_default=True, help="Seconds; each is longer.")
@click.option("--last-pause", default=300.0, show_default=True, help="The longest, in seconds.")
@click.option("--timeout", default=30.0, show_default=True, help="Seconds for one answer.")
@json_option
@pass_configuration
def create(
    configuration: Configuration,
    name: str,
    queue: str,
    url: str,
    attempts: int,
    first_pause: float,
    last_pause: float,
    timeout: float,
    as_json: bool,
) -> None:
    """Create the push NAME. The key of its signatures is shown once."""
    from qmd.cli.output import print_json
    from qmd.doors.http.pushes import PushFile, facts, parse

    given: dict[str, object] = {
        **{"name": name, "queue": queue, "url": url, "attempts": attempts},
        **{"first_pause_s": first_pause, "last_pause_s": last_pause, "timeout_s": timeout},
    }
    with _explained():
        made = PushFile(configuration.settings().http.pushes).create(parse(given))
    if as_json:
        print_json(facts(made, with_secret=True))
    else:
        click.echo(made.secret)


@push.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List the pushes."""
    from qmd.cli.output import print_rows
    from qmd.doors.http.pushes import PushFile, facts

    with _explained():
        found = PushFile(configuration.settings().http.pushes).read()
    rows = [facts(each) for each in found.values()]
    columns = [
        *(("NAME", "name"), ("QUEUE", "queue"), ("URL", "url")),
        *(("ATTEMPTS", "attempts"), ("PAUSED", "paused")),
    ]
    print_rows(rows, columns, as_json=as_json, none="no pushes")


@push.command()
@click.argument("name")
@pass_configuration
def delete(configuration: Configuration, name: str) -> None:
    """End the push NAME; messages stay in its queue."""
    from qmd.doors.http.pushes import PushFile

    with _explained():
        PushFile(configuration.settings().http.pushes).delete(name)


@push.command()
@click.argument("name")
@pass_configuration
def pause(configuration: Configuration, name: str) -> None:
    """Pause the push NAME."""
    from qmd.doors.http.pushes import PushFile

    with _explained():
        PushFile(configuration.settings().http.pushes).pause(name, paused=True)


@push.command()
@click.argument("name")
@pass_configuration
def resume(configuration: Configuration, name: str) -> None:
    """Resume the push NAME."""
    from qmd.doors.http.pushes import PushFile

    with _explained():
        PushFile(configuration.settings().http.pushes).pause(name, paused=False)


@contextmanager
def _explained() -> Iterator[None]:
    from qmd.doors.http.pushes import PushError

    try:
        yield
    except PushError as error:
        code = ExitCode.NOT_FOUND if error.code == "no_such_push" else ExitCode.FAILED
        raise Failure(code, str(error), error.code) from error
