"""`qmd check`: examine a data folder without a running daemon, and save its messages."""

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
    from storage.vault import Vault


@click.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--repair",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Save all readable messages to FILE, and the intact ones to a new folder.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Let the next start continue without the missing data, if it refuses to start (QM-3008).",
)
@click.option(
    "--key",
    "key_files",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file of a storage key; by default those of the configuration.",
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
    key_files: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Examine a data folder while no daemon runs on it.

    FOLDER is the folder with queues.db; the default is that of the configuration. Nothing in it is
    changed.  Exit code 1: it is damaged, or acknowledged data is missing; the lines describe the
    damage.

    The messages of a damaged folder are divided into certain ones, damaged ones, and those in
    doubt, which may have been received or deleted before, because their rows were found where the
    rest of the database does not expect any.

    --repair writes every readable message to FILE: one per line, as `qmd peek --json` prints it,
    with its packet and its damage.  Certain messages are also written to a new folder beside the
    damaged one, FOLDER.repaired; messages in doubt are not.

    --accept-loss is for a folder with a database or log that was removed, truncated or replaced, if
    the files cannot be restored: their contents are then lost.  A remaining log is kept beside the
    database, as queues.db-wal.lost.1 and so on.
    """
    from storage.engine import missing
    from storage.errors import CannotStart
    from storage.rescue import check as examination
    from storage.vault import Vault, read_keys

    if accept_loss and repair is not None:
        raise Failure(
            ExitCode.USAGE, "run --repair first, then --accept-loss separately", "options_exclude"
        )

    if folder is None:
        folder = configuration.settings().queue_manager.data
        key_files = key_files or configuration.settings().storage.key_files
    folder = folder.absolute()
    try:
        keys = read_keys(key_files, folder)
        vault = Vault(keys) if keys else None
        with examination.locked(folder):
            lost = missing.find(folder)
            if accept_loss:
                _accept(folder, lost, as_json=as_json)
                return
            if lost is not None and not missing.has_database(folder):
                raise Failure(ExitCode.FAILED, f"{lost}; {missing.REMEDY}", "data_missing")
            report = examination.check(folder, vault)
            if lost is not None:
                report = report._replace(findings=[lost, *report.findings])
            _print_report(report, as_json=as_json)
            if repair is not None:
                _repair(folder, repair, vault, as_json=as_json)
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
    """Accept the loss.  Raises OSError."""
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
            click.echo(f"The original log was kept as {kept}.")
        click.echo("The next start continues with the remaining data.")


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
        click.echo(f"The folder is in order; {_count(whole)} in all.")
        return
    for finding in report.findings:
        click.secho(printable(finding), fg="red")
    are = "is" if whole == 1 else "are"
    click.echo(
        f"The folder is damaged: {_count(whole)} {are} certain, {report.damaged} damaged, "
        f"{report.doubted} in doubt, which may have been removed before."
    )


def _repair(folder: Path, file: Path, vault: Vault | None, *, as_json: bool) -> None:
    import os
    import time

    from qmd.cli.progress import Progress
    from storage.errors import RescueFailed
    from storage.rescue.repair import Rescue

    if file.exists():
        raise Failure(
            ExitCode.USAGE, f"{file} already exists; it is never overwritten", "file_exists"
        )
    rescue = Rescue(folder, vault)
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
    """Open a file that only this user can read."""
    import os

    return os.open(path, flags, 0o600)


def _write(out: IO[str], message: KeptMessage) -> None:
    """Write a message as one line, complete in any state."""
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
    # Only the bytes of a damaged message may be readable.
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
    click.echo(f"{_count(rescue.saved)} are in {rescue.fresh}; {file} contains them too.")
    if rescue.set_aside:
        click.echo(
            f"{_count(rescue.set_aside)} are in {file} only, with the reason: "
            f"{rescue.set_aside - rescue.doubted} damaged, {rescue.doubted} that may have been "
            "removed before."
        )
    click.echo(
        f"To continue with it: mv {folder} {folder}.damaged && mv {rescue.fresh} {folder}", err=True
    )


def _count(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"
