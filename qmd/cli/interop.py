"""`qmd interop`: check other queue managers, and captures, against the specification."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qmd.cli.output import print_json, printable
from qmd.cli.parameters import confirm, json_option, yes_option
from qmd.cli.program import ExitCode, Failure, Group

if TYPE_CHECKING:
    from qmd.interop.conversation import Seen
    from qmd.interop.probe import Probe
    from qmd.interop.probe_results import Outcome
    from qmd.interop.reading import Reading, Session

PORT = 1801
KINDS = (
    *("connection request", "connection response", "connection parameters", "session ack"),
    *("message", "order ack", "final ack", "acknowledgment", "report", "broken"),
)


@click.group(cls=Group)
def interop() -> None:
    """Check conversations between queue managers against the specification.

    Needs no daemon.  See docs/interop.md.
    """


@interop.command()
@click.argument("file", type=click.File("rb"))
@click.option("--port", "ports", type=int, multiple=True, help="Also sessions at this port.")
@click.option("--session", "sessions", type=int, multiple=True, help="Only this session.")
@click.option("--host", default="", help="Only sessions with this address or port.")
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only this kind.")
@click.option("--message", default="", metavar="ID", help="Follow one message, by its id.")
@click.option("--violations", is_flag=True, help="Only packets that break a rule.")
@click.option("--fields", is_flag=True, help="Print every field of each packet.")
@click.option("--summary", is_flag=True, help="Print the sessions only.")
@click.option("--hex", "with_bytes", is_flag=True, help="With --json: the bytes of each packet.")
@click.option("--check", is_flag=True, help="Exit with 1 if a MUST is broken.")
@json_option
def read(
    file: Any,
    ports: tuple[int, ...],
    sessions: tuple[int, ...],
    host: str,
    kinds: tuple[str, ...],
    message: str,
    violations: bool,
    fields: bool,
    summary: bool,
    with_bytes: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Read the sessions of a capture FILE (pcap or pcapng).

    Prints each packet with its sender, kind and fields, and the sentences of the specification that
    it breaks; then the sessions.  With --json, one object for each packet and session.
    """
    from qmd.interop.capture import BadCapture
    from qmd.interop.reading import PORTS, Filter, Reading, packet_json, session_json

    try:
        reading = Reading(file, PORTS | frozenset(ports))
    except (BadCapture, OSError) as fault:
        raise Failure(ExitCode.FAILED, f"{file.name}: {fault}", "bad_capture") from fault
    wanted = Filter(frozenset(sessions), frozenset(kinds), host, message.lower(), violations)
    broken = 0
    for session, seen in reading.packets():
        broken += any(each.verb == "MUST" for each in seen.violations)
        if summary or not wanted.takes(session, seen):
            continue
        if as_json:
            print_json(packet_json(session.number, seen, with_bytes=with_bytes))
        else:
            _print_packet(session, seen, with_fields=fields)
    if as_json:
        for session in reading.sessions:
            print_json(session_json(session))
        print_json(reading.summary())
    else:
        _print_sessions(reading)
    if check and broken:
        raise Failure(ExitCode.FAILED, f"{broken} packets break a rule", "probe_violations")


