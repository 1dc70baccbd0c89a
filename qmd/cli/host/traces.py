"""`qmd traces`: spans of messages for a collector of OpenTelemetry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure, Group

if TYPE_CHECKING:
    from qmd.client import QueueManager


@click.group(cls=Group)
def traces() -> None:
    """Follow messages over hosts with OpenTelemetry.  docs/tracing.md"""


@traces.command()
@click.option(
    "--endpoint",
    default="http://127.0.0.1:4318/v1/traces",
    envvar="OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    show_default=True,
    metavar="URL",
    help="The collector's address for traces: OTLP over HTTP.",
)
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Sent with each.")
@click.option(
    "--state",
    "state_file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("qmd-traces.json"),
    show_default=True,
    help="The file that remembers how far the spans were exported.",
)
@click.option("--all", "all_", is_flag=True, help="Also messages without a trace context.")
@click.option("--once", is_flag=True, help="End after the present events, instead of following.")
@json_option
@pass_configuration
def export(
    configuration: Configuration,
    endpoint: str,
    headers: tuple[str, ...],
    state_file: Path,
    all_: bool,
    once: bool,
    as_json: bool,
) -> None:
    """Export spans of messages, from the event log, until Ctrl-C or SIGTERM.

    Messages with a trace context (the property traceparent) get spans for send, transfer, receive
    and settle on each host that runs this command.
    """
    from importlib.util import find_spec

    if find_spec("opentelemetry") is None:
        raise Failure(
            ExitCode.CONFIGURATION,
            "traces need further packages; install them: pip install 'qmd-msmq[traces]'",
            "door_package_missing",
        )
    from qmd.cli.output import print_json
    from qmd.doors.traces.export import NotTaken, TraceExporter

    named = dict(_header(each) for each in headers)
    exporter = TraceExporter(endpoint, named, state_file, all_messages=all_)

    async def run(qm: QueueManager) -> None:
        await exporter.run(qm, once=once)

    try:
        configuration.ask(run)
    except NotTaken as error:
        raise Failure(
            ExitCode.FAILED,
            f"the collector at {endpoint} did not take the spans",
            "spans_not_taken",
        ) from error
    finally:
        exporter.close()
    if as_json:
        print_json({"spans": exporter.count})
    else:
        click.echo(f"{exporter.count} spans exported")


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError("--header is NAME=VALUE")
    return name, value
