"""Checks of the process that has the data folder: whether it is the daemon, and can work.

The kernel shows them in /proc, also if the daemon is not able to answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qmd.cli.host.doctor.finding import Finding, fault, warning
from qmd.runtime.open_files import needed_files
from storage.engine.missing import DATABASE, LOG
from storage.options import PAGE_BYTES, StorageOptions

if TYPE_CHECKING:
    from qmd.config.file import Settings

PROC = Path("/proc")
NEARLY_ALL = 0.9  # of the descriptors
CHECKPOINTS = 8  # a log of so many times the pages of a checkpoint is too long


class Holder(NamedTuple):
    """The process that has the lock of the data folder."""

    number: int
    name: str
    is_daemon: bool  # the lock file, which the daemon writes, names it


def find_holder(folder: Path) -> Holder | None:
    """Return the process with the lock of the folder, by the kernel; None: it does not show it."""
    inodes = {path.stat().st_ino for path in (folder, folder / "lock") if path.exists()}
    for line in (PROC / "locks").read_text().splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and int(words[5].rpartition(":")[2]) in inodes:
            number = int(words[4])
            named = (folder / "lock").read_text("ascii", "replace").strip()
            return Holder(number, read_process_file(number, "comm").strip(), named == str(number))
    return None


def check_holder(settings: Settings) -> Iterator[Finding]:
    """Yield a fault if the process that has the data folder cannot serve."""
    folder = settings.queue_manager.data
    holder = find_holder(folder)
    if holder is None:
        return
    if not holder.is_daemon:
        yield fault(
            "lock",
            f"Process {holder.number} ({holder.name}) has locked the data folder {folder},"
            " and is no daemon: no daemon can start.",
            f"Let it end, or end it: it may be `qmd check`, a backup, or a program that locks"
            f" folders (ps -p {holder.number} -f).",
        )
        return
    state = read_process_file(holder.number, "stat").rpartition(")")[2].split()[:1]
    if state in (["T"], ["t"]):
        yield fault(
            "process",
            f"The daemon, process {holder.number}, is stopped by a signal or a debugger: it keeps"
            " the data folder, and answers nothing.",
            f"kill -CONT {holder.number}",
        )


def check_resources(settings: Settings) -> Iterator[Finding]:
    """Check the descriptors of the daemon, and the length of the log of its database."""
    folder = settings.queue_manager.data
    holder = find_holder(folder)
    if holder is not None:
        yield from _check_descriptors(settings, holder.number)
        yield from _check_file_size(holder.number)
        yield from _check_memory(holder.number)
    log_bytes = (folder / LOG).stat().st_size if (folder / LOG).exists() else 0
    limit = StorageOptions().wal_size_limit_bytes
    limit = max(limit, CHECKPOINTS * settings.storage.checkpoint_pages * PAGE_BYTES)
    if log_bytes > limit:
        others = _users_of(folder / DATABASE, holder.number if holder else 0)
        yield warning(
            "log",
            f"The log of the database, {folder / LOG}, has grown to {log_bytes // 1_000_000} MB: a"
            " reader of the database keeps it from being emptied."
            + (f" The database is open in {', '.join(others)}." if others else ""),
            "End that program, or let it close its transaction; `qmd backup` makes a copy to read.",
        )


def _check_descriptors(settings: Settings, number: int) -> Iterator[Finding]:
    needed = needed_files(settings)
    soft = _soft_limit(number, "Max open files")
    if soft is None:
        return
    try:
        used = len(os.listdir(PROC / str(number) / "fd"))
    except OSError:
        used = 0
    remedy = (
        "Raise LimitNOFILE= in the unit (systemctl edit qmd), or the limit of the user (ulimit)."
    )
    if used >= NEARLY_ALL * soft:
        yield fault(
            "descriptors",
            f"The daemon has {used} of the {soft} files and connections open that it may have: new"
            " ones are refused.",
            remedy,
        )
    elif soft < needed:
        yield warning(
            "descriptors",
            f"The daemon may open {soft} files and connections, and its settings need {needed}: it"
            " allows fewer sessions and clients than they say.",
            remedy,
        )


def _check_file_size(number: int) -> Iterator[Finding]:
    limit = _soft_limit(number, "Max file size")
    if limit is not None:
        yield warning(
            "disk",
            f"The daemon may write files of {limit // 1_000_000} MB at most: its database stops"
            " growing there, and messages are refused.",
            "Remove LimitFSIZE= in the unit (systemctl edit qmd), or `ulimit -f`.",
        )


def _check_memory(number: int) -> Iterator[Finding]:
    limit = _soft_limit(number, "Max address space")
    if limit is not None:
        yield warning(
            "memory",
            f"The daemon may use {limit // 1_000_000} MB of addresses at most: it fails with less"
            " memory in use, because files and stacks of threads count, too.",
            "Remove LimitAS= in the unit (systemctl edit qmd), or `ulimit -v`; [memory] limits what"
            " messages use.",
        )


def _soft_limit(number: int, name: str) -> int | None:
    """Return a limit of a process; None: it has none, or the kernel does not show it."""
    for line in read_process_file(number, "limits").splitlines():
        if line.startswith(name):
            soft = line.removeprefix(name).split()[0]
            return int(soft) if soft.isdigit() else None
    return None


def _users_of(path: Path, daemon: int) -> list[str]:
    """Return the other processes that have a file open, as far as this user may see."""
    found = []
    for process in PROC.iterdir():
        if not process.name.isdigit() or int(process.name) in (daemon, os.getpid()):
            continue
        try:
            links = [os.readlink(each) for each in (process / "fd").iterdir()]
        except OSError:
            continue
        if str(path.resolve()) in links:
            found.append(
                f"process {process.name} ({read_process_file(int(process.name), 'comm').strip()})"
            )
    return found


def read_process_file(number: int, name: str) -> str:
    """Return the text of a file of a process in /proc; "" if this user may not see it."""
    try:
        return (PROC / str(number) / name).read_text(errors="replace")
    except OSError:  # it has ended, or belongs to another user
        return ""
