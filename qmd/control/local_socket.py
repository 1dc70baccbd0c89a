"""The file of the Unix socket of the control protocol."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path


def remove_socket(path: Path) -> None:
    """Remove our socket, or that of a daemon that was killed.

    The lock on the data folder proves that no other daemon uses it.
    """
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
