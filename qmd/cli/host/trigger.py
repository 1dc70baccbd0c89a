"""`qmd trigger`: messages of a queue that run programs or call URLs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qmd.cli import given_files
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import duration, json_option
from qmd.cli.program import ExitCode, Failure, Group, Misuse

if TYPE_CHECKING:
    from qmd.triggers.definition import Rule
    from qmd.triggers.store import TriggerFile

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=Group)
def trigger() -> None:
    """Run programs or call URLs for the messages of a queue.

    Definitions take effect within a second.  docs/triggers.md
    """


def rule_options(function: F) -> F:
    """Add the options of one rule."""
    for option in reversed(
        (
            click.option(
                "--run", "program", metavar="PROGRAM", help="Run this program: its full path."
            ),
            click.option("--call", "url", metavar="URL", help="Call this URL, by POST."),
            click.option(
                "--argument", "arguments", multiple=True, metavar="TEXT",
                help="An argument of the program, such as '$MSG_LABEL'; may be repeated.",
            ),
            click.option(
                "--parameter", "parameters", multiple=True, metavar="NAME=TEXT",
                help="A parameter of the URL, such as 'id=$MSG_ID'; may be repeated.",
            ),
            click.option(
                "--when", "conditions", multiple=True, metavar="CONDITION",
                help="Only for messages such as '$MSG_LABEL_CONTAINS=order'; may be repeated: all.",
            ),
            click.option("--where", default="", help="Only for messages that match a selector."),
            click.option(
                "--answer-to", default="", metavar="QUEUE",
                help="Send the output of the program there; `response`: to the response queue.",
            ),
            click.option("--timeout", type=duration, default="60s", show_default=True),
            click.option(
                "--memory", type=click.IntRange(min=16), default=1024, show_default=True,
                help="Address space of the program, in MiB.",
            ),
            click.option(
                "--output", type=click.IntRange(min=0), default=1024, show_default=True,
                help="The longest output of the program, in KiB.",
            ),
            click.option("--folder", default="/", show_default=True, help="Its working directory."),
        )
    ):  # fmt: skip
        function = option(function)
    return function


@trigger.command()
@click.argument("name")
@click.option("--queue", required=True, help="The queue of which the messages start it.")
@click.option(
    "--kind", type=click.Choice(("peek", "receive", "transactional")), default="receive",
    show_default=True, help="Whether its messages stay, leave, or leave in a transaction.",
)  # fmt: skip
@click.option("--serialized", is_flag=True, help="One message at a time, in order.")
@click.option(
    "--concurrency", type=click.IntRange(1, 256), default=4, show_default=True,
    help="Messages at a time, without order.",
)  # fmt: skip
@click.option("--disabled", is_flag=True, help="Do not start it yet.")
@click.option("--rule", "rule_name", default="rule", show_default=True, help="Name of its rule.")
@click.option("--attempts", type=click.IntRange(1, 1000), default=10, show_default=True)
@click.option("--first-pause", type=duration, default="1s", show_default=True)
@click.option("--last-pause", type=duration, default="5m", show_default=True)
@rule_options
@json_option
@pass_configuration
def create(
    configuration: Configuration,
    /,
    name: str,
    queue: str,
    kind: str,
    serialized: bool,
    concurrency: int,
    disabled: bool,
    rule_name: str,
    attempts: int,
    first_pause: float,
    last_pause: float,
    as_json: bool,
    **given: Any,
) -> None:
    """Create the trigger NAME with its first rule.

    Attempts and pauses hold for a queue without a retry policy; then a message becomes a dead
    letter.  The key of the signatures of a URL is shown once.
    """
    from qmd.cli.output import print_json
    from qmd.cli.parameters import system_queue
    from qmd.triggers.definition import facts, parse, remarks

    with _explained():
        rule, secret = _rule(rule_name, given)
        it = parse(
            {
                **{"name": name, "queue": system_queue(queue), "kind": kind},
                **{"serialized": serialized, "concurrency": concurrency, "rules": [rule]},
                **{"enabled": not disabled, "attempts": attempts},
                **{"first_pause_s": first_pause, "last_pause_s": last_pause},
            }
        )
        _file(configuration).create(it)
    _print_notes(remarks(it))
    if as_json:
        print_json({**facts(it), "secret": secret})
    elif secret:
        click.echo(secret)


@trigger.command("add-rule")
@click.argument("name")
@click.argument("rule_name", metavar="RULE")
@rule_options
@pass_configuration
def add_rule(configuration: Configuration, /, name: str, rule_name: str, **given: Any) -> None:
    """Add a RULE to the trigger NAME, behind its others."""
    from qmd.triggers.definition import remarks

    with _explained():
        rule, secret = _rule(rule_name, given)
        converted = _converted(rule)
        file = _file(configuration)
        file.add_rule(name, converted)
        it = file.show(name)
    _print_notes([each for each in remarks(it) if each.startswith(f"rule {rule_name}:")])
    if secret:
        click.echo(secret)


@trigger.command("delete-rule")
@click.argument("name")
@click.argument("rule_name", metavar="RULE")
@pass_configuration
def delete_rule(configuration: Configuration, name: str, rule_name: str) -> None:
    """Remove a RULE of the trigger NAME."""
    with _explained():
        _file(configuration).delete_rule(name, rule_name)


@trigger.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List the triggers."""
    from qmd.cli.output import print_rows
    from qmd.triggers.definition import facts

    with _explained():
        found = _file(configuration).read()
    rows = [
        {**facts(each), "rule_names": [it.name for it in each.rules]} for each in found.values()
    ]
    columns = [
        *(("NAME", "name"), ("QUEUE", "queue"), ("KIND", "kind"), ("ENABLED", "enabled")),
        *(("SERIALIZED", "serialized"), ("RULES", "rule_names")),
    ]
    print_rows(rows, columns, as_json=as_json, none="no triggers")


