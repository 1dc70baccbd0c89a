"""An S3-compatible server on loopback: the server of moto, a process of its own.

It keeps its objects in memory and answers requests as S3 does, conditional writes included.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from tests.patience import END_S
from tests.process.harness import free_port


class S3:
    """`with S3(folder) as s3:` has a server; `s3.environment` leads programs to it."""

    def __init__(self, folder: Path, *, address: str = "") -> None:
        """`address`: the one that another object chose, for programs that run already."""
        self.folder = folder
        self.port = int(address.rpartition(":")[2]) if address else free_port()
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
            # No other account, no file of the user and no metadata service has a say.
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> S3:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "s3.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + END_S
        while True:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 1),
            ):
                return self
            if time.monotonic() > deadline or self._process.poll() is not None:
                self._stop()
                raise AssertionError((self.folder / "s3.log").read_text(errors="replace")[-3000:])
            time.sleep(0.1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
