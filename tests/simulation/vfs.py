"""SQLite on simulated disks: a VFS in Python, registered in the library that `sqlite3` uses.

`sqlite3.connect("file:/HOST/queues.db?vfs=simulated", uri=True)` then reads and writes the disk
that was mounted as HOST, with the write-ahead log, its shared memory, and several connections.
SQLite itself and everything above it are the real ones.

https://sqlite.org/c3ref/io_methods.html documents these functions.
"""

from __future__ import annotations

import ctypes
import errno
import random
import sqlite3
from collections.abc import Callable
from typing import Any

from tests.simulation.disk import Fault, File, PowerIsOff, SimulatedDisk
from tests.simulation.file_contents import QuickContents, quick
from tests.simulation.sqlite_structures import (
    INT,
    LONG,
    POINTER,
    SHM_LOCKS,
    Methods,
    QuickLock,
    SqliteFile,
    Vfs,
)

NAME = "simulated"
PATH_BYTES_MAX = 200
SECTOR_BYTES = 4096

_OK, _BUSY, _FULL, _CANTOPEN, _NOTFOUND = 0, 5, 13, 14, 12
_IOERR = 10
_IOERR_READ, _IOERR_SHORT_READ, _IOERR_WRITE, _IOERR_FSYNC = (_IOERR | n << 8 for n in (1, 2, 3, 4))
_IOERR_DELETE, _IOERR_DELETE_NOENT = _IOERR | 10 << 8, _IOERR | 23 << 8
_OPEN_CREATE = 4
_OPEN_JOURNAL_OR_LOG = 0x800 | 0x4000 | 0x80000
_SHARED, _RESERVED, _PENDING, _EXCLUSIVE = 1, 2, 3, 4
_SHM_LOCK, _SHM_EXCLUSIVE = 2, 8
_SLOTS = 60  # the most handles that a file may have
_PRNG_SEED = 28  # SQLITE_TESTCTRL_PRNG_SEED
_JULIAN_1970_MS = 210_866_760_000_000
#: IOCAP_POWERSAFE_OVERWRITE, as on Linux: a torn write damages no bytes around it.
POWERSAFE_OVERWRITE = 0x1000
_string_at = ctypes.string_at
_memmove = ctypes.memmove


class Unavailable(Exception):
    """SQLite is linked into the interpreter, so that no VFS can be registered."""


class _Lock:
    """The state that the handles of a file share: the locks, and the log's index."""

    def __init__(self) -> None:
        self.levels: dict[int, int] = {}  # handle number -> level
        self.regions: list[Any] = []
        self.shared: list[set[int]] = [set() for _ in range(SHM_LOCKS)]
        self.exclusive: list[int | None] = [None] * SHM_LOCKS
        self.quick = QuickLock()
        self.slots: list[int] = list(range(_SLOTS))  # that no handle has


class _Handle:
    """An open file."""

    __slots__ = ("disk", "file", "generation", "lock", "number", "slot", "syncs_folder")

    def __init__(self, number: int, disk: SimulatedDisk, file: File, syncs_folder: bool) -> None:
        if file.lock is None:
            file.lock = _Lock()
        self.number = number
        self.disk = disk
        self.file = file
        self.lock: _Lock = file.lock
        self.slot = self.lock.slots.pop(0)
        self.generation: int = disk.state.generation
        self.syncs_folder = syncs_folder

    @property
    def is_dead(self) -> bool:
        state = self.disk.state
        return bool(self.generation != state.generation or state.is_off)


_disks: dict[str, SimulatedDisk] = {}
_handles: dict[int, _Handle] = {}
_next_number = 1
_random = random.Random(0)
_characteristics = POWERSAFE_OVERWRITE
_kept: list[Any] = []  # callbacks, which C may call at any time


def mount(disk: SimulatedDisk) -> None:
    """Make `disk` available under paths that begin with its name."""
    _disks[disk.name] = disk


def unmount(disk: SimulatedDisk) -> None:
    _disks.pop(disk.name, None)


def uri(path: str) -> str:
    return f"file:{path}?vfs={NAME}"


