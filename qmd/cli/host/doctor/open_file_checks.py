"""Checks of the files that the daemon has open: still those of the data folder, and not locked.

SQLite does not notice that the name of its database was taken away: it goes on writing to a file
that ends with the process.  The kernel shows the open files of a process in /proc.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qmd.cli.host.doctor.finding import Finding, fault
from qmd.cli.host.doctor.process_checks import PROC, find_holder, read_process_file
from storage.engine.missing import DATABASE, LOG

if TYPE_CHECKING:
    from qmd.config.file import Settings

REMOVED = " (deleted)"  # the end of a link of /proc to a file without a name
# The byte of the file -shm that a writer locks: WAL_WRITE_LOCK of https://sqlite.org/walformat.html
SHARED_MEMORY, WRITER_BYTE = f"{DATABASE}-shm", 120


class OpenFile(NamedTuple):
    """A file that a process has open: its path in /proc, and its name, which it may have lost."""

    path: Path
    name: str


def check_removed_folder(settings: Settings) -> Iterator[Finding]:
    """Yield a fault if a process has a database open that was in the data folder, and is gone."""
    folder = settings.queue_manager.data.resolve()
    for process in PROC.iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            found = _open_files(int(process.name))
            if any(each.name == f"{folder / DATABASE}{REMOVED}" for each in found):
                yield _lost_names(folder, int(process.name), found)


def check_open_files(settings: Settings) -> Iterator[Finding]:
    """Check that the daemon writes to the files of the folder, and that it alone does."""
    folder = settings.queue_manager.data.resolve()
    holder = find_holder(folder)
    if holder is None:
        return
    found = _open_files(holder.number)
    database = folder / DATABASE
    is_it = [_is_same(each.path, database) for each in found if each.name.startswith(str(database))]
    if found and not any(is_it):
        yield _lost_names(folder, holder.number, found)
    number = _writer(folder / SHARED_MEMORY)
    if number not in (None, holder.number):
        yield fault(
            "lock",
            f"Process {number} ({read_process_file(number or 0, 'comm').strip()}) has locked the"
            f" database {database} for writing: commits wait for it.",
            f"End it (ps -p {number} -f); only the daemon may write to its database.",
        )


def _lost_names(folder: Path, number: int, found: list[OpenFile]) -> Finding:
    copies = []
    for name in (DATABASE, LOG):
        lost = [
            each
            for each in found
            if each.name.removesuffix(REMOVED) == str(folder / name)
            and not _is_same(each.path, folder / name)
        ]
        copies += [f"cp {each.path} SAFE/{name}" for each in lost[:1]]
    return fault(
        "folder",
        f"Process {number}, the daemon, writes to a database that is no longer"
        f" {folder / DATABASE}: the file was removed, moved or replaced under it. All that it"
        " stores is lost when it ends.",
        f"Do not restart it. kill -STOP {number}; {'; '.join(copies) or 'copy the moved files'};"
        f" kill -KILL {number}; then put the copies into the folder, beside its other files, and"
        " start the daemon.",
    )


def _open_files(number: int) -> list[OpenFile]:
    """Return the files that a process has open; none, if this user may not see them."""
    found = []
    try:
        for path in (PROC / str(number) / "fd").iterdir():
            found.append(OpenFile(path, os.readlink(path)))
    except OSError:  # it has ended, or belongs to another user
        return []
    return found


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _writer(shared: Path) -> int | None:
    """Return the process that has the lock of writers, by the kernel."""
    try:
        inode = shared.stat().st_ino
        lines = (PROC / "locks").read_text().splitlines()
    except OSError:
        return None
    for words in map(str.split, lines):
        if words[1] == "POSIX" and words[3] == "WRITE" and _has(words, inode):
            return int(words[4])
    return None


def _has(words: list[str], inode: int) -> bool:
    """Return whether a line of /proc/locks has the byte of writers of a file."""
    last = words[7]
    return int(words[5].rpartition(":")[2]) == inode and int(words[6]) <= WRITER_BYTE <= (
        WRITER_BYTE if last == "EOF" else int(last)
    )
