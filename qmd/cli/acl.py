"""`qmd acl`: the rights of users, groups and tokens on queues and on the host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from qmd.cli import given_files
from qmd.cli.completion import queues
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.output import printable
from qmd.cli.parameters import json_option, yes_option
from qmd.cli.program import Group

ME = "me"


@click.group(cls=Group)
def acl() -> None:
    """Manage the rights on queues and on the host.

    OBJECT is a queue, '*' for all queues, '*@HOST' for all queues of another computer, '*@*' for
    those of all other computers, or host.  WHO is user:NAME, group:NAME, token:NAME,
    host:ADDRESS, peer:GUID, everyone, anonymous, local ...  RIGHTS is a list such as send,peek, or
    full, read or write.
    """


@acl.command()
@click.argument("object", shell_complete=queues)
@json_option
@pass_configuration
def show(configuration: Configuration, object: str, as_json: bool) -> None:
    """Show the entries and the owner of OBJECT."""
    _print(configuration.ask(lambda qm: qm.access.show(object)), as_json=as_json)


@acl.command()
@click.argument("who")
@click.argument("rights")
@click.argument("object", shell_complete=queues)
@json_option
@pass_configuration
def grant(configuration: Configuration, who: str, rights: str, object: str, as_json: bool) -> None:
    """Allow WHO the RIGHTS on OBJECT."""
    _print(configuration.ask(lambda qm: qm.access.grant(who, rights, object)), as_json=as_json)


@acl.command()
@click.argument("who")
@click.argument("rights")
@click.argument("object", shell_complete=queues)
@json_option
@pass_configuration
def deny(configuration: Configuration, who: str, rights: str, object: str, as_json: bool) -> None:
    """Deny WHO the RIGHTS on OBJECT, whatever else allows them."""
    _print(configuration.ask(lambda qm: qm.access.deny(who, rights, object)), as_json=as_json)


@acl.command()
@click.argument("who")
@click.argument("rights")
@click.argument("object", shell_complete=queues)
@json_option
@pass_configuration
def revoke(configuration: Configuration, who: str, rights: str, object: str, as_json: bool) -> None:
    """Revoke the RIGHTS that entries of OBJECT allow or deny WHO.

    The default of a queue is revoked too: `qmd acl revoke everyone send orders` closes a queue.
    """
    _print(configuration.ask(lambda qm: qm.access.revoke(who, rights, object)), as_json=as_json)


@acl.command()
@click.argument("queue", shell_complete=queues)
@click.argument("who", default="")
@json_option
@pass_configuration
def owner(configuration: Configuration, queue: str, who: str, as_json: bool) -> None:
    """Make WHO the owner of QUEUE, or without WHO yourself."""
    who = "" if who == ME else who
    _print(configuration.ask(lambda qm: qm.access.set_owner(queue, who)), as_json=as_json)


@acl.command()
@click.argument("who")
@click.argument("right")
@click.argument("object", shell_complete=queues)
@json_option
@click.pass_context
@pass_configuration
def test(
    configuration: Configuration,
    context: click.Context,
    who: str,
    right: str,
    object: str,
    as_json: bool,
) -> None:
    """Test whether WHO (or me) has the RIGHT on OBJECT, and say why.

    Exit code 1: no.
    """
    from qmd.cli.output import print_json

    who = "" if who == ME else who
    found = configuration.ask(lambda qm: qm.access.test(who, right, object))
    if as_json:
        print_json(found)
    else:
        answer = "yes" if found["allowed"] else "no"
        what = f"{found['principal']} {found['right']} {found['object']}"
        click.echo(f"{answer}: {printable(what)}: {printable(found['reason'])}")
    if not found["allowed"]:
        context.exit(1)


@acl.command()
@pass_configuration
def export(configuration: Configuration) -> None:
    """Print all entries and owners as JSON, one object per line."""
    from qmd.cli.output import print_json

    found = configuration.ask(lambda qm: qm.access.export())
    for each in (*found["entries"], *found["owners"]):
        print_json(each)


@acl.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Remove all entries that are not in the file.")
@yes_option
@json_option
@pass_configuration
def import_(
    configuration: Configuration, file: Path, replace: bool, yes: bool, as_json: bool
) -> None:
    """Add the entries and owners in FILE, which `qmd acl export` has printed: all or none."""
    from qmd.cli.output import print_json
    from qmd.cli.parameters import confirm

    entries, owners = _read(file)
    if replace and not yes:
        confirm(f"replace all rights by the {len(entries)} entries of {printable(str(file))}")
    done = configuration.ask(lambda qm: qm.access.import_(entries, owners, replace=replace))
    if as_json:
        print_json(done)
    else:
        click.echo(f"imported {done['entries']} entries and {done['owners']} owners")


def _read(file: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the entries and the owners of a file.  Raises click.ClickException."""
    try:
        text = given_files.read_text(file)
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file} is not UTF-8 text") from error
    entries: list[dict[str, Any]] = []
    owners: list[dict[str, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            keys = {"object", "principal", "effect", "rights"}
            if not isinstance(row, dict) or not (
                keys <= row.keys() or {"queue", "principal"} <= row.keys()
            ):
                raise ValueError("it is neither an entry nor an owner")
        except ValueError as error:
            raise click.ClickException(f"{file}, line {number}: {error}") from error
        (entries if "object" in row else owners).append(row)
    return entries, owners


def _print(found: dict[str, Any], *, as_json: bool) -> None:
    from qmd.cli.output import print_json, print_table

    if as_json:
        print_json(found)
        return
    click.echo(f"{printable(found['object'])}: {found['kind']}, owner {found['owner'] or 'none'}")
    if found["entries"]:
        columns = [("EFFECT", "effect"), ("PRINCIPAL", "principal"), ("RIGHTS", "rights")]
        print_table(found["entries"], columns)
    if found["default"] is not None:
        click.echo(f"default for everyone: {found['default'] or 'nothing'}")
