"""Checks of the data folder: its rights, its disk, its database, its keys."""

from __future__ import annotations

import errno
import os
import pwd
import stat
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from qmd.cli.host.doctor.finding import Finding, fault, note, ok, warning
from storage.engine import key_file, missing
from storage.engine.disk import Disk
from storage.engine.hindrance import explain
from storage.engine.missing import DATABASE, LOG
from storage.engine.mounts import file_system_in_memory, network_file_system
from storage.errors import CannotStart, FolderInUse, ForeignDatabase, KeyFileError, KeyMissing
from storage.rescue import upgrade
from storage.rescue.check import check as examine
from storage.rescue.check import locked
from storage.vault import Vault, read_keys

if TYPE_CHECKING:
    from qmd.config.file import Settings

FREE_INODES_MIN = 1000
# No daemon can start meanwhile: it must be over before a supervisor has tried again.
EXAMINED_BYTES_MAX = 20_000_000
SYNCS, SYNCED_BYTES, SYNC_SLOW_S = 5, 4096, 0.1
_WRITING_REMEDIES = {
    errno.EPERM: "It may be immutable: lsattr -d, chattr -i.",
    errno.EACCES: "Its rights allow it, so a policy may forbid it (SELinux, AppArmor): look for"
    " denials with `ausearch -m avc` or dmesg.",
    errno.EDQUOT: "The disk quota of this user is used up: raise it (quota -v), or free space.",
    errno.ENOSPC: "Free space on that disk, or receive messages.",
    errno.EROFS: "Mount the file system for writing.",
    errno.EFBIG: "A limit of file sizes is in force: ulimit -f, LimitFSIZE= in the unit.",
}


def check_access(settings: Settings) -> Iterator[Finding]:
    """Yield a warning if this user may not look into the data folder, which hides most facts."""
    folder = settings.queue_manager.data
    try:
        owner = user_name(folder.stat().st_uid)
        if not folder.is_dir() or os.access(folder, os.R_OK | os.X_OK):
            return
    except PermissionError:
        owner = "root"
    except OSError:
        return  # reported by another check
    yield warning(
        "user",
        f"User {user_name(os.geteuid())} may not look into the data folder {folder} of {owner}:"
        " neither its files nor whether a daemon runs can be checked.",
        f"Run this command as root or as the user of the daemon: sudo -u {owner} qmd doctor",
    )


def check_folder(settings: Settings) -> Iterator[Finding]:
    """Check that the folder exists, and that its owner alone may use it."""
    folder = settings.queue_manager.data
    try:
        found = folder.stat()
    except FileNotFoundError:
        if folder.is_symlink():
            yield fault(
                "folder",
                f"The data folder {folder} is a link to {folder.readlink()}, which does not exist.",
                "Mount the disk that has it, or correct the link.",
            )
            return
        yield note(
            "folder",
            f"The data folder {folder} does not exist yet; the first start creates it.",
            "If this queue manager has run before, the disk is not mounted or data in"
            " [queue_manager] names another place.",
        )
        return
    except OSError as error:
        yield fault(
            "folder",
            f"The data folder {folder} cannot be reached: {error.strerror}.",
            "Run this command as the user of the daemon or as root, or correct the rights of the"
            " folders above it.",
        )
        return
    if not stat.S_ISDIR(found.st_mode):
        yield fault(
            "folder", f"{folder} is not a folder.", "Correct data in the section [queue_manager]."
        )
        return
    if found.st_mode & 0o077:
        yield warning(
            "folder",
            f"Other users may read or write the data folder {folder} (mode"
            f" {stat.S_IMODE(found.st_mode):04o}): it has messages and a private key.",
            f"chmod 0700 {folder}",
        )
    elif os.geteuid() not in (0, found.st_uid) and not _is_usable(folder):
        yield fault(
            "folder",
            f"User {user_name(os.geteuid())} may not write to {folder}, which belongs to"
            f" {user_name(found.st_uid)}.",
            f"Run the daemon and this command as user {user_name(found.st_uid)}, or give the folder"
            f" to this user: chown -R.",
        )
        return
    else:
        yield ok("folder", f"{folder} belongs to {user_name(found.st_uid)}.")
    yield from _check_owners(folder, found.st_uid)
    yield from _check_writing(folder)
    yield from _check_files(folder)
    if not any(folder.iterdir()):
        yield warning(
            "folder",
            f"The data folder {folder} is empty: the next start makes a new queue manager there,"
            " with a new identity and without messages.",
            "If this queue manager has run before, mount the disk that has its files, or restore a"
            " backup (`qmd restore`). If it is new, start it.",
        )


