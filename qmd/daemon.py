"""The daemon: it starts in order, stops in reverse order, and logs the reason of a failure.

Exit codes:  0 stopped on request;  1 the storage or a resource of this host failed, or a bug was
             detected: start again;  78 the configuration must be changed first, or an operator
             must decide how to treat a folder that lacks acknowledged data
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
import uvloop

from protocol.identifiers import guid_text
from qmd import __version__
from qmd.access.tokens import TokenFileError
from qmd.config.settings import Settings
from qmd.control.control_server import ControlServer
from qmd.control.remote import RemoteServer
from qmd.control.verbs import HANDLERS
from qmd.directory.interface import DirectoryError
from qmd.directory.machine_object import id_to_begin_with, missing_package
from qmd.errors import Refusal
from qmd.manager import QueueManager
from qmd.peers.listener import listen
from qmd.peers.ping import PingAnswers, bind_datagrams
from qmd.runtime.environment import Environment, Listening
from qmd.runtime.lifecycle import Bug
from qmd.runtime.log import set_up_logging
from qmd.runtime.open_files import fit, needed_files, raise_limit
from qmd.runtime.systemd import ServiceManager
from qmd.tls.errors import TlsFilesError
from storage.errors import (
    CannotStart,
    DataMissing,
    ForeignDatabase,
    KeyFileError,
    KeyMissing,
    NetworkDisk,
    NewerSchema,
    StorageError,
)

if TYPE_CHECKING:
    from qmd.peers.tls_handshakes import TlsHandshakes

log = structlog.get_logger()

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h

STOP_TIMEOUT_S = 4.0
BACKLOG = 512
# A commit's thread and the event loop share the interpreter.  That thread gives it up at each row,
# and a busy loop gives it back after this time: with 0.5 ms a commit of 800 rows took 175 ms.
SWITCH_INTERVAL_S = 0.0001
# A batch of parsed messages exceeds Python's default of 700 objects: the collector would run for
# each batch, and find nothing.  Measured: 0.9 µs of the 1.7 µs per message in the session.
GC_THRESHOLDS = (20_000, 50, 100)


# The error code of a failure to listen, by the number of the operating system.
_LISTENING = {
    errno.EADDRINUSE: "port_in_use",
    errno.EADDRNOTAVAIL: "address_not_here",
    errno.EACCES: "port_forbidden",
}
# Errors that need a change of the configuration: a restart does not create a folder or a right.
_OF_THE_CONFIGURATION = (FileNotFoundError, NotADirectoryError, PermissionError)
_reloading: set[asyncio.Task[None]] = set()  # the event loop keeps only weak references
# Errors that a restart does not remove.
_LASTING = (NewerSchema, ForeignDatabase, DataMissing, KeyMissing, KeyFileError, NetworkDisk)


def _prevent_core_dumps() -> None:
    """Keep bodies and keys out of core files, also where the kernel pipes them to a program.

    Such a program gets the core whatever the limit is, except that the kernel makes none for the
    limit of one byte; core(5), fs/coredump.c.
    """
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    except ValueError:  # the hard limit is 0 already
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class CannotServe(Exception):
    """A condition of this host prevents the daemon from serving; the text names the remedy.

    `code` is that of the cause in `qmd.catalogue`.
    """

    def __init__(self, text: str, *, code: str) -> None:
        super().__init__(text)
        self.code = code


class Misconfigured(CannotServe):
    """The configuration must be changed first; a restart alone is useless."""


def main(settings: Settings, read: Callable[[], Settings] | None = None) -> int:
    """Serve until a signal stops the daemon; return the exit code.

    `read` reads the configuration again, on SIGHUP.
    """
    set_up_logging(settings.log.level, settings.log.format)
    # A core dump would contain the bodies of messages.
    _prevent_core_dumps()
    os.umask(0o077)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    limit = raise_limit(needed_files(settings))
    settings = fit(settings, limit)
    again = None if read is None else partial(_read_again, read, limit)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(settings, Environment(), ServiceManager(os.environ), again))
    except (CannotServe, CannotStart) as error:
        log.critical("start_failed", reason=str(error), code=error.code)
        return EXIT_CONFIGURATION if isinstance(error, (Misconfigured, *_LASTING)) else EXIT_FAILED
    except Bug as bug:
        log.critical(
            "stopped_by_a_bug",
            reason=repr(bug.__cause__),
            remedy="Nothing acknowledged is lost: start the daemon again, and report this.",
            exc_info=bug.__cause__,
        )
        return EXIT_FAILED
    except StorageError as error:
        log.critical(
            "storage_failed",
            reason=str(error),
            code=error.code,
            remedy="Nothing that was acknowledged is lost. Start the daemon again when the disk"
            " works.",
        )
        return EXIT_FAILED


def _read_again(read: Callable[[], Settings], limit: int) -> Settings:
    """Read the configuration, for as many descriptors as at the start.  Raises ConfigError."""
    return fit(read(), limit)


async def serve(
    settings: Settings,
    environment: Environment,
    service: ServiceManager,
    read: Callable[[], Settings] | None = None,
) -> int:
    """Open the queue manager, serve until SIGTERM or SIGINT, stop; return the exit code.

    Raises CannotServe, CannotStart, StorageError.
    """
    _check_user(settings)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    manager = await _open_manager(settings, environment)
    loop.set_exception_handler(partial(_unhandled, manager))
    servers = _Servers(manager, settings, service)
    manager.assembly.reload.read = read
    loop.add_signal_handler(signal.SIGHUP, partial(_reload, manager, servers, service))
    try:
        await servers.start()
        manager.start()
        _log_start(manager, settings)
        environment.freeze_memory()
        queues = len(manager.assembly.queues.by_key)
        service.notify("READY=1", f"STATUS=Serving {queues} queues as {manager.services.name}")
        await _until_stopped(stop, manager, servers.tasks)
    finally:
        service.notify("STOPPING=1")
        await servers.stop()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await manager.stop()
        except TimeoutError:
            # The next start does the rest: start-up is recovery.
            log.warning("storage_not_closed", waited_s=STOP_TIMEOUT_S)
    if manager.services.storage.failed.done():
        manager.services.storage.failed.result()  # raises: the last commit failed
    log.info("stopped", name=manager.services.name)
    return EXIT_OK


async def _open_manager(settings: Settings, environment: Environment) -> QueueManager:
    """Open the queue manager; with [directory] join, a new one gets its id from the directory."""
    name = settings.queue_manager.name or socket.gethostname().partition(".")[0]
    if missing := missing_package(settings):
        raise Misconfigured(missing, code="ldap_missing")
    try:
        first_id = await id_to_begin_with(settings, name)
    except DirectoryError as error:
        raise CannotServe(
            "the first start takes the queue manager's id from the directory ([directory] join):"
            f" {error.text}",
            code=error.code,
        ) from error
    return await QueueManager.open(settings, environment, name, first_id=first_id)


class _Servers:
    """The sockets that the daemon serves, and its periodic tasks."""

    def __init__(self, manager: QueueManager, settings: Settings, service: ServiceManager) -> None:
        self._manager = manager
        self._settings = settings
        self._service = service
        self._listeners: list[Listening] = []
        self._ping: PingAnswers | None = None
        self._control = ControlServer(manager.assembly.components, HANDLERS)
        self._remote: RemoteServer | None = None
        self._tls_handshakes: TlsHandshakes | None = None
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Open every socket and start the tasks.  Raises CannotServe."""
        manager, settings = self._manager, self._settings
        self._listeners = await _listen(manager, settings, self._service)
        if settings.tls.enabled:
            self._listeners += await self._listen_for_tls()
        if settings.listen.ping:
            self._ping = _answer_pings(manager, settings)
        await _open_control(self._control, settings)
        if settings.remote.enabled:
            self._remote = await _open_remote(manager, settings)
        loop = manager.services.loop
        self.tasks = [
            loop.create_task(each.run())
            for each in (
                manager.assembly.loop_lag,
                manager.assembly.maintenance,
                manager.assembly.disk_watch,
                manager.assembly.row_watch,
                manager.assembly.delayed_release,
                manager.assembly.retry_release,
                *((manager.assembly.tls_watch,) if settings.tls.enabled else ()),
                *((manager.assembly.heartbeats,) if settings.delivery.heartbeat_s else ()),
            )
        ]
        if self._service.watchdog_s is not None:
            self.tasks.append(
                loop.create_task(_feed_watchdog(self._service, self._service.watchdog_s))
            )

    async def stop(self) -> None:
        """Close the sockets that are open, in any state, and cancel the tasks."""
        for listener in self._listeners:
            listener.close()
        if self._tls_handshakes is not None:
            self._tls_handshakes.close()
        if self._ping is not None:
            self._ping.close()
        for task in self.tasks:
            task.cancel()
        if self._remote is not None:
            await self._remote.close()
        await self._control.stop(self._settings.control.socket)

    def renew_certificate(self) -> None:
        """Read the certificate of remote control again; a faulty one changes nothing."""
        if self._remote is not None:
            try:
                self._remote.renew_certificate()
            except (OSError, Refusal) as error:  # ssl.SSLError is an OSError
                log.error("remote_certificate_not_renewed", reason=str(error))

    async def _listen_for_tls(self) -> list[Listening]:
        """Load the files of TLS and listen on its port.  Raises CannotServe."""
        from qmd.peers.tls_handshakes import TlsHandshakes

        assembly, chosen = self._manager.assembly, self._settings.tls
        services = self._manager.services
        try:
            assembly.tls.start()
        except TlsFilesError as error:
            raise Misconfigured(
                f"TLS cannot begin: {error}; see the section [tls]", code="tls_files_faulty"
            ) from error
        self._tls_handshakes = TlsHandshakes(
            services, assembly.tls, assembly.turns, partial(assembly.make_connection, None)
        )
        open_listeners = partial(listen, services, assembly.peers, assembly.turns)
        try:
            listeners = await services.environment.listen(
                open_listeners,
                self._tls_handshakes.make_channel,
                (chosen.address, chosen.port),
                BACKLOG,
            )
        except OSError as error:
            kind = Misconfigured if isinstance(error, PermissionError) else CannotServe
            raise kind(
                f"cannot listen for TLS at {chosen.address} port {chosen.port}:"
                f" {error.strerror or error}; see address and port in the section [tls]",
                code=_LISTENING.get(error.errno or 0, "cannot_listen"),
            ) from error
        assembly.tls.listening = listeners[0].address
        host, port = listeners[0].address
        log.info(
            "tls_listens",
            address=host,
            port=port,
            fingerprint=assembly.tls.credentials.certificate.fingerprint,
        )
        return list(listeners)