def begin(seed: int, *, characteristics: int) -> None:
    """Seed SQLite's random numbers, which appear in the log and in names."""
    global _characteristics
    _random.seed(seed)
    _characteristics = characteristics
    if quick is not None:
        INT.in_dll(quick, "characteristics").value = characteristics
    _library().sqlite3_test_control(_PRNG_SEED, INT(seed & 0x7FFFFFFF | 1), POINTER(None))


def _disk_of(path: str) -> SimulatedDisk:
    return _disks[path.split("/", 2)[1]]


def _handle(pointer: int) -> _Handle:
    return _handles[LONG.from_address(pointer + 8).value]


# The file methods.


def _close(pointer: int) -> int:
    handle = _handles.pop(LONG.from_address(pointer + 8).value)
    _release_shm(handle)
    handle.lock.levels.pop(handle.number, None)
    handle.lock.slots.insert(0, handle.slot)
    return _OK


def _read(pointer: int, buffer: int, size: int, offset: int) -> int:
    handle = _handles[LONG.from_address(pointer + 8).value]
    disk = handle.disk
    if handle.is_dead:
        return _IOERR_READ
    if disk.faults.planned and disk.faults.meets(Fault.READ_ERROR):
        return _IOERR_READ
    if disk.faults.planned:
        disk.faults.meets(Fault.SHORT_READ)  # the unix VFS asks again for the rest
    data = handle.file.contents.read(offset, size)
    _memmove(buffer, data, len(data))
    if len(data) < size:
        ctypes.memset(buffer + len(data), 0, size - len(data))
        return _IOERR_SHORT_READ
    return _OK


def _write(pointer: int, buffer: int, size: int, offset: int) -> int:
    handle = _handles[LONG.from_address(pointer + 8).value]
    disk = handle.disk
    if handle.is_dead:
        return _IOERR_WRITE
    try:
        disk.write(handle.file, offset, _string_at(buffer, size))
    except OSError as error:
        return _code(error, _IOERR_WRITE)
    return _OK


def _truncate(pointer: int, size: int) -> int:
    handle = _handle(pointer)
    if handle.is_dead:
        return _IOERR_WRITE
    try:
        handle.disk.truncate(handle.file, size)
    except OSError as error:
        return _code(error, _IOERR_WRITE)
    return _OK


def _sync(pointer: int, flags: int) -> int:
    handle = _handle(pointer)
    if handle.is_dead:
        return _IOERR_FSYNC
    try:
        handle.disk.sync(handle.file)
    except OSError:
        return _IOERR_FSYNC
    if handle.syncs_folder:  # the first sync of a new journal or log, as the unix VFS does it
        handle.syncs_folder = False
        handle.disk.sync_folder()
    return _OK


def _file_size(pointer: int, out: Any) -> int:
    out[0] = _handle(pointer).file.contents.size()
    return _OK


def _lock(pointer: int, level: int) -> int:
    handle = _handle(pointer)
    if handle.is_dead:
        return _IOERR
    levels, own = handle.lock.levels, handle.number
    if level <= levels.get(own, 0):
        return _OK
    others = [held for number, held in levels.items() if number != own]
    if level == _SHARED and any(held >= _PENDING for held in others):
        return _BUSY
    if level >= _RESERVED and any(held >= _RESERVED for held in others):
        return _BUSY
    if level == _EXCLUSIVE and others:
        levels[own] = _PENDING
        return _BUSY
    levels[own] = level
    return _OK


def _unlock(pointer: int, level: int) -> int:
    handle = _handle(pointer)
    if level:
        handle.lock.levels[handle.number] = level
    else:
        handle.lock.levels.pop(handle.number, None)
    return _OK


def _check_reserved(pointer: int, out: Any) -> int:
    out[0] = any(held >= _RESERVED for held in _handle(pointer).lock.levels.values())
    return _OK


def _file_control(pointer: int, operation: int, argument: int) -> int:
    return _NOTFOUND


def _sector_size(pointer: int) -> int:
    return SECTOR_BYTES


def _device_characteristics(pointer: int) -> int:
    return _characteristics


