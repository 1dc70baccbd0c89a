"""How Spark writes the files of a checkpoint on a local disk.

Hadoop's FileContext, which Spark uses for checkpoints, runs the command `readlink` for both ends of
each renaming on a local disk: 20 processes for each batch of a stream, before and after its work.
Hadoop's FileSystem renames by the same system call, and needs none.  On other file systems the two
differ in what a renaming replaces, so that Spark's choice stays there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


@contextlib.contextmanager
def local_files(session: Any, checkpoint: str) -> Iterator[None]:
    """Set the session so that queries which start meanwhile write a local checkpoint quickly.

    Does nothing for a checkpoint elsewhere, for Spark Connect, or if the session has the setting.
    """
    if session.conf.get(SETTING, None) is not None or not _is_local(session, checkpoint):
        yield
        return
    session.conf.set(SETTING, BY_FILE_SYSTEM)
    try:
        yield
    finally:
        session.conf.unset(SETTING)


def _is_local(session: Any, checkpoint: str) -> bool:
    """Return whether the files of a checkpoint are on a disk of the driver."""
    java = getattr(session, "_jsc", None)  # of the classic session; Spark Connect has none
    if java is None:
        return False
    scheme = urlsplit(checkpoint).scheme
    if not scheme:
        scheme = urlsplit(java.hadoopConfiguration().get("fs.defaultFS") or "").scheme
    return scheme == "file"
