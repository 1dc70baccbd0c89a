"""`qmd console`: the web console, and its users."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure, Group


@click.group(cls=Group, invoke_without_command=True)
@click.option(
    "--link/--no-link",
    default=None,
    help="Print a link that logs you in once.  [default: if a terminal reads the output]",
)
@pass_configuration
@click.pass_context
def console(context: click.Context, configuration: Configuration, link: bool | None) -> None:
    """Serve the web console, or manage its users.

    Without a command it serves, in the foreground, until SIGTERM or Ctrl-C.  docs/console.md
    """
    if context.invoked_subcommand is not None:
        return
    from importlib.util import find_spec

    if find_spec("httptools") is None or find_spec("jinja2") is None:
        raise Failure(
            ExitCode.CONFIGURATION,
            "the console needs further packages; install them: pip install 'qmd-msmq[console]'",
            "door_package_missing",
        )
    from qmd.console.program import main

    shows_link = sys.stdout.isatty() if link is None else link
    context.exit(main(configuration.settings(), configuration.path.absolute(), link=shows_link))


@console.group()
def user() -> None:
    """Manage the users that log in with a password. Changes take effect at once."""


@user.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(("viewer", "operator", "administrator")),
    default="viewer",
    show_default=True,
    help="The pages and actions that it may use.",
)
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with the password in its first line; - is the standard input.  [default: ask]",
)
@pass_configuration
def add(configuration: Configuration, name: str, role: str, password_file: Path | None) -> None:
    """Add the user NAME, or give it another password and role; its logins end."""
    from qmd.cli.host.door import read_password
    from qmd.console.roles import parse_role
    from qmd.console.users import User, change_users
    from qmd.doors.passwords import normalized
    from qmd.doors.users import checked_name, verifier

    checked_name(name)
    password = read_password(password_file)
    if not password:
        raise click.UsageError("the password is empty")
    made = User(parse_role(role), verifier(normalized(password)))
    replaced = change_users(configuration.settings().console.users, name, made)
    click.echo(f"{'changed' if replaced else 'added'} {name}, {role}")


@user.command()
@click.argument("name")
@pass_configuration
def remove(configuration: Configuration, name: str) -> None:
    """Remove the user NAME; its logins end."""
    from qmd.console.users import change_users

    if not change_users(configuration.settings().console.users, name, None):
        raise Failure(ExitCode.NOT_FOUND, f"there is no user {name}", "door_user_unknown")
    click.echo(f"removed {name}")


@user.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List the users and their roles."""
    from qmd.console.users import Users

    for name, found in sorted(Users(configuration.settings().console.users).all().items()):
        facts = {"name": name, "role": found.role.word}
        click.echo(json.dumps(facts) if as_json else f"{name}  {found.role.word}")
