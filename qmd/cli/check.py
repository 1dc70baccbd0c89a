"""`qmd check`: examine a data folder that no daemon has, and save what can be saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure

if TYPE_CHECKING:
    from storage.rescue.check import Report
    from storage.rescue.repair import Rescue
    from storage.rescue.survey import KeptMessage


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--repair",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Save all messages that can be read into FILE, and the whole ones into a fresh folder.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Let the next start go on without what is missing, where it refuses to (QM-3008).",
)
@json_option
@pass_configuration
@click.pass_context
def check(
    context: click.Context,
    configuration: Configuration,
    folder: Path | None,
    repair: Path | None,
    accept_loss: bool,
    as_json: bool,
) -> None:
    """Examine a data folder while no daemon runs on it.

    FOLDER is the one with queues.db in it; without it, that of the configuration.
    Nothing in it is changed.  Exit code 1: it is damaged, or something that was
    acknowledged is missing, and the lines say how.

    Of a damaged folder the messages are told apart: those that are certain; those that are
    damaged; and those in doubt, which may have been received or deleted before, because
    their rows were found where the rest of the database does not expect any.

    --repair writes every message that can be read to FILE: one a line, as `qmd peek --json`
    prints it, with its packet and what is wrong with it.  Those that are certain also go to
    a fresh folder beside the damaged one, FOLDER.repaired; those in doubt never do.

    --accept-loss is for a folder whose database or log was removed, cut off or replaced,
    when the files cannot be brought back: what they held is lost then.  A log that is
    left is kept beside the database, as queues.db-wal.lost.1 and so on.
    """
    from storage.engine import missing
    from storage.errors import CannotStart
    from storage.rescue import check as examination

    if accept_loss and repair is not None:
        raise Failure(
            ExitCode.USAGE, "--repair comes first, then --accept-loss by itself", "options_exclude"
        )

    if folder is None:
        folder = configuration.settings().queue_manager.data
    folder = folder.absolute()
    try:
        with examination.locked(folder):
            lost = missing.find(folder)
            if accept_loss:
                _accept(folder, lost, as_json=as_json)
                return
            if lost is not None and not missing.has_database(folder):
                raise Failure(ExitCode.FAILED, f"{lost}; {missing.REMEDY}", "data_missing")
            report = examination.check(folder)
            if lost is not None:
                report = report._replace(findings=[lost, *report.findings])
            _print_report(report, as_json=as_json)
            if repair is not None:
                _repair(folder, repair, as_json=as_json)
    except CannotStart as error:
        raise Failure(ExitCode.FAILED, str(error), error.code) from error
    except OSError as error:
        raise Failure(
            ExitCode.FAILED, f"{folder} cannot be examined: {error}", "storage_unusable"
        ) from error
    if lost is not None and not as_json:
        click.echo(missing.REMEDY, err=True)
    if report.findings:
        context.exit(ExitCode.FAILED)


def _accept(folder: Path, lost: str | None, *, as_json: bool) -> None:
    """Raises OSError."""
    from storage.engine import missing

    kept = missing.accept(folder) if lost is not None else None
    if as_json:
        log = None if kept is None else str(kept)
        click.echo(json.dumps({"folder": str(folder), "missing": lost, "log": log}))
    elif lost is None:
        click.echo("Nothing is missing, and nothing was changed.")
    else:
        click.echo(f"Accepted as lost: {lost}.")
        if kept is not None:
            click.echo(f"The log as it was found is {kept}.")
        click.echo("The next start goes on with what is there.")


def _print_report(report: Report, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(report._asdict() | {"folder": str(report.folder)}))
        return
    from qmd.cli.output import printable

    whole = sum(report.messages.values())
    click.echo(f"{report.folder}: schema {report.schema}, {report.pages} pages")
    for queue, count in report.messages.items():
        click.echo(f"  {printable(queue)}: {_count(count)}")
    if not report.findings:
        click.echo(f"It is in order; {_count(whole)} in all.")
        return
    for finding in report.findings:
        click.secho(printable(finding), fg="red")
    are = "is" if whole == 1 else "are"
    click.echo(
        f"It is damaged: {_count(whole)} {are} certain, {report.damaged} damaged, {report.doubted}"
        " in doubt, which may have been removed before."
    )


def _repair(folder: Path, file: Path, *, as_json: bool) -> None:
    import os
    import time

    from qmd.cli.progress import Progress
    from storage.errors import RescueFailed
    from storage.rescue.repair import Rescue

    if file.exists():
        raise Failure(
            ExitCode.USAGE, f"{file} exists already; it is never overwritten", "file_exists"
        )
    rescue = Rescue(folder)
    progress = Progress("saving", None, enabled=True)
    try:
        with open(file, "x", encoding="utf-8", opener=_private) as out:
            for message in rescue.run(now_s=int(time.time()), new_id=os.urandom(16)):
                _write(out, message)
                progress.advance()
            out.flush()
            os.fsync(out.fileno())
    except (OSError, RescueFailed) as error:
        file.unlink(missing_ok=True)
        raise Failure(
            ExitCode.FAILED, f"nothing was repaired: {error}", "nothing_repaired"
        ) from error
    finally:
        progress.finish()
    _print_rescue(rescue, folder, file, as_json=as_json)


def _private(path: str, flags: int) -> int:
    """Nobody else may read messages."""
    import os

    return os.open(path, flags, 0o600)


def _write(out: IO[str], message: KeptMessage) -> None:
    """One line; nothing of the message is lost in it, whatever state it is in."""
    import base64
    import contextlib

    from protocol.errors import ProtocolError
    from qmd.client.message import Message
    from qmd.control_protocol.messages import StoredMessage

    line: dict[str, Any] = {
        "place": "queue" if message.table == "message" else message.table,
        "queue": message.queue,
        "lookup_id": message.lookup_id,
        "certain": message.problem is None,
        "problem": message.problem,
        "packet_base64": base64.b64encode(message.packet).decode(),
    }
    stored = StoredMessage(message.lookup_id, message.arrived_at_ms, message.packet, message.reason)
    # Of a damaged one there may be no more to be read than its bytes.
    with contextlib.suppress(ProtocolError, ValueError, OverflowError, OSError):
        line |= Message(stored).to_json()
    out.write(json.dumps(line) + "\n")


def _print_rescue(rescue: Rescue, folder: Path, file: Path, *, as_json: bool) -> None:
    if as_json:
        click.echo(
            json.dumps(
                {
                    "file": str(file),
                    "fresh_folder": str(rescue.fresh),
                    "saved": rescue.saved,
                    "set_aside": rescue.set_aside,
                    "doubted": rescue.doubted,
                    "losses": rescue.losses,
                }
            )
        )
        return
    for loss in rescue.losses:
        click.secho(loss, fg="red")
    click.echo(f"{_count(rescue.saved)} are in {rescue.fresh}; {file} has them too.")
    if rescue.set_aside:
        click.echo(
            f"{_count(rescue.set_aside)} are in {file} only, which says why:"
            f" {rescue.set_aside - rescue.doubted} damaged, {rescue.doubted} that may have been"
            " removed before."
        )
    click.echo(
        f"To go on with it: mv {folder} {folder}.damaged && mv {rescue.fresh} {folder}", err=True
    )


def _count(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"
