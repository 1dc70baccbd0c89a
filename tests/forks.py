"""Processes that are forks of one prepared process, which has imported all modules.

A start of `python -m qmd serve` imports modules for half a second; a fork takes 30 ms.  The fork is
a process of its own, with its own standard streams, environment and exit code.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.patience import END_S

ROOT = Path(__file__).resolve().parents[1]
REQUEST_BYTES_MAX = 1 << 20
FILES_MAX = 8

_NUMBER = struct.Struct("<i")
_PR_SET_PDEATHSIG = 1

Request = Mapping[str, Any]


class Process:
    """A fork, with the methods of subprocess.Popen."""

    def __init__(self, status: socket.socket) -> None:
        self.status = status  # becomes readable when the process has ended
        self.returncode: int | None = None
        self.pid = self._number()

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        if self.returncode is None and self._is_readable(0):
            self.wait()
        return self.returncode

    def wait(self, timeout: float = END_S) -> int:
        """Return the exit code; a signal is a negative one.  Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not self._is_readable(timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.returncode = self._number()
            self.status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its status is about to arrive
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _is_readable(self, timeout_s: float) -> bool:
        return bool(select.select([self.status], [], [], timeout_s)[0])

    def _number(self) -> int:
        data = self.status.recv(_NUMBER.size, socket.MSG_WAITALL)
        assert data, "the prepared process is gone"
        return int(_NUMBER.unpack(data)[0])


class PreparedProcess:
    """The prepared process: `python -m MODULE FD`, whose main program calls `serve`."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests = ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                cwd=ROOT,
                env={**environment, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, request: Request, files: Sequence[int] = ()) -> Process:
        """Fork a process that gets the request and the files.  Any thread may call this."""
        ours, theirs = socket.socketpair()
        with theirs:
            data = json.dumps(request).encode()
            socket.send_fds(self._requests, [data], [theirs.fileno(), *files])
        return Process(ours)

    def close(self) -> None:
        """End the prepared process and all its forks."""
        self._requests.close()
        self._process.wait(END_S)


def serve(descriptor: int, be: Callable[[Request, list[int]], NoReturn]) -> None:
    """Fork a process for each request; it calls `be` with the request and its files."""
    # A collection in a fork would copy the memory of all modules, and take as long as the rest of a
    # daemon's start; the daemon collects once, with all that was made before.
    gc.freeze()
    gc.unfreeze = _stay_frozen
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for the keepers
    with socket.socket(fileno=descriptor) as requests:
        for request, (status, *files) in _received(requests):
            if os.fork() == 0:
                requests.close()
                _keep(request, status, files, be)
            for file in (status, *files):
                os.close(file)


def _stay_frozen() -> None:
    pass


def _received(requests: socket.socket) -> Iterator[tuple[Request, list[int]]]:
    while True:
        data, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, FILES_MAX)
        if not data:
            return
        yield json.loads(data), files


def _keep(
    request: Request, status: int, files: list[int], be: Callable[[Request, list[int]], NoReturn]
) -> NoReturn:
    """Start the process, report its id, wait for its end and report its exit code."""
    _end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _end_with_parent()
        be(request, files)
    for file in files:
        os.close(file)
    os.write(status, _NUMBER.pack(pid))
    _, how = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):  # no process waits for it any more
        os.write(status, _NUMBER.pack(os.waitstatus_to_exitcode(how)))
    os._exit(0)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
