"""Wait until a program reports to NOTIFY_SOCKET that it is ready."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Callable

from tests.forks import Process
from tests.patience import END_S

Started = subprocess.Popen[bytes] | Process


def wait_ready(start: Callable[[str], Started], tail: Callable[[], str]) -> Started:
    """Start a program with the path of a socket, and wait for its READY=1.

    `tail` returns the end of its log, for the failure.
    """
    with tempfile.TemporaryDirectory(prefix="qmd-notify-") as folder:
        path = f"{folder}/notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(path)
            notify.settimeout(0.25)
            process = start(path)
            deadline = time.monotonic() + END_S
            while time.monotonic() < deadline:
                try:
                    if b"READY=1" in notify.recv(4096).split(b"\n"):
                        return process
                except TimeoutError:
                    if process.poll() is not None:
                        break
    raise AssertionError(f"the program did not start:\n{tail()}")
