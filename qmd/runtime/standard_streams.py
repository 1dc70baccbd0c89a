"""Standard streams that were closed by the program that started this one (`qmd receive >&-`).

A descriptor that is closed would be given to the next file or connection, and text for people
would be written into it.  Instead it is opened so that its use fails, as with other programs: a
message that cannot be printed is not removed.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TextIO, cast

_STREAMS = (("stdin", 0, os.O_WRONLY, "r"), ("stdout", 1, os.O_RDONLY, "w"))
_CLOSED = "the standard input or output of this command is closed"


def open_closed() -> None:
    """Open the standard streams that are closed; those for input and output fail when used."""
    for name, number, useless, mode in _STREAMS:
        if getattr(sys, name) is None and _take(number, useless):
            setattr(sys, name, _stream(number, mode))
    if sys.stderr is None and _take(2, os.O_WRONLY):
        sys.stderr = _stream(2, "w")


def escape() -> None:
    """Show characters that a terminal does not have, one that is not UTF-8, as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _stream(number: int, mode: str) -> TextIO:
    return cast(TextIO, open(number, mode, encoding="utf-8", closefd=False))


def _take(number: int, flags: int) -> bool:
    """Open the null device as this descriptor; return False if a file has it already."""
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, flags)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)
        return True
    return False


def is_closed(error: Exception) -> bool:
    """Return whether a standard stream that was closed was used."""
    return isinstance(error, OSError) and error.errno == errno.EBADF and error.filename is None


def explain(error: OSError) -> str | None:
    """Return the cause of an error that names no file, or None if the system's text is clear."""
    if is_closed(error):
        return _CLOSED
    if error.errno == errno.ENOENT and error.filename is None:
        try:
            os.getcwd()
        except FileNotFoundError:
            return "the working folder of this command was removed"
    return None
