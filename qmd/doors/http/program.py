"""The programs of doors that speak HTTP: each serves until a signal stops it.

Exit codes are those of the daemon: 0 stopped on request, 1 it failed, 78 the configuration must be
changed first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, Protocol

import structlog
import uvloop

from qmd.doors.http.listening import CannotServe
from qmd.runtime.log import set_up_logging
from qmd.runtime.systemd import ServiceManager

if TYPE_CHECKING:
    from collections.abc import Callable

    from qmd.config.settings import Settings

log = structlog.get_logger()

EXIT_OK, EXIT_FAILED, EXIT_CONFIGURATION = 0, 1, 78


class DoorServer(Protocol):
    """A door before its start."""

    async def start(self, service: ServiceManager) -> list[str]:
        """Listen; return the places, for people.  Raises CannotServe."""
        ...

    async def stop(self) -> None:
        """Stop, also after a start that failed."""


def run(settings: Settings, name: str, make: Callable[[Settings], DoorServer]) -> int:
    """Make a door, and serve until a signal stops it; return the exit code."""
    set_up_logging(settings.log.level, settings.log.format)
    os.umask(0o077)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, name, make))
    except CannotServe as error:
        log.critical("door_not_started", door=name, reason=str(error), code=error.code)
        return EXIT_CONFIGURATION if error.is_lasting else EXIT_FAILED


async def _serve(settings: Settings, name: str, make: Callable[[Settings], DoorServer]) -> int:
    """Serve until SIGTERM or SIGINT.  Raises CannotServe."""
    service = ServiceManager(os.environ)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    door = make(settings)
    try:
        places = await door.start(service)
    except BaseException:
        with contextlib.suppress(Exception):
            await door.stop()
        raise
    log.info("door_started", door=name, listen=places, control=str(settings.control.socket))
    service.notify("READY=1", f"STATUS=Serving {', '.join(places)}")
    try:
        await stop.wait()
    finally:
        service.notify("STOPPING=1")
        await door.stop()
    log.info("door_stopped", door=name)
    return EXIT_OK
