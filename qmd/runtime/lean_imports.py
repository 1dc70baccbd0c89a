"""Import of the daemon's libraries without the parts that its configuration does not use.

asyncio and uvloop load `ssl`, hashlib loads the hash functions of OpenSSL, and both load OpenSSL:
5 MB of the memory of an idle daemon.  Without `ssl`, asyncio works as in a Python that was built
without OpenSSL.  Python has implementations of its own of the hash functions; those of short texts,
as ours are, are as quick.

Sessions over TLS use the OpenSSL of the package cryptography, which is loaded on first use.

Modules that a library imports for rare cases are imported when such a case occurs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
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


def load_dataclasses() -> None:
    """Import dataclasses and inspect without the parsers of Python's source.

    inspect uses them for source, and for signatures of functions in C.
    """
    with _on_use("tokenize"), _on_use("ast", NodeVisitor=_NodeVisitor):
        importlib.import_module("dataclasses")


def load(*, tls: bool) -> None:
    """Import msgspec, asyncio, uvloop and hashlib; without `tls`, without OpenSSL.

    Everything that is left out can be imported afterwards, but asyncio and uvloop then still accept
    no `ssl.SSLContext`, and msgspec no `Decimal`.  Does nothing for a library that is imported
    already.
    """
    # msgspec uses typing_extensions for annotations that no type of ours has, and decimal numbers
    # are in none of our values.  uuid asks for the name of the system.
    with (
        hidden("typing_extensions"),
        _on_use("platform", system=lambda: os.uname().sysname),
        placeholder("decimal"),
        _on_use("msgspec.inspect", "msgspec.toml", "msgspec.yaml"),
    ):
        importlib.import_module("msgspec")
    if tls or "ssl" in sys.modules or "asyncio" in sys.modules:
        return
    if all(name in sys.builtin_module_names or find_spec(name) for name in _OWN_HASHES):
        with hidden("_hashlib"):
            importlib.import_module("hashlib")
            importlib.import_module("hmac")
    # subprocess needs locale for pipes of text, and asyncio its own TLS for contexts of TLS.
    with _on_use("locale", "asyncio.sslproto"):
        with hidden("ssl"):
            importlib.import_module("asyncio")
        with placeholder("ssl"):
            importlib.import_module("uvloop")


@contextlib.contextmanager
def hidden(name: str) -> Iterator[None]:
    """Let an import of this module raise ImportError, unless it is imported already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


@contextlib.contextmanager
def placeholder(name: str, *, has_instances: bool = False) -> Iterator[None]:
    """Let imports find a module without contents, unless this one is imported already.

    Libraries take the names that they need when they are imported, and compare the classes of
    their arguments with them.  Its constants are 0, and its classes have no instances, or, with
    `has_instances`, some that cannot be called.
    """
    with _stand_in(_Placeholder(name, _Uncalled if has_instances else _Missing)):
        yield


@contextlib.contextmanager
def _on_use(*names: str, **contents: object) -> Iterator[None]:
    """Let `import name` bind a module that is imported when one of its names is used.

    `from name import ...` uses it; `contents` are names that do not.  Modules that are imported
    already stay.
    """
    with contextlib.ExitStack() as stand_ins:
        for name in names:
            module = _OnUse(name)
            vars(module).update(contents)
            stand_ins.enter_context(_stand_in(module))
        yield


@contextlib.contextmanager
def _stand_in(module: ModuleType) -> Iterator[None]:
    name = module.__name__
    if name in sys.modules:
        yield
        return
    sys.modules[name] = module
    try:
        yield
    finally:
        if sys.modules.get(name) is module:
            del sys.modules[name]


class _OnUse(ModuleType):
    """A module that is imported when one of its names is used."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        found = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, found)
        return found


class _NodeVisitor:
    """The base of inspect's visitor of nodes: has the methods of `ast.NodeVisitor`."""

    def __getattr__(self, name: str) -> object:
        return getattr(importlib.import_module("ast").NodeVisitor, name).__get__(self)


class _Missing(Exception):
    def __init__(self, *_: object, **__: object) -> None:
        raise _left_out(self)


class _Uncalled(Exception):
    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *_: object, **__: object) -> None:
        raise _left_out(self)


def _left_out(instance: object) -> RuntimeError:
    name = type(instance).__module__
    return RuntimeError(f"this process has loaded its libraries without the module {name}")


class _Placeholder(ModuleType):
    """A module that has a class, or a constant, for each name."""

    def __init__(self, name: str, base: type) -> None:
        super().__init__(name)
        self._base = base

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return 0 if name.isupper() else type(name, (self._base,), {"__module__": self.__name__})
