"""The program `qmd console`: it serves until a signal stops it.

Exit codes are those of the daemon: 0 stopped on request, 1 it failed, 78 the configuration must be
changed first.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
from pathlib import Path

import structlog
import uvloop

from qmd.config.settings import Settings
from qmd.console.entrance import Entrance
from qmd.console.fleet import SAMPLE_S, Fleet
from qmd.console.jobs import Jobs
from qmd.console.site import Site
from qmd.doors.http.limits import Limits
from qmd.doors.http.listening import CannotServe, listening, remove_socket, shown, tls_context
from qmd.doors.http.server import HttpServer
from qmd.runtime.log import set_up_logging
from qmd.runtime.systemd import ServiceManager

log = structlog.get_logger()

SECTION = "console"
EXIT_OK, EXIT_FAILED, EXIT_CONFIGURATION = 0, 1, 78
DRAIN_S = 5.0
LIMITS = Limits(
    connections=500,
    connections_of_address=200,
    request_bytes=8 * 1024 * 1024,
    bodies_bytes=64 * 1024 * 1024,
    unread_bytes=64 * 1024 * 1024,
)


class Console:
    """The server, its connections to the queue managers, and its periodic work."""

    def __init__(self, settings: Settings, config: Path) -> None:
        self._settings = settings.console
        self.fleet = Fleet(settings)
        self.jobs = Jobs()
        self.entrance = Entrance(settings)
        site = Site(settings.console, config, self.fleet, self.jobs, self.entrance)
        self._server = HttpServer(site, LIMITS)
        self._sampling: asyncio.Task[None] | None = None

    async def start(self, service: ServiceManager) -> list[str]:
        """Open the sockets and serve; return where.  Raises CannotServe."""
        context = tls_context(self._settings, SECTION)
        sockets = service.sockets() or list(listening(self._settings, SECTION))
        await self._server.start(sockets, context)
        self._sampling = asyncio.get_running_loop().create_task(self._sample())
        return [shown(each, is_tls=context is not None) for each in sockets]

    async def stop(self) -> None:
        """End requests, jobs after their pieces, and all connections."""
        await self._server.stop(DRAIN_S)
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait([self._sampling])
        await self.jobs.close()
        await self.fleet.close()
        if self._settings.socket is not None:
            remove_socket(self._settings.socket)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            await self.fleet.sample()


def main(settings: Settings, config: Path, *, link: bool) -> int:
    """Serve until a signal stops the console; return the exit code.

    `link`: print a link that logs the user of this process in.
    """
    set_up_logging(settings.log.level, settings.log.format)
    os.umask(0o077)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(settings, config, link=link))
    except CannotServe as error:
        log.critical("door_not_started", door="console", reason=str(error), code=error.code)
        return EXIT_CONFIGURATION if error.is_lasting else EXIT_FAILED


async def serve(settings: Settings, config: Path, *, link: bool) -> int:
    """Serve until SIGTERM or SIGINT.  Raises CannotServe."""
    service = ServiceManager(os.environ)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    console = Console(settings, config)
    places = await console.start(service)
    log.info("console_started", listen=places, hosts=sorted(console.fleet.hosts))
    if link:
        key = console.entrance.make_link(_user())
        base = next((each for each in places if "://" in each), "")
        print(f"Open {base}/login/once?key={key}", flush=True)
    service.notify("READY=1", f"STATUS=Serving {', '.join(places)}")
    try:
        await stop.wait()
    finally:
        service.notify("STOPPING=1")
        await console.stop()
    log.info("console_stopped")
    return EXIT_OK


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