@trigger.command()
@click.argument("name")
@json_option
@pass_configuration
def show(configuration: Configuration, name: str, as_json: bool) -> None:
    """Show the trigger NAME with its rules."""
    from qmd.cli.output import print_facts
    from qmd.triggers.definition import facts

    with _explained():
        it = _file(configuration).show(name)
    print_facts(facts(it), as_json=as_json)


@trigger.command()
@click.argument("name")
@pass_configuration
def enable(configuration: Configuration, name: str) -> None:
    """Enable the trigger NAME."""
    with _explained():
        _file(configuration).enable(name, enabled=True)


@trigger.command()
@click.argument("name")
@pass_configuration
def disable(configuration: Configuration, name: str) -> None:
    """Disable the trigger NAME; actions under way are ended, and their messages return."""
    with _explained():
        _file(configuration).enable(name, enabled=False)


@trigger.command()
@click.argument("name")
@pass_configuration
def delete(configuration: Configuration, name: str) -> None:
    """Delete the trigger NAME; messages stay in its queue."""
    with _explained():
        _file(configuration).delete(name)


@trigger.command()
@click.argument("name")
@click.option(
    "--lookup-id", type=click.IntRange(min=0), help="The message.  [default: the first one]"
)
@json_option
@pass_configuration
def test(configuration: Configuration, name: str, lookup_id: int | None, as_json: bool) -> None:
    """Show what the trigger NAME would do for a message of its queue, and do nothing."""
    from qmd.cli.output import print_facts
    from qmd.triggers.rehearsal import rehearse

    with _explained():
        it = _file(configuration).show(name)
        if lookup_id is None:
            message = configuration.ask(lambda qm: qm.look(it.queue, "first"))
        else:
            message = configuration.ask(lambda qm: qm.look(it.queue, "this", lookup_id))
        if message is None:
            where = f"{it.queue} is empty" if lookup_id is None else f"no message {lookup_id}"
            raise Failure(ExitCode.NOT_FOUND, f"{where}; send one", "no_such_message")
        found = rehearse(it, message)
    if not as_json:
        for rule in found["rules"]:
            if rule.get("command"):
                rule["command"] = shlex.join(rule["command"])
    print_facts(found, as_json=as_json)


@trigger.command("import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--program", "programs", multiple=True, metavar="WINDOWS=HERE",
    help=r"The program here for one of Windows: 'C:\tools\bill.exe=/usr/local/bin/bill'.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only show what would be imported.")
