"""Import of structlog without the parts that a process that serves does not use.

It loads `rich` for tracebacks in colors, and `greenlet` for its old thread-local contexts; `rich`
alone takes 5 MB of memory.  Its own modules for terminals, for `logging`, tests and Twisted, with
json and pickle, take another megabyte.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import ExitStack

from qmd.runtime.lean_imports import hidden, placeholder

OPTIONAL = ("rich", "greenlet")
#: Modules that structlog imports and that lines of JSON do not need.
UNUSED = ("dev", "stdlib", "testing", "threadlocal", "tracebacks", "twisted")


def load() -> None:
    """Import structlog, which finds none of its optional packages.

    They, and the other parts, can be imported afterwards.  Until `configure` is called, structlog
    writes plain lines.  Does nothing if structlog is imported already.
    """
    if "structlog" in sys.modules:
        return
    with ExitStack() as left_out:
        for name in OPTIONAL:
            left_out.enter_context(hidden(name))
        for name in ("json", "pickle", *(f"structlog.{each}" for each in UNUSED)):
            left_out.enter_context(placeholder(name, has_instances=True))
        structlog = importlib.import_module("structlog")
    for name in UNUSED:
        vars(structlog).pop(name, None)
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
