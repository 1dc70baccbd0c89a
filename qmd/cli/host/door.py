"""`qmd door`: processes that serve clients of other protocols."""

from __future__ import annotations

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.program import ExitCode, Failure

#: The doors, each with a command and a section of the configuration of its name.
DOORS = ("http",)


@click.group()
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
    from importlib.util import find_spec

    if find_spec("httptools") is None:
        raise Failure(
            ExitCode.CONFIGURATION,
            "the HTTP door needs a further package; install it: pip install 'qmd-msmq[http]'",
            "door_package_missing",
        )
    from qmd.doors.http.door import main

    context.exit(main(configuration.settings()))


@door.command("all")
@pass_configuration
def all_(configuration: Configuration) -> None:
    """Serve by all enabled doors, each in a process of its own; `qmd serve --doors` does this.

    A door that ends is started again.
    """
    from qmd.doors.supervisor import Supervisor
    from qmd.runtime.log import set_up_logging

    settings = configuration.settings()
    set_up_logging(settings.log.level, settings.log.format)
    enabled = [name for name in DOORS if getattr(settings, name).enabled]
    Supervisor(configuration.path, enabled).run()