def _log_start(manager: QueueManager, settings: Settings) -> None:
    """Log the result of recovery, a disk that is short of space, and the start."""
    services = manager.services
    recovery = services.storage.recovery
    log.info(
        "recovered" if not recovery.was_clean else "opened",
        was_clean=recovery.was_clean,
        checked=recovery.checked,
        log_bytes=recovery.log_bytes,
        database_bytes=recovery.database_bytes,
    )
    if services.storage.full:
        log.warning(
            "disk_short",
            reason="the disk has no room for the reserve and the watermark beside it: new"
            " messages are refused until there is ([quotas] disk_reserve)",
        )
    log.info(
        "started",
        name=services.name,
        queue_manager=guid_text(services.id),
        release=__version__,
        listen=[f"{host}:{port}" for host, port in services.listening],
        control=str(settings.control.socket),
    )


def _reload(manager: QueueManager, servers: _Servers, service: ServiceManager) -> None:
    """Read the configuration, the certificates and the directory again, on SIGHUP."""
    service.notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
    manager.assembly.reload.run()
    servers.renew_certificate()
    service.notify("READY=1")
    log.info("reloading", what="directory")
    _reloading.add(task := manager.services.loop.create_task(manager.assembly.reload_directory()))
    task.add_done_callback(_reloading.discard)
    manager.assembly.tls_watch.check()


