"""Import of structlog without the packages that it loads if they are installed.

It loads `rich` for tracebacks in colors, and `greenlet` for its old thread-local contexts.  A
process that serves uses neither, and `rich` alone takes 5 MB of its memory.
"""

from __future__ import annotations

import importlib
import sys

OPTIONAL = ("rich", "greenlet")


def load() -> None:
    """Import structlog, which finds none of its optional packages.

    They can be imported afterwards.  Does nothing if structlog is imported already.
    """
    if "structlog" in sys.modules:
        return
    hidden = [name for name in OPTIONAL if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # an import raises ImportError
    try:
        importlib.import_module("structlog")
    finally:
        for name in hidden:
            del sys.modules[name]
