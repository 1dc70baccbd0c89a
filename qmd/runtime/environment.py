"""Interface of the daemon to its environment, which a simulator can replace.

Durations are measured with the event loop's clock (`loop.time()`), which only moves forward;
lifetimes with `clock.py`, which survives a restart of the process. The wall clock here is for times
that leave the process: the sent time of a message, the arrival time shown to a person.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import grp
import os
import resource
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypeVar

from qmd.runtime.host_names import encoded
from storage import Storage, StorageOptions

T = TypeVar("T")

LATEST_S = float(0xFFFFFFFF)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STATM = Path("/proc/self/statm")
OWN_GROUPS = Path("/proc/self/cgroup")
#: Files with the limits of control groups, versions 2 and 1; "max" or a huge number is no limit.
CONTROL_GROUPS = (
    "/sys/fs/cgroup{group}/memory.max",
    "/sys/fs/cgroup{group}/memory.high",
    "/sys/fs/cgroup/memory{group}/memory.limit_in_bytes",
)
RESERVE_PART = 16  # maximum fraction of the disk, as a divisor
RESERVE_BYTES_MIN = 1024 * 1024


class Listening(Protocol):
    """An open listening socket."""

    @property
    def address(self) -> tuple[str, int]: ...

    def close(self) -> None: ...


class Environment:
    """The real environment."""

    #: A bug in housekeeping is logged and stops nothing; a simulator sets this to False to find it.
    forgives_bugs = True

    def time(self) -> float:
        """Return the seconds since 1970 UTC; the value may jump.

        It is limited to the 32 bits that packets have for it, which last until 2106. A clock beyond
        that is wrong, but must not end the daemon.
        """
        now = self.wall_clock()
        return now if 0.0 <= now <= LATEST_S else min(max(now, 0.0), LATEST_S)

    def wall_clock(self) -> float:
        """Return the computer's clock in seconds since 1970 UTC."""
        return time.time()

    def boot_time(self) -> float:
        """Return the seconds since boot, including suspended time."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def busy_time(self) -> float:
        """Return the seconds of processor time used by this thread."""
        return time.thread_time()

    def boot_id(self) -> int:
        """Return a 63-bit number that identifies this boot of the computer."""
        try:
            text = BOOT_ID.read_text()
        except OSError:
            return int.from_bytes(os.urandom(8), "big") >> 1  # unknown boot: matches no stored one
        return int(text.replace("-", ""), 16) & (1 << 63) - 1

    def urandom(self, size: int) -> bytes:
        return os.urandom(size)

    async def open_storage(
        self,
        folder: Path,
        options: StorageOptions,
        *,
        now_ms: int,
        new_id: bytes,
        new_seed: bytes,
    ) -> Storage:
        """Open the storage, see `Storage.open`. Raises CannotStart."""
        options = _fitting(options, folder)
        return await Storage.open(folder, options, now_ms=now_ms, new_id=new_id, new_seed=new_seed)

    async def listen(
        self,
        open_listeners: Callable[..., Awaitable[Sequence[Listening]]],
        factory: Callable[[], asyncio.BaseProtocol],
        at: tuple[str, int] | socket.socket,
        backlog: int,
    ) -> Sequence[Listening]:
        """Listen at all addresses of `at`, or at a socket passed to the daemon.

        `open_listeners(factory, at=, backlog=)` is that of qmd/peers/listener.py. Raises OSError.
        """
        return await open_listeners(factory, at=at, backlog=backlog)

    def bind(self, path: Path, mode: int, group: str) -> socket.socket:
        """Create a Unix socket at `path`; no client can connect before mode and group are set.

        Raises OSError, or LookupError for a group that does not exist.
        """
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            before = os.umask(0o177)
            try:
                bound.bind(str(path))
            finally:
                os.umask(before)
            if group:
                os.chown(path, -1, grp.getgrnam(group).gr_gid)
            os.chmod(path, mode)
        except BaseException:
            bound.close()
            raise
        return bound

    async def accept_clients(
        self,
        accept: Callable[[socket.socket], None],
        factory: Callable[[], asyncio.BaseProtocol],
        bound: socket.socket,
    ) -> None:
        """Accept the connections of a socket of `bind` with `accept`.  Raises OSError.

        A simulator, which has no sockets, calls `factory` for each connection instead.
        """
        accept(bound)

    async def look_up(self, host: str, port: int) -> list[tuple[Any, ...]]:
        """Return the addresses of a name, as `socket.getaddrinfo` does; one thread for each call.

        The thread of a silent server may outlive the call, and the process does not wait for it.
        Raises OSError, UnicodeError.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[tuple[Any, ...]]] = loop.create_future()

        def end(result: list[tuple[Any, ...]] | Exception) -> None:
            if found.done():
                return  # nothing waits for it any more
            if isinstance(result, Exception):
                found.set_exception(result)
            else:
                found.set_result(result)

        def run() -> None:
            result: list[tuple[Any, ...]] | Exception
            try:
                result = list(socket.getaddrinfo(encoded(host), port, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError) as error:
                result = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end, result)

        threading.Thread(target=run, name="look-up", daemon=True).start()
        return await found

    def aside(self, loop: asyncio.AbstractEventLoop, work: Callable[[], T]) -> asyncio.Future[T]:
        """Start work that takes long and touches nothing else, in another thread."""
        return asyncio.ensure_future(loop.run_in_executor(None, work), loop=loop)

    def memory_bytes(self) -> int:
        """Return the memory available to this process, in bytes.

        This is the smallest of the computer's memory, the limits of the control group and the
        process's own limit.
        """
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
        limits += [each for each in map(_memory_limit, CONTROL_GROUPS) if each is not None]
        own = resource.getrlimit(resource.RLIMIT_AS)[0]
        return min(limits if own == resource.RLIM_INFINITY else [*limits, own])

    def resident_bytes(self) -> int:
        """Return the physical memory that this process uses, in bytes; 0 if that is unknown."""
        try:
            pages = int(STATM.read_text().split()[1])
        except (OSError, IndexError, ValueError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def processor_time(self) -> float:
        """Return the seconds of processor time used by this process."""
        return time.process_time()

    @contextlib.contextmanager
    def no_collection(self) -> Iterator[None]:
        """Create many objects that stay, without the garbage collector going through them."""
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()

    def freeze_memory(self) -> None:
        """Exclude all current objects from later garbage collections, after one collection."""
        gc.unfreeze()  # the objects of the start
        gc.collect()
        gc.freeze()


def _memory_limit(file: str) -> int | None:
    """Return the limit of the process's control group, the strictest of all enclosing groups."""
    try:
        names = [line.rpartition(":")[2] for line in OWN_GROUPS.read_text().splitlines()]
    except OSError:
        return None
    found: list[int] = []
    for name in names:
        for group in (PurePosixPath(name), *PurePosixPath(name).parents):
            with contextlib.suppress(OSError, ValueError):  # "max", or not of this version
                found.append(int(Path(file.format(group=group)).read_text()))
    return min(found, default=None)


def _fitting(options: StorageOptions, folder: Path) -> StorageOptions:
    """Return the options with the reserve limited to a fraction of a small disk."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    disk = os.statvfs(there)
    share = max(disk.f_blocks * disk.f_frsize // RESERVE_PART, RESERVE_BYTES_MIN)
    return dataclasses.replace(
        options,
        disk_reserve_bytes=min(options.disk_reserve_bytes, share),
        disk_watermark_bytes=min(options.disk_watermark_bytes, share),
    )
