"""`qmd remote`: access to the control protocol from other hosts."""

from __future__ import annotations

from pathlib import Path

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.output import printable
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure, Group


@click.group(cls=Group)
def remote() -> None:
    """Manage access from other hosts.

    The control protocol over TCP with TLS, for pipelines and remote operators.
    """


@remote.group()
def token() -> None:
    """Manage tokens and their permissions. Changes take effect at once, without a restart."""


@token.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(("read", "write", "admin")),
    required=True,
    help="read: peek, receive, reserve; write: send, publish; admin: everything.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    help="Only these queues; * and ? are wildcards, `orders;*` matches subqueues and the journal.",
)
@click.option(
    "--expires",
    metavar="WHEN",
    help="When it becomes invalid: after a time such as 90d, or at 2027-01-31T00:00:00Z.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A new file for the token; by default it is printed.",
)
@pass_configuration
def create(
    configuration: Configuration,
    name: str,
    scopes: tuple[str, ...],
    queues: tuple[str, ...],
    expires: str | None,
    output: Path | None,
) -> None:
    """Create a token with the name NAME. It is shown once; the daemon only stores its hash."""
    import os

    from qmd.access.tokens import NEVER
    from qmd.access.tokens import create as create_token

    path = configuration.settings().remote.tokens
    if output is not None and output.exists():
        raise Failure(ExitCode.FAILED, f"{output} exists already", "file_exists")
    until = NEVER if expires is None else _expiry(expires)
    with _explained():
        made = create_token(path, name, frozenset(scopes), queues, expires=until)
    if output is None:
        click.echo(made)
        return
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(made + "\n")
    click.echo(f"the token is in {output}", err=True)


@token.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List tokens: their names, scopes, queues, times of creation and expiry, and last uses.

    A last use may be a minute older than shown.
    """
    import time

    from qmd.access.tokens import USES, Use, read, read_uses
    from qmd.cli.output import print_rows

    settings = configuration.settings()
    with _explained():
        grants = read(settings.remote.tokens)
    uses = read_uses(settings.queue_manager.data / USES)
    now_s = time.time()
    rows = [
        {
            "name": grant.name,
            "scopes": ",".join(sorted(grant.scopes)),
            "queues": ",".join(grant.queues),
            "made": grant.made,
            "expires": grant.expires + (" (expired)" if grant.has_expired(now_s) else ""),
            "last_use": use.at,
            "last_host": use.host,
        }
        for grant in grants
        for use in [uses.get(grant.name, Use("", ""))]
    ]
    columns = [
        *(("NAME", "name"), ("SCOPES", "scopes"), ("QUEUES", "queues"), ("MADE", "made")),
        *(("EXPIRES", "expires"), ("LAST USE", "last_use"), ("FROM", "last_host")),
    ]
    print_rows(rows, columns, as_json=as_json, none="no tokens")


@token.command()
@click.argument("name")
@pass_configuration
def revoke(configuration: Configuration, name: str) -> None:
    """Revoke the token NAME: its connections end within a second."""
    from qmd.access.tokens import revoke as revoke_token

    with _explained():
        if not revoke_token(configuration.settings().remote.tokens, name):
            raise Failure(
                ExitCode.NOT_FOUND, f"there is no token {printable(name)}", "no_such_token"
            )
    click.echo(f"token {name} is no longer valid")


def _expiry(text: str) -> str:
    """Return the time of an expiry.  Raises Failure."""
    import time

    from qmd.access.tokens import format_time, parse_time
    from qmd.config.units import parse_duration_ms

    try:
        at_s = time.time() + parse_duration_ms(text) / 1000
    except ValueError:
        try:
            at_s = parse_time(text)
        except ValueError:
            raise Failure(
                ExitCode.USAGE,
                f"{printable(text)} is neither a duration such as 90d nor a time such as"
                " 2027-01-31T00:00:00Z",
                "bad_expiry",
            ) from None
    if at_s <= time.time():
        raise Failure(ExitCode.USAGE, f"{printable(text)} is in the past", "bad_expiry")
    return format_time(at_s)


class _explained:
    """Converts an error of the token file into a Failure of one line."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from qmd.access.tokens import TokenFileError

        if isinstance(error, TokenFileError | OSError):
            raise Failure(ExitCode.FAILED, str(error), "token_not_changed") from error
