"""Real daemons under the shim: forks of one prepared process.

    python -m tests.crash.forge FD

A daemon is `qmd serve` in a process of its own, from its configuration file to its exit code.

"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from tests.crash import shim
from tests.forks import PreparedProcess, Process, Request, serve


class Forge(PreparedProcess):
    """The prepared process that forks daemons."""

    def __init__(self) -> None:
        dropped = ("QMD_", "NOTIFY_", "LISTEN_", "WATCHDOG_", "SHIM_", "PYTHONASYNCIODEBUG")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        super().__init__("tests.crash.forge", kept | {"LD_PRELOAD": str(shim.library())})

    def start_daemon(
        self, config: Path, log: Path, environment: Mapping[str, str], changes: Sequence[str] = ()
    ) -> Process:
        """Start `qmd serve` with this configuration.

        `changes` are functions of tests/crash/changes.py, which run in it first.
        """
        request = {
            "config": str(config),
            "environment": dict(environment),
            "changes": list(changes),
        }
        with log.open("ab") as output:
            return self.start(request, [output.fileno()])


def _import_all() -> None:
    import aiosqlite  # noqa: F401
    import structlog  # noqa: F401
    import uvloop  # noqa: F401

    import qmd.config.file
    import qmd.daemon  # noqa: F401
    from tests.crash import changes  # noqa: F401


def _be(request: Request, files: list[int]) -> NoReturn:
    """Run the daemon, and end."""
    from qmd.config.file import load_settings
    from qmd.daemon import main
    from tests.crash import changes

    (log,) = files
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.update(request["environment"])
    ctypes.CDLL(None).shim_configure()
    for name in request["changes"]:
        getattr(changes, name)()
    sys.exit(main(load_settings(Path(request["config"]))))


if __name__ == "__main__":
    _import_all()
    serve(int(sys.argv[1]), _be)
