"""Import of the daemon's libraries without the parts that its configuration does not use.

asyncio and uvloop load `ssl`, hashlib loads the hash functions of OpenSSL, and both load OpenSSL:
5 MB of the memory of an idle daemon.  Without `ssl`, asyncio works as in a Python that was built
without OpenSSL.  Python has implementations of its own of the hash functions; those of short texts,
as ours are, are as quick.

Sessions over TLS use the OpenSSL of the package cryptography, which is loaded on first use.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmd.config.settings import Settings

#: The implementations of hash functions in Python itself.
_OWN_HASHES = (
    *("_blake2", "_md5", "_sha1", "_sha3"),
    *(("_sha2",) if sys.version_info >= (3, 12) else ("_sha256", "_sha512")),
)


def needs_tls(settings: Settings) -> bool:
    """Return whether the daemon hands TLS to asyncio: remote control, or a domain controller."""
    return settings.remote.enabled or settings.directory.kind == "active-directory"


def load(*, tls: bool) -> None:
    """Import msgspec, asyncio, uvloop and hashlib; without `tls`, without OpenSSL.

    Everything that is left out can be imported afterwards, but asyncio and uvloop then still accept
    no `ssl.SSLContext`.  Does nothing for a library that is imported already.
    """
    with _hidden("typing_extensions"):  # msgspec uses it for annotations that no type of ours has
        importlib.import_module("msgspec")
    if tls or "ssl" in sys.modules or "asyncio" in sys.modules:
        return
    if all(name in sys.builtin_module_names or find_spec(name) for name in _OWN_HASHES):
        with _hidden("_hashlib"):
            importlib.import_module("hashlib")
            importlib.import_module("hmac")
    with _hidden("ssl"):
        importlib.import_module("asyncio")
    sys.modules["ssl"] = _NoTls("ssl")
    try:
        importlib.import_module("uvloop")
    finally:
        del sys.modules["ssl"]


@contextlib.contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Let an import of this module raise ImportError, unless it is imported already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


class _Missing(Exception):
    def __init__(self, *_: object) -> None:
        raise RuntimeError("this process has loaded asyncio without TLS")


class _NoTls(ModuleType):
    """A module `ssl`: its classes have no instances, and its constants are 0.

    uvloop takes the names that it needs when it is imported, and compares the classes of its
    arguments with them.
    """

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0 if name.isupper() else type(name, (_Missing,), {})
