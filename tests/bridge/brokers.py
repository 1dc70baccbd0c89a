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
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

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
    "users": [
        {"name": "guest", "password": "guest", "tags": "administrator"},
        {"name": "bridge", "password": "", "tags": ""},  # it has a certificate
    ],
    "permissions": [
        {"user": user, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
        for user in ("guest", "bridge")
    ],
    "queues": QUEUES,
}
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class Tls(NamedTuple):
    """The files of a server, which also asks clients for certificates of its authority."""

    authority: Path
    certificate: Path
    key: Path


class Broker:
    """A server with a folder and a port of its own."""

    def __init__(self, folder: Path, tls: Tls | None = None) -> None:
        self.folder = folder
        self.tls = tls
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
            assert not self._processes or self._processes[-1].poll() is None, log
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
        config = ["--config", str(file)] if (file := self.folder / "nats.conf").exists() else []
        if self.tls is not None:
            config += ["--tlsverify", "--tlscacert", str(self.tls.authority)]
            config += ["--tlscert", str(self.tls.certificate), "--tlskey", str(self.tls.key)]
        self._spawn([program, "--jetstream", "--store_dir", store, *address, *config])
        self._wait()


class KafkaServer(Broker):
    """A server of Kafka's protocol; SIGTERM makes it save its records, which a kill may lose."""

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        package = find_spec("noida_db")
        if package is None or package.origin is None:
            pytest.skip("noida-db is not installed")
        binary = Path(package.origin).with_name("noida-db")
        binary.chmod(binary.stat().st_mode | 0o111)
        store = ["--data-dir", str(self.folder / "store"), "--host", "127.0.0.1"]
        self._spawn(
            [str(binary), "start", *store, "--only", "kafka", "--kafka-port", str(self.port)]
        )
        self._wait()

    def stop(self) -> None:
        """End it in order, so that it saves everything."""
        for process in self._processes:
            process.terminate()
            process.wait(END_S)
        self._processes = []


class RabbitServer(Broker):
    """RabbitMQ with its plugin for AMQP 1.0."""

    @property
    def url(self) -> str:
        return f"{'amqps' if self.tls else 'amqp'}://127.0.0.1:{self.port}"

    def start(self) -> None:
        if not RABBITMQ.exists():
            pytest.skip("rabbitmq-server is not installed")
        names, distribution = free_port(), free_port()
        (self.folder / "plugins").write_text("[rabbitmq_amqp1_0, rabbitmq_auth_mechanism_ssl].")
        listener = f"listeners.tcp.1 = 127.0.0.1:{self.port}\namqp1_0.default_user = guest\n"
        (self.folder / "rabbitmq.conf").write_text(
            (listener if self.tls is None else _listener_of_tls(self.tls, self.port))
            + f"load_definitions = {self.folder}/definitions.json\n"
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


def _listener_of_tls(tls: Tls, port: int) -> str:
    """Return the lines for a listener that takes the name of a user from its certificate."""
    return "\n".join(
        (
            "listeners.tcp = none",
            f"listeners.ssl.1 = 127.0.0.1:{port}",
            f"ssl_options.cacertfile = {tls.authority}",
            f"ssl_options.certfile = {tls.certificate}",
            f"ssl_options.keyfile = {tls.key}",
            "ssl_options.verify = verify_peer",
            "ssl_options.fail_if_no_peer_cert = true",
            "auth_mechanisms.1 = EXTERNAL",
            "auth_mechanisms.2 = PLAIN",
            "ssl_cert_login_from = common_name",
            "",
        )
    )
