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

from qmd.config.file import ConfigError, Settings
from qmd.runtime.systemd import ServiceManager
from storage.engine.disk import Disk
from storage.errors import CannotStart, FolderInUse

log = structlog.get_logger()

POLL_S = 0.1
EXIT_OK, EXIT_FAILED, EXIT_CONFIGURATION = 0, 1, 78


def serve_as_standby(settings: Settings, read: Callable[[], Settings], early: list[int]) -> int:
    """Wait until no other daemon has the data folder, then serve; return the exit code of that.

    `read` reads the configuration again; a standby may wait for weeks.  `early` is that of
    `qmd.daemon.main`.
    """
    from qmd.daemon import main

    folder = settings.queue_manager.data
    stop = threading.Event()
    service = ServiceManager(os.environ)
    while True:
        for number in (signal.SIGTERM, signal.SIGINT):  # a daemon that has ended leaves others
            signal.signal(number, lambda *_: stop.set())
        signal.signal(signal.SIGHUP, lambda number, _: early.append(number))
        try:
            if not _wait(folder, stop, service):
                return EXIT_OK
        except CannotStart as error:
            log.critical("start_failed", reason=str(error), code=error.code)
            return EXIT_CONFIGURATION
        log.info("standby_takes_over", folder=str(folder))
        early.clear()
        settings = _latest(settings, read)
        code = main(settings, read, early)
        if code != EXIT_FAILED or not _holder(folder):
            return code
        # Another standby was faster.


def _latest(settings: Settings, read: Callable[[], Settings]) -> Settings:
    """Return the present configuration, or `settings` if it has an error or another folder."""
    try:
        found = read()
    except ConfigError as error:
        log.error("configuration_not_reloaded", reason=str(error), code=error.code)
        return settings
    if found.queue_manager.data != settings.queue_manager.data:
        log.error(
            "configuration_not_reloaded",
            reason=f"it names another data folder, {found.queue_manager.data}, than that for which"
            " this standby has waited",
        )
        return settings
    return found


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
