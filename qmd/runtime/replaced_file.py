"""Small files that commands replace while a process of another user reads them."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(
    path: Path,
    content: bytes,
    *,
    mode: int = 0o600,
    owner: os.stat_result | None = None,
    is_durable: bool = True,
) -> None:
    """Write or replace a file; a reader sees all of it or the previous content.

    Root gives it to the user and the group of `owner`; None: of its folder.  A command of root
    then writes what the process of that folder can read.  That user may write in the folder, and
    put a link there at any moment: nothing follows one.  Raises OSError.
    """
    fresh = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(fresh, flags, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            if os.geteuid() == 0:
                owner = owner or path.parent.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fchmod(file.fileno(), mode)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    if is_durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