def _shm_map(pointer: int, region: int, size: int, extend: int, out: Any) -> int:
    handle = _handle(pointer)
    if handle.is_dead:
        return _IOERR
    regions = handle.lock.regions
    while len(regions) <= region:
        if not extend:
            out[0] = None
            return _OK
        regions.append(ctypes.create_string_buffer(size))
    out[0] = ctypes.addressof(regions[region])
    return _OK


def _shm_lock(pointer: int, offset: int, count: int, flags: int) -> int:
    handle = _handles[LONG.from_address(pointer + 8).value]
    if handle.is_dead:
        return _IOERR
    lock, own = handle.lock, handle.number
    shared, exclusive = lock.shared, lock.exclusive
    if count == 1:  # nearly always
        held = exclusive[offset]
        if not flags & _SHM_LOCK:
            shared[offset].discard(own)
            if held == own:
                exclusive[offset] = None
            return _OK
        if held is not None and held != own:
            return _BUSY
        if not flags & _SHM_EXCLUSIVE:
            shared[offset].add(own)
            return _OK
        if shared[offset] and shared[offset] != {own}:
            return _BUSY
        exclusive[offset] = own
        return _OK
    wanted = range(offset, offset + count)
    if not flags & _SHM_LOCK:
        for index in wanted:
            shared[index].discard(own)
            if exclusive[index] == own:
                exclusive[index] = None
        return _OK
    for index in wanted:
        if exclusive[index] not in (None, own):
            return _BUSY
        if flags & _SHM_EXCLUSIVE and shared[index] - {own}:
            return _BUSY
    for index in wanted:
        if flags & _SHM_EXCLUSIVE:
            exclusive[index] = own
        else:
            shared[index].add(own)
    return _OK


def _shm_unmap(pointer: int, delete: int) -> int:
    handle = _handle(pointer)
    _release_shm(handle)
    if delete and not handle.is_dead:
        handle.lock.regions = []
    return _OK


def _release_shm(handle: _Handle) -> None:
    for index in range(SHM_LOCKS):
        handle.lock.shared[index].discard(handle.number)
        if handle.lock.exclusive[index] == handle.number:
            handle.lock.exclusive[index] = None
        handle.lock.quick.shared[index] &= ~(1 << handle.slot)
        if handle.lock.quick.exclusive[index] == handle.slot + 1:
            handle.lock.quick.exclusive[index] = 0


# The methods of the VFS.


def _open(vfs: int, name: bytes | None, pointer: int, flags: int, out: Any) -> int:
    global _next_number
    assert name is not None, "temporary files are kept in memory"
    path = name.decode()
    disk = _disk_of(path)
    if disk.is_off:
        return _CANTOPEN
    file = disk.find(path)
    if file is None:
        if not flags & _OPEN_CREATE:
            return _CANTOPEN
        try:
            file = disk.create(path)
        except OSError:
            return _CANTOPEN
    number, _next_number = _next_number, _next_number + 1
    handle = _Handle(number, disk, file, bool(flags & _OPEN_JOURNAL_OR_LOG))
    _handles[number] = handle
    opened = SqliteFile.from_address(pointer)
    opened.number = number
    if isinstance(file.contents, QuickContents):
        opened.bytes = file.contents.pointer
        opened.disk = ctypes.addressof(disk.state)
        opened.lock = ctypes.addressof(handle.lock.quick)
        opened.generation, opened.slot = handle.generation, handle.slot
    opened.pMethods = ctypes.pointer(_methods)
    if out:
        out[0] = flags
    return _OK


def _delete(vfs: int, name: bytes, sync: int) -> int:
    path = name.decode()
    disk = _disk_of(path)
    if disk.is_off:
        return _IOERR_DELETE
    if disk.find(path) is None:
        return _IOERR_DELETE_NOENT
    try:
        disk.remove(path, durably=False)
        if sync:
            disk.sync_folder()
    except OSError:
        return _IOERR_DELETE
    return _OK


def _access(vfs: int, name: bytes, flags: int, out: Any) -> int:
    path = name.decode()
    out[0] = _disk_of(path).find(path) is not None
    return _OK


def _full_pathname(vfs: int, name: bytes, size: int, out: int) -> int:
    ctypes.memmove(out, name + b"\0", len(name) + 1)
    return _OK