@json_option
@pass_configuration
def import_(
    configuration: Configuration,
    file: Path,
    programs: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import the triggers of Windows from an export of its registry.

    Make it there: reg export HKLM\\SOFTWARE\\Microsoft\\MSMQ\\Triggers triggers.reg.  All triggers
    are imported or none; those with an action that has no counterpart here are disabled.
    """
    from qmd.cli.output import print_json
    from qmd.triggers.definition import facts
    from qmd.triggers.registry import read_registry

    with _explained():
        found = read_registry(given_files.read_bytes(file), dict(_pairs(programs, "--program")))
        if not dry_run:
            _file(configuration).create(*found.triggers)
    if as_json:
        print_json({"triggers": [facts(each) for each in found.triggers], "remarks": found.remarks})
        return
    for each in found.triggers:
        state = "" if each.enabled else ", disabled"
        click.echo(f"{each.name}: {each.queue}, {each.kind}, {len(each.rules)} rules{state}")
    _print_notes(found.remarks)


@trigger.command()
@click.option(
    "--drain", type=duration, default="30s", show_default=True,
    help="On SIGTERM, the time limit for actions under way.",
)  # fmt: skip
@click.option(
    "--metrics", type=click.Path(dir_okay=False, path_type=Path),
    help="A file for counters, written every 10 s in the text format of Prometheus.",
)  # fmt: skip
@pass_configuration
@click.pass_context
def run(
    context: click.Context, configuration: Configuration, drain: float, metrics: Path | None
) -> None:
    """Run the enabled triggers until SIGTERM or Ctrl-C.

    The process is a client of the daemon: if it ends, however that happens, messages that it has
    received and not finished return to their queues.
    """
    import asyncio

    from qmd.runtime.log import set_up_logging

    settings = configuration.settings()
    set_up_logging(settings.log.level, settings.log.format)
    asyncio.run(_run(configuration, drain or 0.0, metrics))


async def _run(configuration: Configuration, drain_s: float, metrics: Path | None) -> None:
    import asyncio
    import contextlib
    import os

    from qmd.cli.host.metrics_file import written
    from qmd.cli.interrupt import SIGNALS
    from qmd.runtime.systemd import ServiceManager
    from qmd.triggers.runner import Runner

    settings = configuration.settings().triggers
    stop, service = asyncio.Event(), ServiceManager(os.environ)
    for each in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    async with configuration.connect() as qm:
        file = _file(configuration, runs=True)
        runner = Runner(file, qm, runs_max=settings.runs_max, targets=settings.targets)
        running = asyncio.create_task(runner.run())
        service.notify("READY=1")
        async with written(metrics, runner.metrics, ""):
            await stop.wait()
            service.notify("STOPPING=1")
            await runner.drain(drain_s)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


def _print_notes(notes: Sequence[str]) -> None:
    for each in notes:
        click.echo(f"note: {each}", err=True)


def _file(configuration: Configuration, *, runs: bool = False) -> TriggerFile:
    from qmd.triggers.store import TriggerFile

    return TriggerFile(configuration.settings().triggers.file, runs=runs)


def _rule(name: str, given: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the fields of a rule, and the new key of the signatures of its URL."""
    import msgspec

    from qmd.triggers.definition import parse_condition

    program, url = given["program"], given["url"]
    if (program is None) == (url is None):
        raise Misuse("option_needs_option", "a rule needs --run or --call, and not both")
    secret = ""  # nosec B105: a program needs none
    action: dict[str, Any]
    if program is not None:
        action = {
            **{"action": "program", "path": program, "arguments": list(given["arguments"])},
            **{"answer_to": given["answer_to"], "folder": given["folder"]},
            **{"timeout_s": given["timeout"], "memory_bytes": given["memory"] << 20},
            "output_bytes": given["output"] << 10,
        }
    else:
        from qmd.doors.http.pushes import new_secret

        secret = new_secret()
        parameters = dict(_pairs(given["parameters"], "--parameter"))
        action = {"action": "url", "url": url, "secret": secret, "parameters": parameters}
        action["timeout_s"] = given["timeout"]
    conditions = [msgspec.to_builtins(parse_condition(each)) for each in given["conditions"]]
    where = given["where"]
    return {"name": name, "action": action, "conditions": conditions, "where": where}, secret


def _converted(rule: dict[str, Any]) -> Rule:
    import msgspec

    from qmd.triggers.definition import Rule, TriggerError

    try:
        return msgspec.convert(rule, Rule)
    except msgspec.ValidationError as error:
        raise TriggerError(str(error)) from error


def _pairs(texts: tuple[str, ...], option: str) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name or not value:
            raise click.UsageError(f"{option} {text!r} is not NAME=TEXT")
        yield name, value


@contextmanager
def _explained() -> Iterator[None]:
    from qmd.triggers.definition import TriggerError

    try:
        yield
    except TriggerError as error:
        code = ExitCode.NOT_FOUND if error.code == "no_such_trigger" else ExitCode.FAILED
        raise Failure(code, str(error), error.code) from error
