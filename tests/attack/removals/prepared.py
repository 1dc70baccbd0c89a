"""Runs of pytest without the start of an interpreter: forks of one process.

    python -m tests.attack.removals.prepared FD

It has imported pytest and the libraries, which take most of the time of a short test, and nothing
of the code: that is imported by each fork from its own folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from tests.forks import PreparedProcess, Request, serve

LIBRARIES = (
    *("pytest", "hypothesis", "sqlite3", "ssl", "asyncio", "uvloop", "msgspec"),
    *("structlog", "click", "construct", "OpenSSL.SSL", "cryptography.x509", "httptools", "jinja2"),
    *("cryptography.hazmat.primitives.asymmetric.ed25519", "unittest.mock", "email.parser"),
)
OWN = ("tests", "qmd", "storage", "protocol", "pipeline")


class Runs(PreparedProcess):
    """The client of the prepared process; any thread may call its methods."""

    def __init__(self) -> None:
        super().__init__("tests.attack.removals.prepared", os.environ)

    def run(
        self, folder: Path, arguments: list[str], environment: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run pytest in a folder, as subprocess.run does.  Raises subprocess.TimeoutExpired."""
        with tempfile.TemporaryFile("w+") as output:
            request = {
                "folder": str(folder),
                "arguments": arguments,
                "environment": {**os.environ, **environment, "PYTHONPATH": str(folder)},
            }
            process = self.start(request, [output.fileno()])
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            output.seek(0)
            return subprocess.CompletedProcess(arguments, code, output.read(), "")


def _be(request: Request, files: list[int]) -> NoReturn:
    """Run pytest, and end."""
    code = 70
    try:
        import pytest

        os.environ.clear()
        os.environ.update(request["environment"])
        os.dup2(files[0], 1)
        os.dup2(files[0], 2)
        os.setsid()
        folder, root = request["folder"], os.getcwd()
        os.chdir(folder)
        sys.path[:] = [folder, *(path for path in sys.path if path not in ("", root))]
        for name in [name for name in sys.modules if name.partition(".")[0] in OWN]:
            del sys.modules[name]
        code = int(pytest.main(request["arguments"]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for library in LIBRARIES:
        with suppress(ImportError):
            import_module(library)
    serve(int(sys.argv[1]), _be)
