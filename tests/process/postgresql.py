"""A PostgreSQL server in a folder of its own, on a Unix socket."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.patience import END_S

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def initdb() -> str | None:
    """Return the path of initdb; None when PostgreSQL is not installed."""
    return shutil.which("initdb", path=os.pathsep.join([*map(str, BINARIES), os.environ["PATH"]]))


class Server:
    """A server with `start` and `kill`, which can be repeated; `close` removes it."""

    def __init__(self) -> None:
        found = initdb()
        assert found is not None
        self._binaries = Path(found).resolve().parent
        self.folder = Path(tempfile.mkdtemp(prefix="qmd-postgresql-"))
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:  # which PostgreSQL refuses to be
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "qmd", "--no-sync")

    @property
    def dsn(self) -> str:
        return f"host={self.folder} user=qmd dbname=postgres"

    def start(self) -> Server:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._binaries / "postgres"),
                    *("-D", str(self._data)),
                    *("-c", "listen_addresses=", "-c", f"unix_socket_directories={self.folder}"),
                    *("-c", "max_prepared_transactions=100"),
                ],
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd="/",
                **self._user,
            )
        import psycopg

        deadline = time.monotonic() + END_S
        while True:
            try:
                psycopg.connect(self.dsn).close()
                return self
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill the server at once with all of its child processes, as a crash does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)  # mode "immediate": the next start recovers
        self._process.wait(END_S)
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._binaries / program), *arguments],
            check=True,
            capture_output=True,
            cwd="/",
            **self._user,
        )
