"""`qmd backup` and `qmd restore`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure

if TYPE_CHECKING:
    from qmd.config.file import Settings
    from storage.backup.making import Made
    from storage.backup.restoration import Backup, Restored
    from storage.vault import StorageKey

#: Settings that are paths, and are not files to be saved: the data folder and the socket are no
#: such files, and a key beside the data that it encrypts protects nothing.
_NOT_SAVED = frozenset({("queue_manager", "data"), ("control", "socket"), ("storage", "key_files")})

#: The daemon and its applications go first.
NICENESS = 15

key_option = click.option(
    "--key",
    "key_files",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file of a key, from `qmd storage key`; repeat it for backups with several keys.",
)


@click.command()
@click.argument("target", metavar="FILE|DIR", type=click.Path(path_type=Path))
@key_option
@click.option("--full", is_flag=True, help="Do not refer to earlier backups of the folder.")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="N",
    help="Afterwards remove all but the newest N backups of the folder, and those they need.",
)
@click.option(
    "--no-configuration", is_flag=True, help="Leave out qmd.toml and the files that it names."
)
@json_option
@pass_configuration
def backup(
    configuration: Configuration,
    target: Path,
    key_files: tuple[Path, ...],
    full: bool,
    keep: int | None,
    no_configuration: bool,
    as_json: bool,
) -> None:
    """Back up the data folder, while the daemon runs or not.

    The backup is the state of one commit: messages, sequences, queues, rights and the history; the
    identity; and the configuration with the files that it names, but not the keys of
    `[storage] key_files`.  Express messages are in memory only, and in no backup.

    Into an existing folder DIR each backup writes a file with the pages that have changed since the
    one before.  A backup into a new FILE is complete by itself.

    With --key the backup is encrypted.  Without it, it contains the private key of the queue
    manager and bodies of messages: protect it as the data folder.
    """
    import os
    import time
    from importlib.metadata import version

    from qmd.cli.progress import Progress
    from storage.backup import making
    from storage.errors import BackupFailed

    settings = configuration.settings()
    folder = settings.queue_manager.data
    keys = _read_keys(key_files, folder)
    pieces = _size(folder) // (128 * 1024)
    progress = Progress("backing up", pieces, enabled=not as_json)
    request = making.Request(
        folder=folder,
        target=target.absolute(),
        name=_name(settings),
        release=version("qmd-msmq"),
        now_ms=int(time.time() * 1000),
        key=keys[0] if keys else None,
        keys=keys,
        is_full=full,
        configuration=() if no_configuration else _files(configuration.path, settings),
        free_bytes_min=settings.quotas.disk_reserve_bytes,
    )
    os.nice(NICENESS)
    try:
        made = making.make(request, progress.advance)
        removed = making.prune(request.target, keep, keys) if keep and made.number else []
    except BackupFailed as error:
        raise Failure(ExitCode.FAILED, str(error), error.code) from error
    finally:
        progress.finish()
    _print_made(made, removed, is_encrypted=bool(keys), as_json=as_json)


def _print_made(made: Made, removed: list[Path], *, is_encrypted: bool, as_json: bool) -> None:
    from qmd.cli.output import counted, print_facts

    for remark in made.left_out:
        click.echo(f"qmd: {remark}", err=True)
    if as_json:
        facts = {
            "file": str(made.path),
            "number": made.number,
            "bytes": made.bytes,
            "database_bytes": made.database_bytes,
            "encrypted": is_encrypted,
            "daemon_ran": made.was_served,
            "removed": list(map(str, removed)),
        }
        print_facts(facts, as_json=True)
        return
    share = f", {made.new_pieces} of {counted(made.pieces, 'piece')} new" if made.number else ""
    click.echo(f"{made.path}: {made.bytes} bytes{share}")
    for each in removed:
        click.echo(f"removed {each}")


@click.command()
@click.argument("source", metavar="FILE|DIR", type=click.Path(path_type=Path, exists=True))
@key_option
@click.option("--list", "list_only", is_flag=True, help="List the backups, and restore nothing.")
@click.option("--verify", is_flag=True, help="Read and check the whole backup; restore nothing.")
@click.option("--number", type=int, metavar="N", help="Which backup.  [default: the newest]")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The data folder to restore into.  [default: that of the configuration]",
)
@click.option(
    "--replace", is_flag=True, help="Replace a present data folder; it is kept beside the new one."
)
@click.option(
    "--files",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write qmd.toml and the files that it names below this folder; existing files stay.",
)
@json_option
@pass_configuration
def restore(
    configuration: Configuration,
    source: Path,
    key_files: tuple[Path, ...],
    list_only: bool,
    verify: bool,
    number: int | None,
    folder: Path | None,
    replace: bool,
    files: Path | None,
    as_json: bool,
) -> None:
    """Restore a data folder from a backup, while no daemon runs on it.

    The backup is verified before anything is replaced, and a folder with data is replaced only with
    --replace.  The restored queue manager continues as a later run of the original one: other
    computers accept its sessions, and refuse those of the original if it still runs somewhere.
    docs/backup.md says what happens to sequences and messages at both ends.
    """
    import time

    from qmd.cli.progress import Progress
    from storage.backup import restoration
    from storage.errors import BackupFailed

    if folder is None and not (list_only or verify):
        folder = configuration.settings().queue_manager.data
    source = source.absolute()
    keys = _read_keys(key_files, folder or source)
    progress: Progress | None = None
    try:
        if list_only:
            _print_backups(restoration.backups(source, keys), as_json=as_json)
            return
        chosen = restoration.choose(source, number, keys)
        pieces = len(chosen.contents.piece_list())
        progress = Progress("restoring", pieces, enabled=not as_json)
        if verify:
            restoration.verify(chosen, keys, progress.advance)
            _print_verified(chosen, as_json=as_json)
            return
        assert folder is not None
        done = restoration.restore(
            chosen,
            folder.absolute(),
            keys,
            now_ms=int(time.time() * 1000),
            replaces=replace,
            files=None if files is None else files.absolute(),
            progress=progress.advance,
        )
    except BackupFailed as error:
        raise Failure(ExitCode.FAILED, str(error), error.code) from error
    finally:
        if progress is not None:
            progress.finish()
    _print_restored(done, as_json=as_json)


def _print_restored(done: Restored, *, as_json: bool) -> None:
    from qmd.cli.output import print_facts

    if as_json:
        facts = {
            "folder": str(done.folder),
            "file": str(done.backup.path),
            "made_at_ms": done.backup.contents.made_at_ms,
            "former_folder": None if done.aside is None else str(done.aside),
            "files": list(map(str, done.written)),
            "files_kept": list(map(str, done.kept)),
        }
        print_facts(facts, as_json=True)
        return
    click.echo(f"restored {done.folder} as of {_when(done.backup)} from {done.backup.path}")
    if done.aside is not None:
        click.echo(f"the former folder is {done.aside}")
    for path in done.written:
        click.echo(f"wrote {path}")
    for path in done.kept:
        click.echo(f"{path} exists and was kept")
    click.echo(
        "Make sure that the original does not run anywhere. Then start the daemon, and look at"
        " `qmd outgoing list`: a sequence in doubt needs your decision.",
        err=True,
    )


def _print_verified(backup: Backup, *, as_json: bool) -> None:
    from qmd.cli.output import print_facts

    facts = {"file": str(backup.path), "made_at_ms": backup.contents.made_at_ms, "intact": True}
    if as_json:
        print_facts(facts, as_json=True)
    else:
        click.echo(f"{backup.path} of {_when(backup)} is intact")


def _print_backups(found: list[Backup], *, as_json: bool) -> None:
    from qmd.cli.output import print_rows

    rows = [
        {
            "number": each.number,
            "made_at": _when(each),
            "queue_manager": each.contents.name,
            "schema": each.contents.schema,
            "bytes": each.bytes,
            "needs": len(each.contents.sources) - 1,
            "encrypted": each.is_encrypted,
            "file": str(each.path),
        }
        for each in found
    ]
    columns = [
        ("NUMBER", "number"),
        ("MADE", "made_at"),
        ("OF", "queue_manager"),
        ("SCHEMA", "schema"),
        ("BYTES", "bytes"),
        ("NEEDS OTHERS", "needs"),
        ("ENCRYPTED", "encrypted"),
        ("FILE", "file"),
    ]
    print_rows(rows, columns, as_json=as_json, none="no backups")


def _when(backup: Backup) -> str:
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(backup.contents.made_at_ms / 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _read_keys(paths: tuple[Path, ...], folder: Path) -> tuple[StorageKey, ...]:
    from storage.errors import KeyFileError
    from storage.vault import read_keys

    try:
        return read_keys(paths, folder)
    except KeyFileError as error:
        raise Failure(ExitCode.FAILED, str(error), error.code) from error


def _files(config: Path, settings: Settings) -> tuple[Path, ...]:
    """Return the configuration and the files that it names, without credentials of systemd."""
    import os

    from qmd.config.settings import SECTIONS, settings_of
    from qmd.config.value_types import CREDENTIALS_FOLDER

    secret = Path(os.environ.get("CREDENTIALS_DIRECTORY") or CREDENTIALS_FOLDER)
    found = [config.absolute()]
    for section in SECTIONS:
        for setting in settings_of(section).values():
            if (section, setting.key) in _NOT_SAVED:
                continue
            value = getattr(getattr(settings, section), setting.attribute)
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, Path) and each.is_file() and not each.is_relative_to(secret):
                    found.append(each)
    data = settings.queue_manager.data
    return tuple(dict.fromkeys(each for each in found if not each.is_relative_to(data)))


def _name(settings: Settings) -> str:
    import socket

    return settings.queue_manager.name or socket.gethostname().partition(".")[0]


def _size(folder: Path) -> int:
    try:
        return (folder / "queues.db").stat().st_size
    except OSError:
        return 0