async def _until_stopped(
    stop: asyncio.Event, manager: QueueManager, tasks: list[asyncio.Task[None]]
) -> None:
    """Return when `stop` is set; raise the error of a storage or a task that failed."""
    services = manager.services
    stopped = asyncio.create_task(stop.wait())
    ends: list[asyncio.Future[Any]] = [
        stopped,
        services.storage.failed,
        services.lifecycle.failed,
        *tasks,
    ]
    try:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for finished in done:
            if finished is not stopped:
                finished.result()  # raises: neither the storage nor a task ends by itself
    finally:
        stopped.cancel()


def _unhandled(
    manager: QueueManager, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """Handle an exception that no code caught.

    Errors of sockets have external causes.  Every other exception is a bug of qmd, after which
    memory and disk may differ: only a restart makes them agree.
    """
    error = context.get("exception")
    if error is None or isinstance(error, OSError):
        manager.services.log_limited(
            "socket_fault", "socket", reason=str(error or context["message"])
        )
    else:
        manager.services.lifecycle.fail(error)


def _check_user(settings: Settings) -> None:
    if os.geteuid() == 0 and not settings.queue_manager.run_as_root:
        raise Misconfigured(
            "the daemon does not run as root, because it needs no privilege of root: run it as"
            " a separate user, or set run_as_root = true in the section [queue_manager]",
            code="runs_as_root",
        )


async def _listen(
    manager: QueueManager, settings: Settings, service: ServiceManager
) -> list[Listening]:
    open_listeners = partial(
        listen, manager.services, manager.assembly.peers, manager.assembly.turns
    )
    factory = partial(manager.assembly.make_connection, None)
    host, port = settings.listen.address, settings.listen.port
    places: list[tuple[str, int] | socket.socket] = [*service.sockets()]
    listeners: list[Listening] = []
    try:
        for place in places or [(host, port)]:
            listeners += await manager.services.environment.listen(
                open_listeners, factory, place, BACKLOG
            )
    except OSError as error:
        kind = Misconfigured if isinstance(error, PermissionError) else CannotServe
        raise kind(
            f"cannot listen at {host} port {port}: {error.strerror or error}; is another daemon"
            " running there? See address and port in the section [listen]",
            code=_LISTENING.get(error.errno or 0, "cannot_listen"),
        ) from error
    manager.services.listening.extend([each.address for each in listeners])
    return listeners


async def _open_remote(manager: QueueManager, settings: Settings) -> RemoteServer:
    server = RemoteServer(manager.assembly.components, HANDLERS, settings.remote)
    try:
        await server.listen()
    except (OSError, TokenFileError) as error:  # ssl.SSLError is one of them
        lasting = (*_OF_THE_CONFIGURATION, ssl.SSLError, TokenFileError)
        kind = Misconfigured if isinstance(error, lasting) else CannotServe
        raise kind(
            f"the remote control protocol cannot listen at {settings.remote.address}:"
            f"{settings.remote.port}: {error}; see certificate, key and tokens in the section"
            " [remote]",
            code="remote_control_failed",
        ) from error
    except Refusal as refusal:
        raise Misconfigured(f"{refusal.text}; {refusal.remedy}", code=refusal.code) from refusal
    host, port = server.address
    log.info("remote_control", address=host, port=port)
    return server


async def _open_control(control: ControlServer, settings: Settings) -> None:
    chosen = settings.control
    try:
        await control.start(chosen.socket, chosen.mode, chosen.group)
    except LookupError as error:
        raise Misconfigured(
            f"the control socket {chosen.socket} cannot be opened: {error}; see group in the"
            " section [control]",
            code="control_group_unknown",
        ) from error
    except OSError as error:
        kind = Misconfigured if isinstance(error, _OF_THE_CONFIGURATION) else CannotServe
        raise kind(
            f"the control socket {chosen.socket} cannot be opened: {error}; see the section"
            " [control]",
            code="control_socket_failed",
        ) from error


async def _feed_watchdog(service: ServiceManager, period_s: float) -> None:
    while True:
        service.notify("WATCHDOG=1")
        await asyncio.sleep(period_s / 3)


def _answer_pings(manager: QueueManager, settings: Settings) -> PingAnswers:
    """Open the UDP port of pings.  [MS-MQQB] 3.1.5.10: off by default since Windows Vista."""
    host, port = settings.listen.address, settings.listen.ping_port
    peers = manager.assembly.peers
    try:
        bound = bind_datagrams(host, port)
    except OSError as error:
        raise CannotServe(
            f"cannot listen for pings at {host} port {port}: {error.strerror or error}; see ping"
            " and ping_port in the section [listen]",
            code="ping_port_failed",
        ) from error
    return PingAnswers(
        manager.services,
        manager.assembly.turns,
        peers.is_allowed,
        peers.admission.has_room_for,
        bound,
    )
