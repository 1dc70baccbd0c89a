"""A door for AMQP in a process of its own, beside a daemon."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.amqp.proxies import Gate
from tests.forks import Process
from tests.patience import END_S
from tests.process.command_line import COMMAND, ROOT, environment_of_commands, warm_process
from tests.process.harness import Daemon, Hosts, free_port


class AmqpDoor:
    """`qmd door amqp` for a daemon; it can be killed and started again at the same port."""

    def __init__(self, daemon: Daemon, control: Path | None = None) -> None:
        """`control`: the socket to reach the daemon at, instead of its own."""
        self.daemon = daemon
        self._control = control
        self.port = free_port()
        self.tls_port = free_port()
        self.log = daemon.folder.with_name(daemon.folder.name + ".amqp.log")
        self.process: subprocess.Popen[bytes] | Process | None = None

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    def start(self) -> AmqpDoor:
        """Start the door, and wait until it listens."""
        assert self.process is None, "it is running"
        with tempfile.TemporaryDirectory(prefix="qmd-notify-") as folder:
            path = f"{folder}/notify"
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
                notify.bind(path)
                notify.settimeout(0.25)
                environment = {
                    **environment_of_commands(),
                    "NOTIFY_SOCKET": path,
                    "QMD_AMQP_PORT": str(self.port),
                    "QMD_AMQP_TLS_PORT": str(self.tls_port),
                }
                if self._control is not None:
                    environment["QMD_CONTROL_SOCKET"] = str(self._control)
                self.process = self._spawn(environment)
                self._wait_ready(notify)
        return self

    def _spawn(self, environment: dict[str, str]) -> subprocess.Popen[bytes] | Process:
        arguments = ["--config", str(self.daemon.config), "door", "amqp"]
        with self.log.open("ab") as log, open(os.devnull, "rb") as nothing:
            if self.daemon.warm:
                return warm_process().spawn(arguments, environment, nothing, log, log)
            return subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=ROOT, stdin=nothing, stdout=log, stderr=log, env=environment,
            )  # fmt: skip

    def _wait_ready(self, notify: socket.socket) -> None:
        assert self.process is not None
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline:
            try:
                if b"READY=1" in notify.recv(4096):
                    return
            except TimeoutError:
                if self.process.poll() is not None:
                    break
        raise AssertionError(f"the door did not start:\n{self.tail()}")

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> AmqpDoor:
        self.kill()
        return self.start()

    def terminate(self) -> int:
        """Send SIGTERM; return the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(END_S)
        self.process = None
        return code

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def memory_bytes(self) -> int:
        """The resident memory of the process."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""


@contextlib.contextmanager
def gated_door_of(
    hosts: Hosts, *queues: str, transactional: tuple[str, ...] = ()
) -> Iterator[tuple[AmqpDoor, Gate]]:
    """Start a daemon and a door, with a gate in the way of the answers to the door."""
    daemon = hosts.daemon()
    _create(daemon, queues, transactional)
    gate = Gate(daemon.folder)
    door = AmqpDoor(daemon, gate.path)
    try:
        yield door.start(), gate
        assert door.alive, door.tail()
        assert "amqp_client_failed" not in door.tail(), door.tail()
    finally:
        door.kill()
        gate.close()


@contextlib.contextmanager
def door_of(
    hosts: Hosts, *queues: str, transactional: tuple[str, ...] = (), **settings: Mapping[str, Any]
) -> Iterator[AmqpDoor]:
    """Start a daemon with queues that all clients may use, and a door for it."""
    daemon = hosts.daemon(**settings)
    _create(daemon, queues, transactional)
    door = AmqpDoor(daemon)
    try:
        yield door.start()
        assert door.alive, door.tail()
        assert "amqp_client_failed" not in door.tail(), door.tail()
    finally:
        door.kill()


def _create(daemon: Daemon, queues: tuple[str, ...], transactional: tuple[str, ...]) -> None:
    daemon.create(*queues)
    daemon.create(*transactional, transactional=True)
    for queue in (*queues, *transactional):
        daemon.cli("acl", "grant", "anonymous", "full", queue)


def program_missing(name: str) -> bool:
    """Return whether a program is not installed."""
    return not any(
        os.access(Path(folder) / name, os.X_OK)
        for folder in os.environ.get("PATH", "").split(os.pathsep)
    )
