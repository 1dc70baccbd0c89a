"""`qmd door`: processes that serve clients of other protocols."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from qmd.cli import given_files
from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure, Group
from qmd.runtime import plain_structlog

#: The doors, each with a command and a section of the configuration of its name.
DOORS = ("http", "amqp", "metrics", "srmp")


@click.group(cls=Group)
def door() -> None:
    """Serve clients of other protocols.

    A door is a client of the daemon, in a process of its own.
    """


@door.command()
@pass_configuration
@click.pass_context
def http(context: click.Context, configuration: Configuration) -> None:
    """Serve clients over HTTP: REST, server-sent events, CloudEvents, webhooks.

    It stays in the foreground, until SIGTERM or Ctrl-C.  docs/http.md
    """
    plain_structlog.load()
    from importlib.util import find_spec

    if find_spec("httptools") is None:
        raise Failure(
            ExitCode.CONFIGURATION,
            "the HTTP door needs a further package; install it: pip install 'qmd-msmq[http]'",
            "door_package_missing",
        )
    from qmd.doors.http.door import main

    context.exit(main(configuration.settings()))


@door.command()
@pass_configuration
def amqp(configuration: Configuration) -> None:
    """Serve clients of AMQP 1.0.

    It stays in the foreground, until SIGTERM or Ctrl-C.  docs/amqp.md
    """
    plain_structlog.load()
    import ssl
    from importlib.util import find_spec

    from qmd.runtime.log import forward_standard_logging, set_up_logging

    if find_spec("proton") is None or find_spec("cproton") is None:
        raise Failure(
            ExitCode.CONFIGURATION,
            "the door for AMQP needs a further package; install it: pip install 'qmd-msmq[amqp]'",
            "door_package_missing",
        )
    from qmd.doors.amqp.program import serve

    settings = configuration.settings()
    set_up_logging(settings.log.level, settings.log.format)
    forward_standard_logging()
    try:
        serve(settings)
    except (OSError, ssl.SSLError) as error:
        raise Failure(
            ExitCode.FAILED,
            f"the door cannot listen at {settings.amqp.address}: {error}",
            "door_cannot_listen",
        ) from error


@door.command()
@pass_configuration
@click.pass_context
def metrics(context: click.Context, configuration: Configuration) -> None:
    """Serve metrics to Prometheus, at /metrics.

    It stays in the foreground, until SIGTERM or Ctrl-C.  docs/metrics.md
    """
    plain_structlog.load()
    from importlib.util import find_spec

    if find_spec("prometheus_client") is None or find_spec("httptools") is None:
        raise Failure(
            ExitCode.CONFIGURATION,
            "the door for metrics needs further packages; install them:"
            " pip install 'qmd-msmq[metrics]'",
            "door_package_missing",
        )
    from qmd.doors.metrics.program import main

    context.exit(main(configuration.settings()))


@door.command()
@pass_configuration
@click.pass_context
def srmp(context: click.Context, configuration: Configuration) -> None:
    """Exchange messages over HTTP and HTTPS, as MSMQ does (SRMP).

    It stays in the foreground, until SIGTERM or Ctrl-C.  docs/srmp.md
    """
    plain_structlog.load()
    from importlib.util import find_spec

    if find_spec("httptools") is None:
        raise Failure(
            ExitCode.CONFIGURATION,
            "the door for SRMP needs a further package; install it: pip install 'qmd-msmq[http]'",
            "door_package_missing",
        )
    from qmd.doors.srmp.program import main

    context.exit(main(configuration.settings()))


@door.command("all")
@pass_configuration
def all_(configuration: Configuration) -> None:
    """Serve by all enabled doors, each in a process of its own; `qmd serve --doors` does this.

    A door that ends is started again.
    """
    plain_structlog.load()
    from qmd.doors.supervisor import Supervisor
    from qmd.runtime.log import set_up_logging

    settings = configuration.settings()
    set_up_logging(settings.log.level, settings.log.format)
    enabled = [name for name in DOORS if getattr(settings, name).enabled]
    Supervisor(configuration.path, enabled).run()


@door.group()
def user() -> None:
    """Manage the users that log in with a password. Changes take effect at once."""


@user.command()
@click.argument("name")
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A file with the password in its first line; - is the standard input.  [default: ask]",
)
@pass_configuration
def add(configuration: Configuration, name: str, password_file: Path | None) -> None:
    """Add the user NAME, or give it another password."""
    from qmd.doors.passwords import normalized
    from qmd.doors.users import change_users, checked_name, verifier

    checked_name(name)
    password = read_password(password_file)
    if not password:
        raise click.UsageError("the password is empty")
    replaced = change_users(
        configuration.settings().amqp.users, name, verifier(normalized(password))
    )
    click.echo(f"{'changed' if replaced else 'added'} {name}; it has the rights of sasl:{name}")


def read_password(file: Path | None) -> str:
    """Return the first line of a file (-: the standard input), or what the user types."""
    if file is None:
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    if str(file) == "-":
        return sys.stdin.readline().rstrip("\r\n")
    return given_files.read_text(file).partition("\n")[0].rstrip("\r")


@user.command()
@click.argument("name")
@pass_configuration
def remove(configuration: Configuration, name: str) -> None:
    """Remove the user NAME; its open connections stay."""
    from qmd.doors.users import change_users

    if not change_users(configuration.settings().amqp.users, name, None):
        raise Failure(ExitCode.NOT_FOUND, f"there is no user {name}", "door_user_unknown")
    click.echo(f"removed {name}")


@user.command("list")
@json_option
@pass_configuration
def list_(configuration: Configuration, as_json: bool) -> None:
    """List the users."""
    from qmd.doors.users import Users

    for name in Users(configuration.settings().amqp.users).names():
        click.echo(json.dumps({"name": name}) if as_json else name)