def _randomness(vfs: int, size: int, out: int) -> int:
    ctypes.memmove(out, _random.randbytes(size), size)
    return size


def _sleep(vfs: int, microseconds: int) -> int:
    return microseconds


def _current_time(vfs: int, out: Any) -> int:
    out[0] = _JULIAN_1970_MS / 86_400_000
    return _OK


def _last_error(vfs: int, size: int, out: int) -> int:
    return 0


def _current_time_ms(vfs: int, out: Any) -> int:
    out[0] = _JULIAN_1970_MS
    return _OK


def _code(error: OSError, otherwise: int) -> int:
    if isinstance(error, PowerIsOff):
        return otherwise
    return _FULL if error.errno == errno.ENOSPC else otherwise


def _fill(structure: Any, functions: dict[str, Callable[..., Any]]) -> None:
    types = dict(type(structure)._fields_)
    for name, function in functions.items():
        _kept.append(types[name](function))
        setattr(structure, name, _kept[-1])


_methods = Methods(2)
_fill(
    _methods,
    {
        "xClose": _close,
        "xRead": _read,
        "xWrite": _write,
        "xTruncate": _truncate,
        "xSync": _sync,
        "xFileSize": _file_size,
        "xLock": _lock,
        "xUnlock": _unlock,
        "xCheckReservedLock": _check_reserved,
        "xFileControl": _file_control,
        "xSectorSize": _sector_size,
        "xDeviceCharacteristics": _device_characteristics,
        "xShmMap": _shm_map,
        "xShmLock": _shm_lock,
        "xShmUnmap": _shm_unmap,
    },
)
# One thread runs everything, so that a barrier has nothing to do.  A function of the C library that
# takes a word and has no effect is ten times as fast as a Python function.
_methods.xShmBarrier = dict(Methods._fields_)["xShmBarrier"](
    ctypes.cast(ctypes.CDLL(None).labs, POINTER).value
)
if quick is not None:
    # quick.c handles the operations that need no decision.
    for _name, _function in (
        ("xRead", quick.quick_read),
        ("xWrite", quick.quick_write),
        ("xFileSize", quick.quick_file_size),
        ("xFileControl", quick.quick_file_control),
        ("xSectorSize", quick.quick_sector_size),
        ("xDeviceCharacteristics", quick.quick_device_characteristics),
        ("xShmLock", quick.quick_shm_lock),
        ("xShmBarrier", quick.quick_shm_barrier),
    ):
        if _name in ("xRead", "xWrite"):
            _in_python = ctypes.cast(getattr(_methods, _name), POINTER).value
            POINTER.in_dll(quick, f"decide_{_name[1:].lower()}").value = _in_python
        _address = ctypes.cast(_function, POINTER).value
        setattr(_methods, _name, dict(Methods._fields_)[_name](_address))
_vfs = Vfs(2, ctypes.sizeof(SqliteFile), PATH_BYTES_MAX, None, NAME.encode())
_fill(
    _vfs,
    {
        "xOpen": _open,
        "xDelete": _delete,
        "xAccess": _access,
        "xFullPathname": _full_pathname,
        "xRandomness": _randomness,
        "xSleep": _sleep,
        "xCurrentTime": _current_time,
        "xGetLastError": _last_error,
        "xCurrentTimeInt64": _current_time_ms,
    },
)
_registered: list[Any] = []


def _library() -> Any:
    """Return the library that `sqlite3` uses, with this VFS registered.  Raises Unavailable."""
    if not _registered:
        import _sqlite3

        try:
            # The lookup of a symbol includes the libraries that the extension module depends on.
            library = ctypes.CDLL(_sqlite3.__file__)
            register = library.sqlite3_vfs_register
        except (AttributeError, OSError) as error:
            raise Unavailable("SQLite is not a shared library here") from error
        assert register(ctypes.byref(_vfs), 0) == _OK
        _registered.append(library)
    return _registered[0]


def connect(path: str) -> sqlite3.Connection:
    """Open a connection for an inspection."""
    _library()
    return sqlite3.connect(uri(path), uri=True, isolation_level=None)
