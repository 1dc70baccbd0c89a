"""`qmd directory`: public queues, aliases and computers, and the file that may contain them."""

from __future__ import annotations

from pathlib import Path

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import Group


@click.group(cls=Group)
def directory() -> None:
    """Query the directory of queues, lists and computers."""


@directory.command()
@json_option
@pass_configuration
def status(configuration: Configuration, as_json: bool) -> None:
    """Show which directory is configured, whether it answers, and how much it holds.

    Exit code 1 when it is unavailable, or its file is invalid.
    """
    from qmd.cli.output import print_facts
    from qmd.cli.program import ExitCode

    facts = configuration.ask(lambda qm: qm.directory.status())
    print_facts(facts, as_json=as_json)
    if facts["state"] not in ("available", "none"):
        raise click.exceptions.Exit(ExitCode.FAILED)


@directory.command()
@click.argument("name")
@click.option("--fresh", is_flag=True, help="Ask the directory again and ignore cached answers.")
@json_option
@pass_configuration
def lookup(configuration: Configuration, name: str, fresh: bool, as_json: bool) -> None:
    """Show one entry of the directory.

    NAME is host\\queue, PUBLIC=guid, list:NAME, DL=guid, alias:NAME, MACHINE=guid, or the name of a
    computer.
    """
    from qmd.cli.output import print_facts

    facts = configuration.ask(lambda qm: qm.directory.lookup(name, fresh=fresh))
    print_facts(facts, as_json=as_json)


@directory.command()
@json_option
@pass_configuration
def reload(configuration: Configuration, as_json: bool) -> None:
    """Drop cached answers of the directory, and read its file again."""
    from qmd.cli.output import print_facts
    from qmd.cli.program import ExitCode

    facts = configuration.ask(lambda qm: qm.directory.reload())
    print_facts(facts, as_json=as_json)
    if facts["state"] not in ("available", "none"):
        raise click.exceptions.Exit(ExitCode.FAILED)


@directory.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), required=False)
@json_option
@pass_configuration
def check(configuration: Configuration, file: Path | None, as_json: bool) -> None:
    """Check whether FILE can be used as a directory, without asking the daemon.

    The default for FILE is that of the configuration.
    """
    from qmd.cli.output import print_json
    from qmd.directory.file.format import parse, read_text

    path = configuration.settings().directory.file if file is None else file
    counts = dict(parse(read_text(path), path).counts)
    if as_json:
        print_json({"file": str(path), **counts})
    else:
        found = ", ".join(f"{count} {what}" for what, count in counts.items())
        click.echo(f"{path} is valid: {found}")
