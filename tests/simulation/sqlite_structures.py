"""The C structures of SQLite's VFS interface, declared with ctypes.

https://sqlite.org/c3ref/vfs.html, https://sqlite.org/c3ref/io_methods.html
"""

from __future__ import annotations

import ctypes

SHM_LOCKS = 8

INT, LONG, POINTER, STRING = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
_FUNCTION = ctypes.CFUNCTYPE


class Methods(ctypes.Structure):
    _fields_ = [
        ("iVersion", INT),
        ("xClose", _FUNCTION(INT, POINTER)),
        ("xRead", _FUNCTION(INT, POINTER, POINTER, INT, LONG)),
        ("xWrite", _FUNCTION(INT, POINTER, POINTER, INT, LONG)),
        ("xTruncate", _FUNCTION(INT, POINTER, LONG)),
        ("xSync", _FUNCTION(INT, POINTER, INT)),
        ("xFileSize", _FUNCTION(INT, POINTER, ctypes.POINTER(LONG))),
        ("xLock", _FUNCTION(INT, POINTER, INT)),
        ("xUnlock", _FUNCTION(INT, POINTER, INT)),
        ("xCheckReservedLock", _FUNCTION(INT, POINTER, ctypes.POINTER(INT))),
        ("xFileControl", _FUNCTION(INT, POINTER, INT, POINTER)),
        ("xSectorSize", _FUNCTION(INT, POINTER)),
        ("xDeviceCharacteristics", _FUNCTION(INT, POINTER)),
        ("xShmMap", _FUNCTION(INT, POINTER, INT, INT, INT, ctypes.POINTER(POINTER))),
        ("xShmLock", _FUNCTION(INT, POINTER, INT, INT, INT)),
        ("xShmBarrier", _FUNCTION(None, POINTER)),
        ("xShmUnmap", _FUNCTION(INT, POINTER, INT)),
    ]


class SqliteFile(ctypes.Structure):
    """An open file: SQLite reads the first field, vfs.py the second, quick.c the others."""

    _fields_ = [
        ("pMethods", ctypes.POINTER(Methods)),
        ("number", LONG),
        ("bytes", POINTER),
        ("disk", POINTER),
        ("lock", POINTER),
        ("generation", ctypes.c_int32),
        ("slot", ctypes.c_int32),
    ]


class Vfs(ctypes.Structure):
    _fields_ = [
        ("iVersion", INT),
        ("szOsFile", INT),
        ("mxPathname", INT),
        ("pNext", POINTER),
        ("zName", STRING),
        ("pAppData", POINTER),
        ("xOpen", _FUNCTION(INT, POINTER, STRING, POINTER, INT, ctypes.POINTER(INT))),
        ("xDelete", _FUNCTION(INT, POINTER, STRING, INT)),
        ("xAccess", _FUNCTION(INT, POINTER, STRING, INT, ctypes.POINTER(INT))),
        ("xFullPathname", _FUNCTION(INT, POINTER, STRING, INT, POINTER)),
        ("xDlOpen", POINTER),
        ("xDlError", POINTER),
        ("xDlSym", POINTER),
        ("xDlClose", POINTER),
        ("xRandomness", _FUNCTION(INT, POINTER, INT, POINTER)),
        ("xSleep", _FUNCTION(INT, POINTER, INT)),
        ("xCurrentTime", _FUNCTION(INT, POINTER, ctypes.POINTER(ctypes.c_double))),
        ("xGetLastError", _FUNCTION(INT, POINTER, INT, POINTER)),
        ("xCurrentTimeInt64", _FUNCTION(INT, POINTER, ctypes.POINTER(LONG))),
    ]


class QuickLock(ctypes.Structure):
    """The locks of the write-ahead log's index, as quick.c stores them."""

    _fields_ = [
        ("shared", ctypes.c_uint64 * SHM_LOCKS),
        ("exclusive", ctypes.c_int32 * SHM_LOCKS),
    ]
