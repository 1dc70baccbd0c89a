"""The part of an export that was interrupted: complete lines, after which it can go on.

    FILE.part ──(lines up to the last complete one)──► FILE.part.new ──(renamed)──► FILE.part

The lines are copied, because a killed command may have left half of a line, or half of a block of
gzip.  The former part stays until the copy is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import IO, NamedTuple

from qmd.cli.packed_lines import BrokenPacking, rows
from qmd.cli.program import ExitCode, Failure

LINE_BYTES_MAX = 16 * 1024 * 1024  # a packet of 4 MiB in base64, and ample room for the rest


class Resumed(NamedTuple):
    """The lines that a part has: their number, and the lookup id that follows the last one."""

    lines: int
    start: int


NOTHING = Resumed(0, 0)


def part_of(file: Path) -> Path:
    """Return the path of the part of an export to `file`."""
    return file.with_name(f"{file.name}.part")


def open_private(path: Path) -> IO[bytes]:
    """Create a file that only this user can read, because it contains messages."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "wb")


def remove_if_empty(part: Path) -> None:
    """Remove a part without a complete line: there is nothing to go on with."""
    with contextlib.suppress(BrokenPacking, FileNotFoundError):
        if next(rows(part, LINE_BYTES_MAX), b"").endswith(b"\n"):
            return
    part.unlink(missing_ok=True)


def copy_complete_lines(part: Path, output: IO[bytes], queue: str) -> Resumed:
    """Copy the complete lines of a part to `output`; return where the export goes on.

    Raises Failure if it is the part of another queue, or has other lines; OSError.
    """
    count = start = 0
    try:
        for line in rows(part, LINE_BYTES_MAX):
            if not line.endswith(b"\n"):
                break  # the command was killed while it wrote this line
            of_queue, lookup_id = _place(line, part, count + 1)
            if of_queue != queue:
                raise _broken(part, f"it has messages of {of_queue}, not of {queue}")
            output.write(line)
            count += 1
            start = lookup_id + 1
    except BrokenPacking:
        pass  # the command was killed while it wrote this block: its lines are written again
    return Resumed(count, start)


def _place(line: bytes, part: Path, number: int) -> tuple[str, int]:
    try:
        found = json.loads(line)
        return str(found["queue"]), int(found["lookup_id"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _broken(part, f"line {number} is no line of an export") from None


def _broken(part: Path, why: str) -> Failure:
    return Failure(
        ExitCode.USAGE,
        f"{part} is not a part of this export: {why}; export without --resume",
        "line_broken",
    )
