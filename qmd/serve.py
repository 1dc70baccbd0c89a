"""The process of a queue manager, from its configuration on: libraries, standby, doors."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from qmd.runtime import lean_imports, plain_structlog

if TYPE_CHECKING:
    from qmd.config.settings import Settings


def serve(path: Path, read: Callable[[], Settings], *, doors: bool, standby: bool) -> int:
    """Run the queue manager of the configuration at `path`, which `read` reads.

    Returns the exit code.  With `doors`, the enabled doors run in processes of their own; with
    `standby`, the daemon waits until no other one has the data folder.

    Raises ConfigError before anything has begun.
    """
    settings = read()
    # Modules create objects that stay: going through them takes a tenth of the start.
    gc.disable()
    # A standby reads the configuration again when it takes over.
    lean_imports.load(tls=standby or lean_imports.needs_tls(settings))
    plain_structlog.load()
    from qmd.daemon import main

    gc.freeze()
    gc.enable()
    early: list[int] = []
    run = partial(main, settings, read, early)
    if standby:
        from qmd.runtime.log import set_up_logging
        from qmd.standby import serve_as_standby

        set_up_logging(settings.log.level, settings.log.format)
        run = partial(serve_as_standby, settings, read, early)
    else:
        # As the default, the signal would end a daemon that starts.
        signal.signal(signal.SIGHUP, lambda number, _: early.append(number))
    if not doors:
        return run()
    from qmd.doors.supervisor import start, stop

    supervisor = start(path, "door", "all")  # before there is a second thread
    try:
        return run()
    finally:
        stop(supervisor)
