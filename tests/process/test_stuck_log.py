"""A log without a reader: the daemon serves, obeys a stop, and counts the lines that it drops."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import END_S
from tests.process.command_line import ROOT, environment_of_commands
from tests.process.harness import Daemon, Hosts


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    return hosts.daemon(start=False, log={"level": "info", "format": "json"})


def started(daemon: Daemon, log: int) -> subprocess.Popen[bytes]:
    """Serve with a pipe as the log, and wait for the control socket."""
    command = [sys.executable, "-m", "qmd", "--config", str(daemon.config), "serve"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=log, env=environment_of_commands())
    socket = Path(daemon.config).parent / "qmd.sock"
    while not socket.exists():
        assert process.poll() is None
    return process


def make_lines(daemon: Daemon, count: int) -> None:
    """Write two lines to the log per number: a queue is created, and deleted."""
    script = f"""
from qmd.client import blocking
with blocking.connect({str(daemon.config.parent / "qmd.sock")!r}) as qm:
    for number in range({count}):
        qm.create_queue("private$\\\\" + "q" * 100 + str(number))
        qm.delete_queue("private$\\\\" + "q" * 100 + str(number))
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=END_S)


def test_an_unread_log_blocks_neither_work_nor_a_stop(daemon: Daemon):
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    process = started(daemon, writer)
    os.close(writer)
    try:
        make_lines(daemon, 200)
        assert daemon.cli("status").returncode == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 0
    finally:
        process.kill()
        os.close(reader)
