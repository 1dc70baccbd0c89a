"""`qmd remote`: access to the control protocol from other hosts."""

from __future__ import annotations

from pathlib import Path

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.output import printable
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure


@click.group()
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
    output: Path | None,
) -> None:
    """Create a token with the name NAME. It is shown once; the daemon only stores its hash."""
    import os

    from qmd.access.tokens import create as create_token

    path = configuration.settings().remote.tokens
    if output is not None and output.exists():
        raise Failure(ExitCode.FAILED, f"{output} exists already", "file_exists")
    with _explained():
        made = create_token(path, name, frozenset(scopes), queues)
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
    """List tokens: their names, scopes, queues and times of creation."""
    from qmd.access.tokens import read
    from qmd.cli.output import print_rows

    with _explained():
        grants = read(configuration.settings().remote.tokens)
    rows = [
        {
            "name": grant.name,
            "scopes": ",".join(sorted(grant.scopes)),
            "queues": ",".join(grant.queues),
            "made": grant.made,
        }
        for grant in grants
    ]
    columns = [("NAME", "name"), ("SCOPES", "scopes"), ("QUEUES", "queues"), ("MADE", "made")]
    print_rows(rows, columns, as_json=as_json, none="no tokens")


@token.command()
@click.argument("name")
@pass_configuration
def revoke(configuration: Configuration, name: str) -> None:
    """Revoke the token NAME: its clients are refused within two seconds."""
    from qmd.access.tokens import revoke as revoke_token

    with _explained():
        if not revoke_token(configuration.settings().remote.tokens, name):
            raise Failure(
                ExitCode.NOT_FOUND, f"there is no token {printable(name)}", "no_such_token"
            )
    click.echo(f"token {name} is no longer valid")


class _explained:
    """Converts an error of the token file into a Failure of one line."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from qmd.access.tokens import TokenFileError

        if isinstance(error, TokenFileError | OSError):
            raise Failure(ExitCode.FAILED, str(error), "token_not_changed") from error
