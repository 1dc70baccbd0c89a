"""`qmd bridge`: bridges between queues and other brokers."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.output import print_json, print_rows, printable
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure, Group

if TYPE_CHECKING:
    from qmd.bridge.definition import Definition

_EXTRAS = {"proton": "amqp", "cproton": "amqp", "nats": "nats", "confluent_kafka": "kafka"}

_file_option = click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("/etc/qmd/bridges.toml"),
    show_default=True,
    help="The definitions of the bridges.",
)
_state_option = click.option(
    "--state",
    "state_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file in which `run` keeps the state of its bridges, and `status` finds it.",
)
STATE_AGE_MAX_S = 30.0
_STATE = Path("/run/qmd-bridge/state.json")  # of the service


@click.group(cls=Group)
def bridge() -> None:
    """Join queues with RabbitMQ and other brokers of AMQP 1.0, NATS, Kafka or S3.

    A bridge is a client of the daemon, in a process of its own.  docs/bridge.md
    """


def _definitions(file: Path, names: tuple[str, ...]) -> dict[str, Definition]:
    from qmd.bridge.definition import BadDefinition, read_definitions

    try:
        found = read_definitions(file)
    except BadDefinition as error:
        raise Failure(ExitCode.CONFIGURATION, str(error), "bad_bridge") from error
    except OSError as error:
        raise Failure(
            ExitCode.CONFIGURATION, f"{file} cannot be read: {error}", "bad_bridge"
        ) from error
    for name in names:
        if name not in found:
            raise Failure(ExitCode.NOT_FOUND, f"{file} has no bridge {name!r}", "bad_bridge")
    return {name: given for name, given in found.items() if not names or name in names}


@bridge.command()
@click.argument("names", nargs=-1)
@_file_option
@json_option
@click.pass_context
@pass_configuration
def check(
    configuration: Configuration,
    context: click.Context,
    names: tuple[str, ...],
    file: Path,
    as_json: bool,
) -> None:
    """Check bridges: both ends, the queue, and the guarantee that holds.

    Queues for positions are created; no message is moved.  Exit code 1: one of them cannot run.
    """
    import asyncio

    rows = [
        asyncio.run(_checked(configuration, name, given))
        for name, given in _definitions(file, names).items()
    ]
    for row in rows:
        if as_json:
            print_json(row)
            continue
        click.secho(f"{row['name']}: {row['direction']}, {printable(row['remote'])}", bold=True)
        click.echo(f"  {'ok' if row['ok'] else 'failed'}: {printable(row['text'])}")
    if not all(row["ok"] for row in rows):
        context.exit(1)


async def _checked(configuration: Configuration, name: str, given: Definition) -> dict[str, Any]:
    from qmd.bridge.ends import DoesNotFit, Unreachable
    from qmd.bridge.process import Bridge
    from qmd.client.errors import ClientError

    facts = {"name": name, "direction": given.direction, "remote": given.remote}
    try:
        async with configuration.connect() as qm:
            loop = await Bridge(name, given, configuration.connect).loop_of(qm)
            try:
                await loop.open(qm)
            finally:
                await loop.close()
    except ImportError as error:
        return {**facts, "ok": False, "text": _missing(error)}
    except (Unreachable, DoesNotFit, ClientError, OSError) as error:
        return {**facts, "ok": False, "text": str(error)}
    return {**facts, "ok": True, "text": loop.guarantee}


def _missing(error: ImportError) -> str:
    extra = _EXTRAS.get((error.name or "").partition(".")[0], "s3")
    package = "qmd-amqp" if extra == "amqp" else "qmd-bridge"
    return (
        f"its library is not installed: pip install 'qmd-msmq[bridge-{extra}]'; with the packages"
        f" of Debian, apt install {package}"
    )


@bridge.command()
@click.argument("names", nargs=-1)
@_file_option
@_state_option
@pass_configuration
def run(
    configuration: Configuration, names: tuple[str, ...], file: Path, state_file: Path | None
) -> None:
    """Run bridges until SIGTERM or Ctrl-C; without NAMES, all of the file.

    Everything that fails is tried again.  Run each bridge once.
    """
    from qmd.bridge.kinds import sink_of, source_of
    from qmd.bridge.process import run_bridges
    from qmd.config.settings.queue_manager import LogSettings
    from qmd.runtime.log import forward_standard_logging, set_up_logging
    from qmd.runtime.systemd import ServiceManager

    definitions = _definitions(file, names)
    # A bridge can run beside another queue manager than that of this computer.
    log = LogSettings() if configuration.host else configuration.settings().log
    for name, given in definitions.items():
        try:
            _ = source_of(given, name) if given.direction == "in" else sink_of(given, name, "")
        except ImportError as error:
            raise Failure(
                ExitCode.CONFIGURATION,
                f"the bridge {name}: {_missing(error)}",
                "door_package_missing",
            ) from error
    set_up_logging(log.level, log.format)
    forward_standard_logging()
    manager = ServiceManager(os.environ)
    import asyncio

    asyncio.run(run_bridges(definitions, configuration.connect, state_file, manager.notify))


@bridge.command()
@click.argument("names", nargs=-1)
@_file_option
@_state_option
@json_option
@pass_configuration
def status(
    configuration: Configuration,
    names: tuple[str, ...],
    file: Path,
    state_file: Path | None,
    as_json: bool,
) -> None:
    """Show bridges: what waits for them, their positions, and the state of the running ones."""
    definitions = _definitions(file, names)
    state_file = state_file or _STATE
    running = _running(state_file)
    if running is None:
        click.echo(
            f"note: {state_file} cannot be read, so no bridge is known to run; give `run` and"
            " `status` the same --state FILE",
            err=True,
        )
    import asyncio

    rows = asyncio.run(_statuses(configuration, definitions, running))
    columns = [
        *(("BRIDGE", "name"), ("KIND", "kind"), ("WAY", "direction"), ("QUEUE", "queue")),
        *(("STATE", "state"), ("MESSAGES", "messages"), ("REFUSED", "refused")),
        *(("WAITING", "waiting"), ("ERROR", "error")),
    ]
    print_rows(rows, columns, as_json=as_json, none="the file has no bridges")


def _running(state_file: Path) -> dict[str, dict[str, Any]] | None:
    """Return the rows of running bridges, by name; None if the file cannot be read.

    A dead process has left a state that is old.
    """
    try:
        text = state_file.read_text(encoding="utf-8")
    except OSError:
        return None
    try:
        state = json.loads(text)
        if time.time() - state["at"] > STATE_AGE_MAX_S:
            return {}
        return {row["name"]: row for row in state["bridges"]}
    except (ValueError, KeyError, TypeError):
        return {}


async def _statuses(
    configuration: Configuration,
    definitions: dict[str, Definition],
    running: dict[str, dict[str, Any]] | None,
) -> list[dict[str, Any]]:
    from qmd.bridge.inward import known_position
    from qmd.bridge.process import Bridge
    from qmd.client.errors import QueueManagerError

    rows: list[dict[str, Any]] = []
    async with configuration.connect() as qm:
        for name, given in definitions.items():
            row = Bridge(name, given, configuration.connect).facts()
            state = "unknown" if running is None else "not running"
            row |= {"state": state, "waiting": None, "position": None}
            row |= (running or {}).get(name, {})
            try:
                if given.direction == "in":
                    row |= await known_position(qm, name)
                else:
                    row["waiting"] = (await qm.show_queue(given.queue))["messages"]
            except QueueManagerError as error:
                row["error"] = row["error"] or str(error)
            rows.append(row)
    return rows
