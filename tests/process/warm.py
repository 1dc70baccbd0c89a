"""Commands without the start of an interpreter: forks of one process with all imports done.

    python -m tests.process.warm FD

The tests run hundreds of commands; each costs a fork here, and 150 ms as a program.  The fork is a
process of its own with the same code, its own standard streams and exit code.
`tests/process/test_commands.py` nevertheless runs real programs.

"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from tests.patience import END_S

REQUEST_BYTES_MAX = 1 << 20
_CODE = struct.Struct("<i")


class Warm:
    """The client of the warm process, in the tests: `run` can be called from any thread."""

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.process.warm", str(theirs.fileno())],
            cwd=root,
            env=dict(environment),
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def run(
        self, arguments: list[str], *, input: bytes | None, timeout_s: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command as subprocess.run does.  Raises subprocess.TimeoutExpired."""
        with (
            tempfile.TemporaryFile() as stdin,
            tempfile.TemporaryFile() as stdout,
            tempfile.TemporaryFile() as stderr,
        ):
            stdin.write(input or b"")
            stdin.seek(0)
            ours, theirs = socket.socketpair()
            with ours:
                with theirs, self._lock:
                    files = [stdin.fileno(), stdout.fileno(), stderr.fileno(), theirs.fileno()]
                    socket.send_fds(self._socket, [json.dumps(arguments).encode()], files)
                ours.settimeout(timeout_s)
                try:
                    answer = ours.recv(_CODE.size)
                except TimeoutError:
                    raise subprocess.TimeoutExpired(arguments, timeout_s) from None
            code = _CODE.unpack(answer)[0] if answer else -signal.SIGKILL
            stdout.seek(0)
            stderr.seek(0)
            return subprocess.CompletedProcess(arguments, code, stdout.read(), stderr.read())

    def close(self) -> None:
        """Close the socket, which ends the server."""
        self._socket.close()
        self._process.wait(END_S)


def _serve(descriptor: int) -> None:
    import asyncio  # noqa: F401

    import qmd.cli
    import qmd.cli.messages
    import qmd.cli.outgoing
    import qmd.cli.peek
    import qmd.cli.queue
    import qmd.cli.receive
    import qmd.cli.send
    import qmd.cli.status
    import qmd.client
    import qmd.config  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the children are not waited for
    with socket.socket(fileno=descriptor) as requests:
        while True:
            data, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
            if not data:
                return
            if os.fork() == 0:
                requests.detach()
                _command(json.loads(data), files)
            for file in files:
                os.close(file)


def _command(arguments: list[str], files: list[int]) -> NoReturn:
    """Run the command in the child process, report its exit code, and end."""
    code = 70
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for target, file in enumerate(files[:3]):
            os.dup2(file, target)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        code = _run(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os.write(files[3], _CODE.pack(code))
        os._exit(0)


def _run(arguments: list[str]) -> int:
    import traceback

    from qmd.cli import main

    sys.argv = ["qmd", *arguments]
    try:
        main(prog_name="qmd")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