@interop.command()
@click.argument("host", metavar="HOST[:PORT]")
@click.option("--queue", default="private$\\qmd-interop", show_default=True, help="A plain queue.")
@click.option(
    "--transactional-queue",
    default="private$\\qmd-interop-tx",
    show_default=True,
    help="A transactional queue.",
)
@click.option("--well-formed", is_flag=True, help="Send no packets that break the protocol.")
@click.option("--timeout", type=float, default=15.0, show_default=True, help="Of a step, seconds.")
@click.option(
    "--listen",
    default="",
    metavar="ADDRESS[:PORT]",
    help="Accept connections of that host here; a port other than 1801 works with qmd only.",
)
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), help="Write it here.")
@yes_option
@json_option
def probe(
    host: str,
    queue: str,
    transactional_queue: str,
    well_formed: bool,
    timeout: float,
    listen: str,
    report: Path | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Hold a scripted conversation with the queue manager of HOST, and judge its answers.

    Prints what it will send, and asks first, or needs --yes.  Create both queues on that host
    before.  --report writes two files to attach to an issue: NAME and NAME.json, with every byte.
    Exits with 1 if a step fails or the peer breaks a MUST.
    """
    import uuid
    from importlib.metadata import version

    from qmd.interop import report as reports
    from qmd.interop.probe import Probe, Target, plan

    name, port = _address(host)
    here = _address(listen) if listen else ("", PORT)
    target = Target(name, port, queue, transactional_queue, timeout, *here)
    for line in plan(target, with_broken=not well_formed):
        click.echo(f"- {printable(line)}", err=True)
    if not yes:
        confirm(f"send this to {name}")
    run = Probe(target, uuid.uuid4().bytes_le, with_broken=not well_formed)
    started_at, release = time.time(), version("qmd-msmq")

    def progress(outcome: Outcome) -> None:
        if not as_json:
            click.echo(printable(reports.line_of(outcome)))

    try:
        run.run(progress)
    except OSError as error:
        text = f"{name}, port {port}: {error}"
        raise Failure(ExitCode.UNREACHABLE, text, "probe_unreachable") from error
    if report is not None:
        report.write_text(reports.text(run, release, started_at), encoding="utf-8")
        details = json.dumps(reports.as_json(run, release, started_at), indent=1)
        report.with_name(report.name + ".json").write_text(details, encoding="utf-8")
    if as_json:
        print_json(reports.as_json(run, release, started_at))
    else:
        _print_verdict(run, report)
    if run.failures:
        raise Failure(ExitCode.FAILED, f"{run.failures} rules are broken", "probe_violations")


def _address(text: str) -> tuple[str, int]:
    """Return host and port; the port is 1801 unless it is given."""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        port = port.lstrip(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        host, port = text, ""
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise click.BadParameter(f"{text!r} is not HOST or HOST:PORT")
    return host, int(port or PORT)


def _print_packet(session: Session, seen: Seen, *, with_fields: bool) -> None:
    from qmd.interop.report import packet_line, violation_lines

    click.echo(printable(packet_line(f"#{session.number}", seen)))
    if with_fields:
        for name, value in seen.fields:
            click.echo(printable(f"      {name} = {value}"))
    for line in violation_lines(seen):
        click.secho(printable(line), fg="red")


def _print_sessions(reading: Reading) -> None:
    from qmd.cli.output import print_table

    rows = [
        {
            "number": each.number,
            "initiator": each.conversation.initiator,
            "acceptor": each.conversation.acceptor,
            "packets": each.conversation.packets,
            "messages": "/".join(map(str, each.conversation.messages)),
            "unacknowledged": "/".join(map(str, each.conversation.unacknowledged)),
            "lost": each.conversation.lost_bytes,
            "violations": each.conversation.violations,
            "state": _state(each),
        }
        for each in reading.sessions
    ]
    columns = [
        *(("#", "number"), ("INITIATOR", "initiator"), ("ACCEPTOR", "acceptor")),
        *(("PACKETS", "packets"), ("MESSAGES", "messages"), ("UNACKNOWLEDGED", "unacknowledged")),
        *(("LOST BYTES", "lost"), ("VIOLATIONS", "violations"), ("STATE", "state")),
    ]
    if rows:
        print_table(rows, columns)
    figures = reading.summary()
    click.echo(
        f"{figures['frames']} frames, {figures['sessions']} sessions, {figures['packets']} packets,"
        f" {figures['violations']} violations, {figures['pings']} pings",
        err=True,
    )
    if figures["note"]:
        click.echo(f"the file was not read to its end: {figures['note']}", err=True)


def _state(session: Session) -> str:
    conversation, connection = session.conversation, session.connection
    if conversation.is_refused:
        return "refused"
    begun = "" if conversation.is_complete else "begun before, "
    if connection.is_reset:
        return begun + "reset"
    return begun + ("ended" if connection.is_ended else "open")


def _print_verdict(run: Probe, report: Path | None) -> None:
    from qmd.interop.report import packet_line, violation_lines

    for name, seen in run.violations:
        click.echo(printable(packet_line(name, seen)))
        for line in violation_lines(seen):
            click.secho(printable(line), fg="red")
    passed = sum(outcome.verdict.value == "passed" for outcome in run.outcomes)
    click.echo(f"{passed} of {len(run.outcomes)} steps passed")
    if report is not None:
        click.echo(f"wrote {printable(str(report))} and {printable(report.name)}.json")
