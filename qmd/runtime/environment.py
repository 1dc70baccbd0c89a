"""What the daemon gets from its surroundings, so that a simulator can stand in for them.

Durations are measured with the event loop's clock (`loop.time()`), which only
moves forward; times of life with `clock.py`, which outlives the process.  The
wall clock here is for times that leave the process: the sent time of a
message, the arrival time shown to a person.
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
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol

from storage import Storage, StorageOptions

LATEST_S = float(0xFFFFFFFF)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
OWN_GROUPS = Path("/proc/self/cgroup")
#: Where control groups of version 2 and 1 have their limits; no limit is "max", or a huge number.
CONTROL_GROUPS = (
    "/sys/fs/cgroup{group}/memory.max",
    "/sys/fs/cgroup{group}/memory.high",
    "/sys/fs/cgroup/memory{group}/memory.limit_in_bytes",
)
RESERVE_PART = 16  # of the disk, at most
RESERVE_BYTES_MIN = 1024 * 1024


class Listening(Protocol):
    """Where connections are taken up."""

    @property
    def address(self) -> tuple[str, int]: ...

    def close(self) -> None: ...


class Environment:
    """The real surroundings."""

    #: A bug in housekeeping is logged and stops nothing; for a simulator it is what it looks for.
    forgives_bugs = True

    def time(self) -> float:
        """Seconds since 1970 UTC; may jump.  Packets have 32 bits for them, which last until 2106:
        a clock that is further ahead is wrong, and says so no more clearly by ending the daemon."""
        return min(max(self.wall_clock(), 0.0), LATEST_S)

    def wall_clock(self) -> float:
        """What the computer's clock says."""
        return time.time()

    def boot_time(self) -> float:
        """Seconds since the computer was started, its sleep included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def busy_time(self) -> float:
        """Seconds for which the processor has worked for this thread."""
        return time.thread_time()

    def boot_id(self) -> int:
        """A number for this start of the computer, 63 bits; another one for the next."""
        try:
            text = BOOT_ID.read_text()
        except OSError:
            return int.from_bytes(os.urandom(8), "big") >> 1  # no start that anybody knows
        return int(text.replace("-", ""), 16) & (1 << 63) - 1

    def urandom(self, size: int) -> bytes:
        return os.urandom(size)

    async def open_storage(
        self, folder: Path, options: StorageOptions, *, now_ms: int, new_id: bytes
    ) -> Storage:
        """See `Storage.open`.  Raises CannotStart."""
        options = _fitting(options, folder)
        return await Storage.open(folder, options, now_ms=now_ms, new_id=new_id)

    async def listen(
        self,
        open_listeners: Callable[..., Awaitable[Sequence[Listening]]],
        factory: Callable[[], asyncio.BaseProtocol],
        at: tuple[str, int] | socket.socket,
        backlog: int,
    ) -> Sequence[Listening]:
        """Listen at all that an address stands for, or at a socket that we were given.

        `open_listeners(factory, at=, backlog=)` is that of qmd/peers/listener.py.  Raises OSError.
        """
        return await open_listeners(factory, at=at, backlog=backlog)

    def bind(self, path: Path, mode: int, group: str) -> socket.socket:
        """A Unix socket at `path`; nobody may connect before mode and group are what they shall be.

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

    def memory_bytes(self) -> int:
        """What this process may have: of the computer, its control group, and its own limit."""
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
        limits += [each for each in map(_memory_limit, CONTROL_GROUPS) if each is not None]
        own = resource.getrlimit(resource.RLIMIT_AS)[0]
        return min(limits if own == resource.RLIM_INFINITY else [*limits, own])

    def freeze_memory(self) -> None:
        """What is there now stays: the collector need not walk over it again and again."""
        gc.collect()
        gc.freeze()


def _memory_limit(file: str) -> int | None:
    """That of a control group, the strictest on the way to the one that the process is in."""
    try:
        names = [line.rpartition(":")[2] for line in OWN_GROUPS.read_text().splitlines()]
    except OSError:
        return None
    found: list[int] = []
    for name in names:
        for group in (PurePosixPath(name), *PurePosixPath(name).parents):
            with contextlib.suppress(OSError, ValueError):  # "max", or not of this kind
                found.append(int(Path(file.format(group=group)).read_text()))
    return min(found, default=None)


def _fitting(options: StorageOptions, folder: Path) -> StorageOptions:
    """On a small disk the reserve takes a part of it, not the most of it."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    disk = os.statvfs(there)
    share = max(disk.f_blocks * disk.f_frsize // RESERVE_PART, RESERVE_BYTES_MIN)
    return dataclasses.replace(
        options,
        disk_reserve_bytes=min(options.disk_reserve_bytes, share),
        disk_watermark_bytes=min(options.disk_watermark_bytes, share),
    )
