"""Folders and stores by their address: everything that fsspec knows.

The libraries of stores raise errors of their own types, often without the address.  `store_at`
returns a file system that raises StoreFailed instead, which is one sentence.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

_CHARACTERS_MAX = 500  # of the reason


class StoreUnknown(Exception):
    """The address cannot be used: a library is missing, or fsspec does not know it."""


class StoreFailed(OSError):
    """A store did not answer, or refused a request; the text has its address and its reason."""


class Store(NamedTuple):
    """A file system, and the path in it that an address names."""

    system: Any
    root: str  # without a slash at the end
    is_local: bool


def store_at(where: str) -> Store:
    """Return the file system of an address: a path, or a URL.  Raises StoreUnknown."""
    import fsspec

    if not where.strip():
        raise StoreUnknown("the address of a folder is empty")
    try:
        system, root = fsspec.core.url_to_fs(where)
    except (ImportError, ValueError) as error:
        raise StoreUnknown(f"{where} cannot be used: {error}") from error
    protocols = (system.protocol,) if isinstance(system.protocol, str) else system.protocol
    is_local = bool({"file", "local"} & set(protocols))
    root = str(root).rstrip("/") or ("/" if is_local else "")
    return Store(system if is_local else _Reporting(system, where), root, is_local)


class _Reporting:
    """A file system of fsspec that names its address in all errors but those about one file."""

    def __init__(self, system: Any, where: str) -> None:
        self._system = system
        self._where = where

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copies and pickles ask before there is a system
            raise AttributeError(name)
        found = getattr(self._system, name)
        return self._reporting(found) if callable(found) else found

    def _reporting(self, method: Any) -> Any:
        @functools.wraps(method)
        def called(*args: Any, **named: Any) -> Any:
            try:
                return method(*args, **named)
            except (FileNotFoundError, FileExistsError, NotImplementedError):
                raise
            except Exception as error:  # each library has its own types
                reason = " ".join((str(error) or repr(error)).split())[:_CHARACTERS_MAX]
                raise StoreFailed(f"{self._where}: {reason}") from error

        return called
