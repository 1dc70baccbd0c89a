"""The process of the door: it runs until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
from typing import TYPE_CHECKING

import structlog
import uvloop

from qmd.doors.amqp.door import Door
from qmd.runtime.systemd import ServiceManager

if TYPE_CHECKING:
    from qmd.config.settings import Settings

log = structlog.get_logger()

# Each batch of messages makes thousands of objects that end with it: see qmd/daemon.py.
GC_THRESHOLDS = (20_000, 50, 100)


def serve(settings: Settings) -> None:
    """Serve clients until SIGTERM or SIGINT.  Raises OSError, ssl.SSLError."""
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings))


def _allow_files() -> None:
    """Allow as many open files as the system does: each client has two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    _allow_files()
    name = settings.queue_manager.name or socket.gethostname()
    door = Door(settings.amqp, settings.control.socket, name)
    await door.open()
    gc.freeze()  # the modules stay
    manager = ServiceManager(os.environ)
    manager.notify("READY=1")
    await stopped.wait()
    manager.notify("STOPPING=1")
    log.info("amqp_door_closing")
    await door.close()
