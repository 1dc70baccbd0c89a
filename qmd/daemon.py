"""The daemon: it starts in order, stops in reverse order, and logs the reason of a failure.

Exit codes:  0 stopped on request;  1 the storage or a resource of this host failed, or a bug was
             detected: start again;  78 the configuration must be changed first, or an operator
             must decide how to treat a folder that lacks acknowledged data
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
import uvloop

from protocol.errors import InvalidName
from protocol.identifiers import guid_text
from qmd import __version__
from qmd.config.settings import Settings
from qmd.directory.interface import DirectoryError
from qmd.directory.machine_object import id_to_begin_with, missing_package
from qmd.errors import Refusal
from qmd.manager import QueueManager
from qmd.runtime.environment import Environment
from qmd.runtime.lifecycle import Bug
from qmd.runtime.log import set_up_logging
from qmd.runtime.open_files import fit, needed_files, raise_limit
from qmd.runtime.systemd import ServiceManager
from qmd.servers import CannotServe, Misconfigured, Servers
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
    pass

log = structlog.get_logger()

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h

STOP_TIMEOUT_S = 4.0
# A commit's thread and the event loop share the interpreter.  That thread gives it up at each step
# of a statement, and a busy loop gives it back after this time: with 0.5 ms a commit of 800 rows
# took 175 ms, when each row was a step (storage/tables/many_rows.py).
SWITCH_INTERVAL_S = 0.0001
# A batch of parsed messages exceeds Python's default of 700 objects: the collector would run for
# each batch, and find nothing.  Measured: 0.9 µs of the 1.7 µs per message in the session.
GC_THRESHOLDS = (20_000, 50, 100)


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


def main(
    settings: Settings,
    read: Callable[[], Settings] | None = None,
    early: Collection[int] = (),
) -> int:
    """Serve until a signal stops the daemon; return the exit code.

    `read` reads the configuration again, on SIGHUP. `early` gets each SIGHUP that arrives before
    the daemon is able to do so: its handler is set already.
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
    service = ServiceManager(os.environ)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(settings, Environment(), service, again, early))
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
    early: Collection[int] = (),
) -> int:
    """Open the queue manager, serve until SIGTERM or SIGINT, stop; return the exit code.

    `read` and `early` are those of `main`.

    Raises CannotServe, CannotStart, StorageError.
    """
    _check_user(settings)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    manager = await _open_manager(settings, environment)
    loop.set_exception_handler(partial(_unhandled, manager))
    servers = Servers(manager, settings, service)
    manager.assembly.reload.read = read
    try:
        await servers.start()
        manager.start()
        reload = partial(_reload, manager, servers, service)
        loop.add_signal_handler(signal.SIGHUP, reload)
        _log_start(manager, settings)
        environment.freeze_memory()
        queues = len(manager.assembly.queues.by_key)
        service.notify("READY=1", f"STATUS=Serving {queues} queues as {manager.services.name}")
        if early:
            reload()
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


def _reload(manager: QueueManager, servers: Servers, service: ServiceManager) -> None:
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

    Errors of sockets have external causes.  The refusal of a task or a future that nothing awaits
    is that of a client that has left meanwhile.  Every other exception is a bug of qmd, after which
    memory and disk may differ: only a restart makes them agree.
    """
    error = context.get("exception")
    if "future" in context and isinstance(error, Refusal | InvalidName):
        return
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
