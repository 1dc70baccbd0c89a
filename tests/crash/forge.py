"""Real daemons under the shim without the start of an interpreter: forks of one prepared process.

    python -m tests.crash.forge FD

A daemon is `qmd serve` in a process of its own, from its configuration file to its exit code; its
modules are imported already.  Starting it takes 30 ms instead of 400.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from tests.crash import shim
from tests.patience import END_S

REQUEST_BYTES_MAX = 1 << 16
_NUMBER = struct.Struct("<i")
_PR_SET_PDEATHSIG = 1


class Process:
    """A daemon; its status socket becomes readable when it has ended."""

    def __init__(self, status: socket.socket) -> None:
        self.status = status
        self.pid = self._number()
        self._code: int | None = None

    def ended(self, timeout_s: float = 0.0) -> bool:
        if self._code is not None:
            return True
        return bool(select.select([self.status], [], [], timeout_s)[0])

    def wait(self, timeout_s: float = END_S) -> int:
        """Return the exit code; a signal is a negative one.  Raises TimeoutError."""
        if self._code is None:
            if not self.ended(timeout_s):
                raise TimeoutError(f"process {self.pid} has not ended after {timeout_s} s")
            self._code = self._number()
            self.status.close()
        return self._code

    def signal(self, number: int) -> None:
        if not self.ended():
            with contextlib.suppress(
                ProcessLookupError
            ):  # it has ended, and its status is about to arrive
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def _number(self) -> int:
        data = self.status.recv(_NUMBER.size, socket.MSG_WAITALL)
        assert data, "the forge is gone"
        return int(_NUMBER.unpack(data)[0])


class Forge:
    """The prepared process that forks daemons."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests = ours
        dropped = ("QMD_", "NOTIFY_", "LISTEN_", "WATCHDOG_", "SHIM_", "PYTHONASYNCIODEBUG")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.forge", str(theirs.fileno())],
            cwd=shim.ROOT,
            env=kept | {"LD_PRELOAD": str(shim.library()), "PYTHONPATH": str(shim.ROOT)},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def start(
        self, config: Path, log: Path, environment: Mapping[str, str], changes: Sequence[str] = ()
    ) -> Process:
        """Start `qmd serve` with this configuration.

        `changes` are functions of tests/crash/changes.py, which run in it first.
        """
        request = {
            "config": str(config),
            "log": str(log),
            "environment": dict(environment),
            "changes": list(changes),
        }
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._requests, [json.dumps(request).encode()], [theirs.fileno()])
        return Process(ours)

    def close(self) -> None:
        """End the prepared process and all its daemons."""
        self._requests.close()
        self._process.wait(END_S)


def _serve(descriptor: int) -> None:
    import aiosqlite  # noqa: F401
    import structlog  # noqa: F401
    import uvloop  # noqa: F401

    import qmd.config.file
    import qmd.daemon  # noqa: F401
    from tests.crash import changes  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the keepers
    with socket.socket(fileno=descriptor) as requests:
        while True:
            data, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 1)
            if not data:
                return
            if os.fork() == 0:
                requests.close()
                _keep(json.loads(data), files[0])
            os.close(files[0])


def _keep(request: dict[str, object], status: int) -> NoReturn:
    """Start the daemon, report its process id, wait for its end and report its status."""
    _end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _end_with_parent()
        _be(request)
    os.write(status, _NUMBER.pack(pid))
    _, how = os.waitpid(pid, 0)
    os.write(status, _NUMBER.pack(os.waitstatus_to_exitcode(how)))
    os._exit(0)


def _be(request: dict[str, object]) -> NoReturn:
    from qmd.config.file import load_settings
    from qmd.daemon import main
    from tests.crash import changes

    log = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    environment = request["environment"]
    assert isinstance(environment, dict)
    os.environ.update(environment)
    ctypes.CDLL(None).shim_configure()
    names = request["changes"]
    assert isinstance(names, list)
    for name in names:
        getattr(changes, name)()
    sys.exit(main(load_settings(Path(str(request["config"])))))


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
