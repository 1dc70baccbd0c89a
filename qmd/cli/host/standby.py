"""Waiting as the standby of another daemon, until its lock on the data folder is free.

The lock ends with the process that holds it, however that ends, and no two processes can hold it.
A folder on a network file system is refused: there a lock may be held twice.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import structlog

from qmd.runtime.systemd import ServiceManager
from storage.engine.disk import Disk
from storage.errors import CannotStart, FolderInUse

log = structlog.get_logger()

POLL_S = 0.1
EXIT_OK, EXIT_FAILED, EXIT_CONFIGURATION = 0, 1, 78


def serve_as_standby(folder: Path, serve: Callable[[], int]) -> int:
    """Wait until no other daemon has the folder, then serve; return the exit code of that."""
    stop = threading.Event()
    service = ServiceManager(os.environ)
    while True:
        for number in (signal.SIGTERM, signal.SIGINT):  # a daemon that has ended leaves others
            signal.signal(number, lambda *_: stop.set())
        try:
            if not _wait(folder, stop, service):
                return EXIT_OK
        except CannotStart as error:
            log.critical("start_failed", reason=str(error), code=error.code)
            return EXIT_CONFIGURATION
        log.info("standby_takes_over", folder=str(folder))
        code = serve()
        if code != EXIT_FAILED or not _holder(folder):
            return code
        # Another standby was faster.


def _wait(folder: Path, stop: threading.Event, service: ServiceManager) -> bool:
    """Return True when the folder is free, and False when this process is to stop."""
    holder = _holder(folder)
    if not holder:
        return True
    log.info("standby", reason=holder)
    service.notify("READY=1", f"STATUS=Standby: {holder}")
    while _holder(folder):
        # A daemon on watch for this process expects a sign of life.
        service.notify("WATCHDOG=1")
        if stop.wait(POLL_S):
            return False
    return True


def _holder(folder: Path) -> str:
    """Return a sentence about the process that has the folder, or "".  Raises CannotStart."""
    if not folder.exists():
        return ""
    try:
        lock = Disk().lock(folder)
    except FolderInUse as error:
        return str(error)
    lock.is_clean = not lock.was_abandoned
    lock.release()
    return ""
