"""The command line in processes of its own, or in forks of one process that is kept ready."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.patience import END_S
from tests.process.warm import Warm

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "qmd"]


def run(
    arguments: list[str],
    *,
    input: bytes | None = None,
    check: bool = True,
    timeout_s: float = END_S,
    environment: Mapping[str, str] | None = None,
    warm: bool = False,
    user: int = 0,
) -> subprocess.CompletedProcess[bytes]:
    """Run the command line without a daemon of its own.

    As root, a warm process becomes the user with an id other than 0.
    """
    if warm:
        done = warm_process().run(
            arguments,
            {**environment_of_commands(), **(environment or {})},
            input=input,
            timeout_s=timeout_s,
            user=user,
        )
    else:
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=ROOT,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env={**environment_of_commands(), **(environment or {})},
        )
    if check and done.returncode != 0:
        raise AssertionError(
            f"qmd {' '.join(arguments)[:300]} ended with {done.returncode}:\n"
            f"{done.stdout.decode(errors='replace')[-2000:]}"
            f"{done.stderr.decode(errors='replace')[-2000:]}"
        )
    return done


@functools.cache
def warm_process() -> Warm:
    """Return the process whose forks are commands and daemons: one for all tests."""
    warm = Warm(environment_of_commands())
    atexit.register(warm.close)
    return warm


def environment_of_commands() -> dict[str, str]:
    """Return the environment without variables that change a command."""
    dropped = ("QMD_", "NOTIFY_SOCKET", "LISTEN_", "WATCHDOG_", "PYTHONASYNCIODEBUG")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
