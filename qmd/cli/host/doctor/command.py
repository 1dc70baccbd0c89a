"""The command: it runs the checks, prints the findings, and exits with the worst of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.host.doctor.finding import Finding, Level, fault, note, warning
from qmd.cli.parameters import json_option

if TYPE_CHECKING:
    from qmd.cli.host.doctor.peer_checks import PeerCheck
    from qmd.config.file import Settings

#: Exit codes as monitoring programs expect them; a note is in order.
_EXIT = {Level.OK: 0, Level.NOTE: 0, Level.WARNING: 1, Level.FAULT: 2}
_COLOURS = {Level.OK: "green", Level.NOTE: None, Level.WARNING: "yellow", Level.FAULT: "red"}

_CORRECT = "Correct it, and try `qmd config check`."
_CONFIGURATION = {
    "config_missing": "Name the file with --config or QMD_CONFIG, or create one: qmd init FOLDER.",
    "config_unreadable": "Name the file of the daemon with --config or QMD_CONFIG, and run this"
    " command as a user who may read it.",
}
_NOT_OF_HOSTS = frozenset("/\\@=$ \t")  # of formats, addresses of the web, and queues


@click.command()
@click.argument("peer", required=False, metavar="[HOST[:PORT]]")
@click.option(
    "--queue",
    default="",
    help="With HOST: send the probe message to this private queue there, where it stays."
    "  [default: a queue that does not exist, so nothing stays]",
)
@click.option("--no-probe", is_flag=True, help="With HOST: send no message.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="How many seconds to wait for each answer.",
)
@click.option("--problems", is_flag=True, help="Print warnings and faults only.")
@json_option
@pass_configuration
@click.pass_context
def doctor(
    context: click.Context,
    configuration: Configuration,
    peer: str | None,
    queue: str,
    no_probe: bool,
    timeout: float,
    problems: bool,
    as_json: bool,
) -> None:
    """Find out what is wrong with this host, or with the way to another one.

    Without HOST it checks the configuration, the data folder, its disk and database, the ports, the
    control socket, the service, the clock, certificates, and the state of the daemon.  With HOST it
    checks the name, the network, the port, the handshake, TLS, the identity and the ping of the
    queue manager there, and sends a message of which the acknowledgment must come back.

    \b
    Exit codes: 0 in order, 1 warnings, 2 something is wrong.
    """
    worst = Level.OK
    for finding in findings(configuration, peer, queue, timeout, sends=not no_probe):
        worst = max(worst, finding.level)
        if not problems or finding.level >= Level.WARNING:
            _print(finding, as_json=as_json)
    if not as_json and worst < Level.WARNING:
        click.echo("Everything that was checked is in order.")
    context.exit(_EXIT[worst])


def findings(
    configuration: Configuration, peer: str | None, queue: str, timeout_s: float, *, sends: bool
) -> Iterator[Finding]:
    """Yield the results of all checks of this host, or of the way to `peer`."""
    from qmd.config.file import ConfigError

    try:
        settings = configuration.settings()
    except ConfigError as error:
        for each in (error, *error.others):
            yield fault("configuration", f"{each}.", _CONFIGURATION.get(each.code, _CORRECT))
        return
    if peer is None:
        yield from _of_this_host(configuration, settings)
    else:
        yield from _of_a_peer(configuration, settings, peer, queue, timeout_s, sends=sends)


def _of_this_host(configuration: Configuration, settings: Settings) -> Iterator[Finding]:
    from qmd.cli.host.doctor import (
        door_checks,
        file_checks,
        folder_checks,
        host_checks,
        open_file_checks,
        process_checks,
        start_checks,
    )

    yield Finding("configuration", Level.OK, f"{configuration.path} is valid.")
    closed = list(folder_checks.check_access(settings))
    if closed:
        yield from closed
        yield from _safely("name", host_checks.check_name(settings))
        if settings.control.socket.exists():
            yield from _of_the_daemon(configuration, settings)
        return
    is_served = _is_served(settings)
    checks: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
        host_checks.check_user,
        folder_checks.check_folder,
        folder_checks.check_disk,
        folder_checks.check_database,
        folder_checks.check_identity,
        folder_checks.check_storage_keys,
        host_checks.check_certificates,
        file_checks.check_authorities,
        file_checks.check_tokens,
        file_checks.check_directory_file,
        host_checks.check_clock,
        host_checks.check_name,
        start_checks.check_group,
    )
    for check in checks:
        yield from _safely(check.__name__.removeprefix("check_"), check(settings))
    if is_served:
        silent = list(_safely("lock", process_checks.check_holder(settings)))
        yield from silent
        if silent:
            return  # it would answer nothing
        yield from _safely("process", process_checks.check_resources(settings))
        yield from _safely("folder", open_file_checks.check_open_files(settings))
    else:
        lost = list(_safely("folder", open_file_checks.check_removed_folder(settings)))
        yield from lost
        if lost:
            return  # its ports and its socket are in use, and no other daemon can start
        yield from _safely("certificate", start_checks.check_tls_files(settings))
        yield from _safely("port", start_checks.check_ping_port(settings))
    yield from _safely("port", host_checks.check_ports(settings, is_served=is_served))
    yield from _safely("socket", host_checks.check_socket(settings, is_served=is_served))
    yield from host_checks.check_service(is_served=is_served)
    yield from _safely("door", door_checks.check_doors(settings, configuration.path))
    if is_served:
        yield from _of_the_daemon(configuration, settings)


def _of_the_daemon(configuration: Configuration, settings: Settings) -> list[Finding]:
    from qmd.cli.host.doctor.daemon_checks import check_daemon
    from qmd.client.errors import ClientError

    try:
        return configuration.ask(partial(check_daemon, settings=settings))
    except ClientError as error:
        return [fault("daemon", f"The daemon does not answer: {error}.", error.remedy or "")]


def _of_a_peer(
    configuration: Configuration,
    settings: Settings,
    peer: str,
    queue: str,
    timeout_s: float,
    *,
    sends: bool,
) -> Iterator[Finding]:
    from qmd.cli.host.doctor.peer_checks import PeerCheck

    host, port = _place(peer)
    check = PeerCheck(settings, host, port, timeout_s)
    yield from check.run()
    if check.met is None:
        return
    yield from _with_the_daemon(configuration, settings, check, queue, timeout_s, sends=sends)


def _with_the_daemon(
    configuration: Configuration,
    settings: Settings,
    check: PeerCheck,
    queue: str,
    timeout_s: float,
    *,
    sends: bool,
) -> list[Finding]:
    from qmd.cli.host.doctor.folder_checks import check_access
    from qmd.cli.host.doctor.probe import check_known, send_probe
    from qmd.client import QueueManager
    from qmd.client.errors import AccessDenied, ClientError

    assert check.met is not None
    met = check.met

    async def ask(qm: QueueManager) -> list[Finding]:
        found = await check_known(qm, check, met)
        if sends:
            found += await send_probe(qm, settings, check, queue, timeout_s)
        return found

    # A user who may not look into the folder may still use the socket.
    if not list(check_access(settings)) and not _is_served(settings):
        return [
            warning(
                "probe",
                "No daemon runs here, so no message was sent.",
                "Start the daemon, and repeat the command; `qmd doctor` checks this host.",
            )
        ]
    try:
        return configuration.ask(ask)
    except AccessDenied as error:
        text = f"This user may not see what is known of other hosts: {error}."
        return [note("daemon", text, "Run this command as root or as an administrator ([access]).")]
    except ClientError as error:
        return [fault("daemon", f"The daemon here does not answer: {error}.", error.remedy or "")]


def _is_served(settings: Settings) -> bool:
    """Return whether a daemon has the data folder."""
    from storage.errors import CannotStart, FolderInUse
    from storage.rescue.check import locked

    try:
        with locked(settings.queue_manager.data):
            return False
    except FolderInUse:
        return True
    except (CannotStart, OSError):
        return False


def _safely(name: str, found: Iterator[Finding]) -> Iterator[Finding]:
    """Yield what a check found; an error of the system that it does not expect is a finding."""
    try:
        yield from found
    except OSError as error:
        yield fault(name, f"The check of the {name} failed: {error}.", "Remove that cause.")


def _place(peer: str) -> tuple[str, int]:
    """Return host and port of HOST, HOST:PORT, ADDRESS or [ADDRESS]:PORT."""
    host, port = peer, ""
    if peer.startswith("["):
        host, bracket, port = peer[1:].partition("]")
        port = port.removeprefix(":") if bracket else "missing"
    elif peer.count(":") == 1:
        host, _, port = peer.partition(":")
    if not host or set(host) & _NOT_OF_HOSTS:
        raise click.UsageError(
            f"{peer!r} is not HOST or HOST:PORT: give the name or address of a computer, without a"
            " queue and without a protocol"
        )
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise click.UsageError(f"{peer!r} is not HOST or HOST:PORT")
    return host, int(port or 1801)


def _print(finding: Finding, *, as_json: bool) -> None:
    from qmd.cli.output import printable

    if as_json:
        click.echo(json.dumps(finding.to_json()))
        return
    level = click.style(f"{finding.level.name.lower():8}", fg=_COLOURS[finding.level])
    click.echo(f"{level}{finding.check:14}{printable(finding.text)}")
    if finding.remedy:
        click.echo(f"{'':22}{printable(finding.remedy)}")
