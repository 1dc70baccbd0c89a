"""`qmd storage`: the encryption of packets on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qmd.cli.configuration import Configuration, pass_configuration
from qmd.cli.parameters import json_option
from qmd.cli.program import ExitCode, Failure, Group

if TYPE_CHECKING:
    from storage.vault import StorageKey


@click.group(cls=Group)
def storage() -> None:
    """Encrypt the packets on the disk, with a key outside of the data folder."""


@storage.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def key(file: Path) -> None:
    """Make a new key in FILE, which must not exist.

    The key is random.  Keep a copy of it in a safe place: without it, encrypted messages are lost.
    """
    import os
    import secrets

    from storage.vault import KEY_BYTES, StorageKey

    made = StorageKey(secrets.token_bytes(KEY_BYTES))
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError as error:
        raise Failure(ExitCode.FAILED, f"{file} exists already", "file_exists") from error
    except OSError as error:
        raise Failure(
            ExitCode.FAILED, f"{file} cannot be written: {error.strerror}", "storage_key_unusable"
        ) from error
    with os.fdopen(descriptor, "w", encoding="ascii") as out:
        out.write(made.secret.hex() + "\n")
        out.flush()
        os.fsync(out.fileno())
    click.echo(f"key {made.id.hex()} is in {file}; name it in key_files in [storage]", err=True)


@storage.command()
@json_option
@pass_configuration
def status(configuration: Configuration, as_json: bool) -> None:
    """Show the configured keys, and those that the data folder needs.

    No daemon may run on the folder.
    """
    from qmd.cli.output import print_rows
    from storage.errors import CannotStart
    from storage.rescue.rewrite import examine

    keys = configured_keys(configuration)
    try:
        use = examine(configuration.settings().queue_manager.data)
    except CannotStart as error:
        raise Failure(ExitCode.FAILED, str(error), error.code) from error
    ids = [each.id for each in keys]
    known = list(dict.fromkeys([*ids, *(each.key_id for each in use.recorded)]))
    rows = [
        {
            "key": each.hex(),
            "use": "new packets" if ids[:1] == [each] else "reading" if each in ids else "missing",
            "packets": use.rows.get(each, 0),
        }
        for each in known
    ]
    rows.append(
        {"key": "none", "use": "" if ids else "new packets", "packets": use.rows.get(b"", 0)}
    )
    columns = [("KEY", "key"), ("USE", "use"), ("PACKETS", "packets")]
    print_rows(rows, columns, as_json=as_json, none="")


@storage.command()
@click.option("--plain", is_flag=True, help="Decrypt all packets, and do not encrypt them again.")
@pass_configuration
def rewrite(configuration: Configuration, plain: bool) -> None:
    """Rewrite all packets with the first configured key.

    Use it after encryption was switched on, or after a new key was put first: existing packets are
    otherwise rewritten only when they move.  No daemon may run on the folder.  A command that was
    interrupted can be repeated.  The disk needs room for a second copy of queues.db.
    """
    import asyncio
    import os
    import time

    from qmd.cli.progress import Progress
    from storage.errors import StorageError
    from storage.options import StorageOptions
    from storage.rescue.rewrite import rewrite as rewrite_all

    folder = configuration.settings().queue_manager.data
    keys = configured_keys(configuration)
    if not keys:
        raise Failure(
            ExitCode.FAILED, "no key is configured: key_files in [storage]", "storage_key_missing"
        )
    try:
        owner = folder.stat().st_uid
    except OSError as error:
        raise Failure(ExitCode.FAILED, f"{folder}: {error.strerror}", "storage_unusable") from error
    if owner != os.geteuid():
        raise Failure(
            ExitCode.FAILED,
            f"{folder} belongs to another user: run this command as user {owner}",
            "storage_unusable",
        )
    progress = Progress("rewriting", None, enabled=True)
    options = StorageOptions(
        keys=keys, encrypts=not plain, disk_reserve_bytes=0, disk_watermark_bytes=0
    )
    try:
        done = asyncio.run(rewrite_all(folder, options, int(time.time() * 1000), progress.advance))
    except StorageError as error:
        raise Failure(ExitCode.FAILED, str(error), error.code) from error
    finally:
        progress.finish()
    if done.unreadable:
        raise Failure(
            ExitCode.FAILED,
            f"{done.unreadable} packets are damaged and stay as they are: see `qmd check`",
            "storage_unusable",
        )
    way = "not encrypted" if plain else f"encrypted with key {keys[0].id.hex()}"
    click.echo(f"all packets are {way}")


def configured_keys(configuration: Configuration) -> tuple[StorageKey, ...]:
    """Return the keys of the configuration.  Raises Failure."""
    from storage.errors import KeyFileError
    from storage.vault import read_keys

    settings = configuration.settings()
    try:
        return read_keys(settings.storage.key_files, settings.queue_manager.data)
    except KeyFileError as error:
        raise Failure(ExitCode.CONFIGURATION, str(error), error.code) from error
