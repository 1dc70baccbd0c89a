"""The command line without the start of an interpreter: forks of one process.

    python -m tests.process.warm FD

The tests run thousands of commands and daemons.  The same code runs as in a program;
tests that take `program` in `tests/process/test_commands.py`, and `tests/process/test_process.py`,
run real programs.

"""

from __future__ import annotations

import ctypes
import os
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from typing import IO, NoReturn

from tests.forks import PreparedProcess, Process, Request, serve

#: Modules that daemons import at their start, and commands when they run.
LATER = ("cryptography.hazmat.primitives.asymmetric.ed25519", "encodings.idna", "tomllib")


class Warm(PreparedProcess):
    """The client of the warm process, in the tests; any thread may call its methods."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__("tests.process.warm", environment)

    def spawn(
        self,
        arguments: list[str],
        environment: Mapping[str, str],
        stdin: IO[bytes],
        stdout: IO[bytes],
        stderr: IO[bytes],
        user: int = 0,
    ) -> Process:
        """Start a command with these standard streams, as a user of this id unless it is 0."""
        request = {"arguments": arguments, "environment": dict(environment), "user": user}
        return self.start(request, [stdin.fileno(), stdout.fileno(), stderr.fileno()])

    def run(
        self,
        arguments: list[str],
        environment: Mapping[str, str],
        *,
        input: bytes | None,
        timeout_s: float,
        user: int = 0,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command as subprocess.run does.  Raises subprocess.TimeoutExpired."""
        with (
            tempfile.TemporaryFile() as stdin,
            tempfile.TemporaryFile() as stdout,
            tempfile.TemporaryFile() as stderr,
        ):
            stdin.write(input or b"")
            stdin.seek(0)
            process = self.spawn(arguments, environment, stdin, stdout, stderr, user)
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            stdout.seek(0)
            stderr.seek(0)
            return subprocess.CompletedProcess(arguments, code, stdout.read(), stderr.read())


def _import_all() -> None:
    import qmd.daemon
    import qmd.message.build  # noqa: F401

    for each in LATER:
        import_module(each)
    for package in ("qmd.cli", "qmd.cli.host", "qmd.client", "qmd.config"):
        for module in pkgutil.iter_modules(import_module(package).__path__):
            import_module(f"{package}.{module.name}")


def _be(request: Request, files: list[int]) -> NoReturn:
    """Run the command, and end."""
    code = 70
    try:
        os.environ.clear()
        os.environ.update(request["environment"])
        for target, file in enumerate(files):
            os.dup2(file, target)
            os.close(file)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        if request["user"]:
            _become(request["user"])
        code = _run(request["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _become(user: int) -> None:
    """Connect as this user from now on; files are still opened as root, as modules must be."""
    os.setgroups([])
    os.setegid(user)
    os.seteuid(user)
    ctypes.CDLL(None).setfsuid(0)


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
    _import_all()
    serve(int(sys.argv[1]), _be)
