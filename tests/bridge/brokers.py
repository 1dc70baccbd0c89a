"""Real brokers in processes of their own, which can be killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.patience import END_S
from tests.process.harness import free_port

# The queues that clients of AMQP 1.0 declare themselves do not survive a restart of the broker.
QUEUES = [
    {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    for name in ("shop-out", "shop-in")
]
DEFINITIONS: dict[str, Any] = {
    "vhosts": [{"name": "/"}],
    "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
    "permissions": [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    ],
    "queues": QUEUES,
}
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class Broker:
    """A server with a folder and a port of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        folder.mkdir(parents=True)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start it, and wait until it listens."""
        raise NotImplementedError

    def _spawn(self, arguments: list[str], environment: dict[str, str] | None = None) -> None:
        with (self.folder / "log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    arguments,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **(environment or {})},
                    start_new_session=True,
                )
            )

    def _wait(self) -> None:
        deadline = time.monotonic() + END_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            log = (self.folder / "log").read_text(errors="replace")
            assert time.monotonic() < deadline, log
            assert self._processes[-1].poll() is None, log
            time.sleep(0.05)

    def kill(self) -> None:
        """Send SIGKILL to it and to its children."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes = []
        with contextlib.suppress(OSError):
            while True:  # children end a little later
                socket.create_connection(("127.0.0.1", self.port)).close()

    def restart(self) -> None:
        self.kill()
        self.start()


class NatsServer(Broker):
    """NATS with JetStream, on disk."""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        program = shutil.which("nats-server")
        if program is None:
            pytest.skip("nats-server is not installed")
        store = str(self.folder / "store")
        address = ["--addr", "127.0.0.1", "--port", str(self.port)]
        self._spawn([program, "--jetstream", "--store_dir", store, *address])
        self._wait()


class RabbitServer(Broker):
    """RabbitMQ with its plugin for AMQP 1.0."""

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    def start(self) -> None:
        if not RABBITMQ.exists():
            pytest.skip("rabbitmq-server is not installed")
        names, distribution = free_port(), free_port()
        (self.folder / "plugins").write_text("[rabbitmq_amqp1_0].")
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\namqp1_0.default_user = guest\n"
            f"load_definitions = {self.folder}/definitions.json\n"
        )
        (self.folder / "definitions.json").write_text(json.dumps(DEFINITIONS))
        self._spawn(["epmd", "-port", str(names), "-address", "127.0.0.1"])
        self._spawn(
            [str(RABBITMQ)],
            {
                "HOME": str(self.folder),
                "ERL_EPMD_PORT": str(names),
                "RABBITMQ_DIST_PORT": str(distribution),
                "RABBITMQ_NODENAME": f"bridge{self.port}@localhost",
                "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
                "RABBITMQ_MNESIA_BASE": str(self.folder / "db"),
                "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
                "RABBITMQ_PID_FILE": str(self.folder / "pid"),
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none",
                "RABBITMQ_LOGS": "-",
            },
        )
        self._wait()
