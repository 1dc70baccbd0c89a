"""Files that the user of a command names.

Another user may have written them, or they may be devices and pipes without an end: none is read
beyond a limit.
"""

from __future__ import annotations

from pathlib import Path

from qmd.cli.program import ExitCode, Failure

FILE_BYTES_MAX = 16 * 1024 * 1024  # a hundred thousand entries of rights
TEXT = "utf-8-sig"


def read_bytes(file: Path) -> bytes:
    """Return the content of a file.  Raises OSError, and Failure if it is longer than the limit."""
    with file.open("rb") as stream:
        content = stream.read(FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX:
        raise Failure(
            ExitCode.USAGE, f"{file} has more than {FILE_BYTES_MAX} bytes", "file_too_long"
        )
    return content


def read_text(file: Path) -> str:
    """Return the text of a file in UTF-8.  Raises OSError, UnicodeDecodeError and Failure."""
    return read_bytes(file).decode(TEXT)
