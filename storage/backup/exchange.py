"""The exchange of two folders in one act: renameat2(2) with RENAME_EXCHANGE."""

import ctypes
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of two folders of one file system.

    Raises OSError, also if the file system cannot do it (NFS, for example).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    renamed = libc.renameat2(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
    )
    if renamed != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(other))