def _is_usable(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def _check_writing(folder: Path) -> Iterator[Finding]:
    """Check that a small file can be written and synced, and how long a sync takes."""
    times = []
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            for _ in range(SYNCS):
                began = time.monotonic()
                file.write(bytes(SYNCED_BYTES))
                os.fsync(file.fileno())
                times.append(time.monotonic() - began)
    except OSError as error:
        yield fault(
            "folder",
            f"A file in {folder} cannot be written: {error.strerror}.",
            _WRITING_REMEDIES.get(error.errno or 0, "Look at the kernel's messages (dmesg)."),
        )
        return
    took_s = statistics.median(times)
    if took_s > SYNC_SLOW_S:
        yield warning(
            "disk",
            f"A sync of the disk of {folder} takes {1000 * took_s:.0f} ms: each commit of messages"
            " waits for one.",
            "Look which program uses the disk (iostat -x 1, iotop), or use a faster one.",
        )


def _check_files(folder: Path) -> Iterator[Finding]:
    """Check that the files of the database can be opened for writing."""
    for name in (DATABASE, LOG):
        try:
            os.close(os.open(folder / name, os.O_RDWR | os.O_CLOEXEC))
        except FileNotFoundError:
            continue
        except OSError as error:
            yield fault(
                "folder",
                f"{folder / name} cannot be written: {error.strerror}.",
                _WRITING_REMEDIES.get(error.errno or 0, "Look at the kernel's messages (dmesg).")
                if error.errno != errno.EACCES
                else f"chmod u+rw {folder / name}; it must belong to the user of the daemon.",
            )


def _check_owners(folder: Path, owner: int) -> Iterator[Finding]:
    """Check that all files of the folder belong to its owner."""
    try:
        foreign = [path for path in folder.iterdir() if path.lstat().st_uid != owner]
    except OSError:
        return  # reported by another check
    if foreign:
        yield fault(
            "folder",
            f"{foreign[0]} belongs to {user_name(foreign[0].lstat().st_uid)}, and the folder to"
            f" {user_name(owner)}: a command was run by another user.",
            f"chown -R {user_name(owner)}: {folder}",
        )


def check_disk(settings: Settings) -> Iterator[Finding]:
    """Check the kind of the file system, its free space and its free inodes."""
    folder = _existing(settings.queue_manager.data)
    try:
        found = os.statvfs(folder)
        kind, in_memory = network_file_system(folder), file_system_in_memory(folder)
    except OSError as error:
        yield fault("disk", f"The disk of {folder} cannot be examined: {error.strerror}.", "")
        return
    if kind:
        yield fault(
            "disk",
            f"{folder} is on a network file system ({kind}). Its locks and its shared memory do not"
            " hold between computers, and a sync does not reach a disk.",
            "Keep the data folder on a disk of this computer, or on a block device that is"
            " replicated (DRBD): docs/standby.md.",
        )
    if in_memory:
        yield warning(
            "disk",
            f"{folder} is in memory ({in_memory}): all messages are lost when this computer"
            " restarts.",
            "Let data in [queue_manager] name a folder on a disk.",
        )
    if found.f_flag & os.ST_RDONLY:
        yield fault(
            "disk",
            f"The file system of {folder} is mounted read-only.",
            "Look at the kernel's messages (dmesg): a file system with errors is mounted so. Then"
            " mount it for writing.",
        )
    free, reserve = found.f_bavail * found.f_frsize, settings.quotas.disk_reserve_bytes
    if free < 2 * reserve:
        yield fault(
            "disk",
            f"{free // 1_000_000} MB are free on the disk of {folder}, and below"
            f" {2 * reserve // 1_000_000} MB new messages are refused.",
            "Free space, receive messages, or lower disk_reserve in [quotas].",
        )
    elif free < 10 * reserve:
        yield warning(
            "disk",
            f"Only {free // 1_000_000} MB are free on the disk of {folder}.",
            "Free space, or use a larger disk, before messages are refused.",
        )
    else:
        yield ok("disk", f"{free // 1_000_000} MB are free on the disk of {folder}.")
    if found.f_files and found.f_favail < FREE_INODES_MIN:
        yield fault(
            "disk",
            f"The file system of {folder} has only {found.f_favail} inodes left: no file can be"
            " created.",
            "Remove small files on that file system.",
        )


def check_database(settings: Settings) -> Iterator[Finding]:
    """Check the schema, and, if no daemon runs, that no acknowledged data is missing."""
    folder = settings.queue_manager.data
    if not folder.is_dir():
        return
    try:
        found = upgrade.plan(folder)
    except ForeignDatabase as error:
        yield fault("database", f"{error}.", "Correct data in [queue_manager].")
        return
    except CannotStart as error:
        if error.code != "no_database":
            yield fault("database", f"{error}.", _remedy_of(error))
            return
        found = None
    if found is not None and found.is_newer:
        yield fault(
            "database",
            f"The database has schema {found.present}, and this version of qmd knows"
            f" {found.latest}: qmd was downgraded.",
            "Install the newer version again.",
        )
        return
    try:
        with locked(folder):
            lost = missing.find(folder)
            damage = [] if lost is not None else list(_damage(settings))
    except FolderInUse as error:
        yield ok("database", f"It is open: {error}.")
        return
    except CannotStart as error:
        if error.code == "no_database":
            return
        yield fault("database", f"{error}.", "Remove the cause that the sentence names.")
        return
    except OSError as error:
        yield fault("database", f"{folder}: {explain(error)}.", "")
        return
    if lost is not None:
        yield fault(
            "database", f"Acknowledged data is missing: {lost}.", f"{missing.REMEDY.capitalize()}."
        )
    elif damage:
        yield from damage
    elif found is not None:
        steps = f"; the next start upgrades it to {found.latest}" if found.steps else ""
        yield ok("database", f"It has schema {found.present}{steps}.")


def _remedy_of(error: CannotStart) -> str:
    if isinstance(error, KeyMissing):
        return "Enter the file of that key in key_files in the section [storage]."
    return "Examine the folder with `qmd check`."


def _damage(settings: Settings) -> Iterator[Finding]:
    """Examine the database and its messages, if that takes less than a second."""
    folder = settings.queue_manager.data
    if sum(path.stat().st_size for path in folder.glob(f"{DATABASE}*")) > EXAMINED_BYTES_MAX:
        yield note(
            "database",
            f"The database is larger than {EXAMINED_BYTES_MAX // 1_000_000} MB, and was not"
            " examined for damage.",
            "`qmd check` examines it.",
        )
        return
    try:
        keys = read_keys(settings.storage.key_files, folder)
        findings = examine(folder, Vault(keys) if keys else None).findings
    except KeyFileError:
        return  # reported by another check
    except CannotStart as error:
        yield fault("database", f"{error}.", _remedy_of(error))
        return
    if findings:
        more = f", and {len(findings) - 1} more findings" if len(findings) > 1 else ""
        yield fault(
            "database",
            f"The database is damaged: {findings[0]}{more}.",
            "`qmd check` lists all, and `qmd check --repair FILE` rescues what is intact; look at"
            " the disk (smartctl, dmesg), and restore a backup if messages are lost.",
        )


def check_identity(settings: Settings) -> Iterator[Finding]:
    """Check the key by which other queue managers know this one."""
    folder = settings.queue_manager.data
    path = folder / key_file.NAME
    if not missing.has_database(folder):
        return
    try:
        data = Disk().read_small(path)
    except OSError as error:
        yield fault(
            "identity", f"{path} cannot be read: {error.strerror}.", "Correct its owner and mode."
        )
        return
    if data is None or key_file.decode(data) is None:
        yield fault(
            "identity",
            f"{path}, the key by which other queue managers know this one, is"
            f" {'missing' if data is None else 'damaged'}.",
            "Restore the file from a backup (`qmd restore`). Without it: `qmd check --accept-loss`,"
            " and `qmd peer forget` on the other computers.",
        )
    elif path.stat().st_mode & 0o077:
        yield warning(
            "identity", f"Other users may read the private key {path}.", f"chmod 0600 {path}"
        )
    else:
        yield ok("identity", "The key of this queue manager is readable.")


def check_storage_keys(settings: Settings) -> Iterator[Finding]:
    """Check the keys that encrypt packets on the disk."""
    paths = settings.storage.key_files
    try:
        keys = read_keys(paths, settings.queue_manager.data)
    except KeyFileError as error:
        yield fault("storage key", f"{error}.", "Correct key_files in the section [storage].")
        return
    if keys:
        yield ok("storage key", f"{len(keys)} can be read.")


def user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"number {number}"


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
