"""A real HTTP door in a process of its own, and a client of it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from qmd.access.tokens import create
from tests.forks import Process
from tests.patience import END_S
from tests.process.command_line import COMMAND, ROOT, environment_of_commands, warm_process
from tests.process.harness import Daemon, free_port


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    content: bytes


class HttpDoor:
    """A door of a daemon, which can be killed and restarted at the same port."""

    name = "http"

    def __init__(self, daemon: Daemon, **settings: Any) -> None:
        self.daemon = daemon
        self.port = free_port()
        self.log = daemon.folder.with_name(f"{daemon.folder.name}-{self.name}.log")
        self.process: subprocess.Popen[bytes] | Process | None = None
        daemon.configure({"http": {"port": self.port, **settings}})
        self._tokens: dict[str, str] = {}
        self._clients: list[HttpClient] = []

    def start(self) -> HttpDoor:
        """Start the door, and wait until it sends READY=1 to NOTIFY_SOCKET."""
        with tempfile.TemporaryDirectory(prefix="qmd-notify-") as folder:
            path = f"{folder}/notify"
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
                notify.bind(path)
                notify.settimeout(0.25)
                self.process = self._spawn(path)
                self._wait_ready(notify)
        return self

    def _spawn(self, notify: str) -> subprocess.Popen[bytes] | Process:
        arguments = ["--config", str(self.daemon.config), "door", self.name]
        environment = {**environment_of_commands(), "NOTIFY_SOCKET": notify}
        with self.log.open("ab") as log, open(os.devnull, "rb") as nothing:
            if self.daemon.warm:
                return warm_process().spawn(arguments, environment, nothing, log, log)
            return subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=ROOT,
                stdin=nothing,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def _wait_ready(self, notify: socket.socket) -> None:
        assert self.process is not None
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline:
            try:
                if b"READY=1" in notify.recv(4096).split(b"\n"):
                    return
            except TimeoutError:
                if self.process.poll() is not None:
                    break
        raise AssertionError(f"the door did not start:\n{self.tail()}")

    def kill(self) -> None:
        """Send SIGKILL."""
        self.close_clients()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def terminate(self) -> int:
        """Send SIGTERM; return the exit code."""
        self.close_clients()
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(END_S)
        self.process = None
        return code

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def token(self, *scopes: str, queues: tuple[str, ...] = (), name: str = "t") -> str:
        """Return a token, made once for each name."""
        if name not in self._tokens:
            path = self.daemon.folder / "remote-tokens"
            self._tokens[name] = create(path, name, frozenset(scopes or ("admin",)), queues)
        return self._tokens[name]

    def client(self, token: str | None = "") -> HttpClient:
        """Return a client with a token: by default of an administrator; None: without one."""
        client = HttpClient(self.port, self.token(name="admin") if token == "" else token)
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        """Close the connections of all clients; they connect again when they are used."""
        for client in self._clients:
            client.close()


class HttpClient:
    """A client with one connection that is kept alive."""

    def __init__(self, port: int, token: str | None, context: ssl.SSLContext | None = None) -> None:
        """With a context, the connection is one of HTTPS to `localhost`."""
        self.port = port
        self.token = token
        self._connection = (
            http.client.HTTPConnection("127.0.0.1", port, timeout=END_S)
            if context is None
            else http.client.HTTPSConnection("localhost", port, timeout=END_S, context=context)
        )

    def ask(
        self,
        method: str,
        path: str,
        content: Any = None,
        media: str = "application/json",
        **headers: str,
    ) -> Answer:
        """Make a request; a content that is no bytes is sent as JSON."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            sent["authorization"] = f"Bearer {self.token}"
        body: bytes | None = content
        if content is not None:
            sent.setdefault("content-type", media)
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
        try:
            self._connection.request(method, path, body, sent)
            response = self._connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        except BaseException:
            self._connection.close()
            raise

    def json(
        self, method: str, path: str, content: Any = None, *, status: int = 200, **headers: str
    ) -> Any:
        """Make a request that must be answered with a status; return the JSON of the answer."""
        answer = self.ask(method, path, content, **headers)
        assert answer.status == status, answer
        return json.loads(answer.content) if answer.content else None

    def send(self, queue: str, body: str, **headers: str) -> str:
        """Send a text; return the id of the message."""
        sent = self.json("POST", messages(queue), {"body": body}, status=201, **headers)
        return str(sent["id"])

    def receive(self, queue: str, **given: Any) -> list[dict[str, Any]]:
        """Receive messages."""
        answer = self.json("POST", f"/v1/queues/{quote(queue, safe='')}/receive", given)
        return list(answer["messages"])

    def problem(
        self, method: str, path: str, content: Any = None, **headers: str
    ) -> tuple[int, str]:
        """Make a request that must fail; return the status and the code of the problem."""
        answer = self.ask(method, path, content, **headers)
        assert answer.headers["content-type"] == "application/problem+json", answer
        found = json.loads(answer.content)
        assert found["status"] == answer.status
        assert found["id"].startswith("QM-"), found
        assert found["remedy"], found
        return answer.status, found["code"]

    def close(self) -> None:
        self._connection.close()


def messages(queue: str) -> str:
    """Return the path of the messages of a queue."""
    return f"/v1/queues/{quote(queue, safe='')}/messages"


def open_door(folder: Path, *queues: str, **settings: Any) -> Iterator[HttpDoor]:
    """Yield a door beside a daemon with these queues."""
    daemon = Daemon(folder / "qmd")
    door = HttpDoor(daemon, **settings)
    try:
        daemon.start()
        daemon.create(*queues)
        yield door.start()
    finally:
        door.kill()
        daemon.kill()
