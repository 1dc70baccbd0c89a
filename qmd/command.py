"""The command `qmd`, as a program.

The daemon is started without the library of the command line, 1 MB that it would keep: if the
arguments are those of `qmd serve` alone.  All others, and all errors, are for `qmd.cli`.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import NamedTuple

# With these, the command line has more to do.
_VARIABLES = ("QMD_HOST", "_QMD_COMPLETE")


class Serve(NamedTuple):
    """The arguments of `qmd --config FILE serve [--doors] [--standby]`."""

    config: Path
    doors: bool
    standby: bool


def main() -> int | None:
    """Run the command of this process's arguments; return its exit code, or end the process."""
    given = read(sys.argv[1:])
    if given is not None:
        return _serve(given)
    ended: list[int] = []
    # Registered before all other functions, it is called after them.
    atexit.register(_leave, ended)
    from qmd.cli import main as run

    try:
        return run()  # type: ignore[no-any-return]
    except SystemExit as end:
        if isinstance(end.code, int):
            ended.append(end.code)
        raise


def _leave(ended: list[int]) -> None:
    """End a process that has loaded Arrow with its exit code, without the interpreter's last steps.

    The interpreter stops threads that are in native code by an exception that must not pass through
    code of C++: now and then one of Arrow's threads turned a well-ended command into an abort.
    """
    if not ended or "pyarrow" not in sys.modules:
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return  # the interpreter reports it
    os._exit(ended[0])


def read(arguments: list[str]) -> Serve | None:
    """Return the arguments if they are those of a daemon, spelled in full, and None for others."""
    named = os.environ.get("QMD_CONFIG", "")
    if arguments[:1] == ["--config"]:
        named, arguments = "".join(arguments[1:2]), arguments[2:]
    if not named or any(os.environ.get(name) for name in _VARIABLES):
        return None
    if arguments[:1] != ["serve"] or not {"--doors", "--standby"}.issuperset(arguments[1:]):
        return None
    if not Path(named).is_file():
        return None
    return Serve(Path(named), "--doors" in arguments, "--standby" in arguments)


def _serve(given: Serve) -> int:
    from qmd.runtime.lean_imports import load_dataclasses

    load_dataclasses()
    from qmd.config.file import load_settings
    from qmd.runtime import standard_streams
    from qmd.serve import serve

    standard_streams.open_closed()
    standard_streams.escape()
    try:
        return serve(
            given.config,
            lambda: load_settings(given.config),
            doors=given.doors,
            standby=given.standby,
        )
    except (Exception, KeyboardInterrupt) as error:
        from qmd.cli.program import end_with

        end_with(error)
