"""A real daemon in a process of its own, and the command line that controls it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.forks import Process
from tests.patience import END_S, LOOK_S
from tests.process.command_line import (
    COMMAND,
    ROOT,
    environment_of_commands,
    run,
    warm_process,
)
from tests.process.data_folder import check_log
from tests.process.proxy import Proxy
from tests.process.remote import RemoteQueueManager

START_S = END_S
STOP_S = END_S

DEADXACT = "DIRECT=OS:.\\SYSTEM$;DEADXACT"
DEADLETTER = "DIRECT=OS:.\\SYSTEM$;DEADLETTER"
JOURNAL = "DIRECT=OS:.\\SYSTEM$;JOURNAL"


def free_port() -> int:
    """Return a port that no socket listens on, outside of the range of outgoing connections."""
    for _ in range(100):
        port = random.randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError("no free port found")


class Daemon:
    """A queue manager with its own folder and port, which can be killed and restarted.

    `settings` are written into the configuration that `qmd init` made, table by table.
    It and its commands are forks of one warm process, unless `warm` is False: then they are real
    programs.
    """

    start_s = START_S  # the time limit of a start

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, Any] | None = None,
        port: int | None = None,
        warm: bool = True,
    ) -> None:
        self.folder = folder
        self.warm = warm
        self.port = port or free_port()
        self.config = folder / "qmd.toml"
        self.process: subprocess.Popen[bytes] | Process | None = None
        self.log = folder.with_name(folder.name + ".log")
        run(["init", str(folder), "--listen", f"127.0.0.1:{self.port}"], warm=True)
        self.configure(settings or {})

    # -- life cycle --

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Merge tables into the configuration file; they take effect at the next start."""
        values = tomllib.loads(self.config.read_text())
        if os.geteuid() == 0:
            _merge(values, RUN_AS_ROOT)
        _merge(values, settings)
        self.config.write_text(_toml(values))

    def spawn(self, **changes: str) -> subprocess.Popen[bytes] | Process:
        """Start `serve` in a process of its own, without a wait."""
        arguments = ["--config", str(self.config), "serve"]
        environment = {**environment_of_commands(), **changes}
        with self.log.open("ab") as log, open(os.devnull, "rb") as nothing:
            if self.warm:
                return warm_process().spawn(arguments, environment, nothing, log, log)
            return subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=ROOT, stdin=nothing, stdout=log, stderr=log, env=environment,
            )  # fmt: skip

    def start(self) -> Daemon:
        """Start the daemon, and wait until it sends READY=1 to NOTIFY_SOCKET."""
        assert self.process is None, "it is running"
        with tempfile.TemporaryDirectory(prefix="qmd-notify-") as folder:
            path = f"{folder}/notify"
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
                notify.bind(path)
                notify.settimeout(0.25)
                self.process = self.spawn(NOTIFY_SOCKET=path)
                self._wait_ready(notify)
        return self

    def _wait_ready(self, notify: socket.socket) -> None:
        assert self.process is not None
        deadline = time.monotonic() + self.start_s
        while time.monotonic() < deadline:
            try:
                if b"READY=1" in notify.recv(4096).split(b"\n"):
                    return
            except TimeoutError:
                if self.process.poll() is not None:
                    break
        code = self.process.poll()
        self.kill()
        raise AssertionError(f"the daemon did not start (exit code {code}):\n{self.tail()}")

    def kill(self) -> None:
        """Send SIGKILL, which is to a process what a loss of power is to a computer."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            check_log(self.folder)

    def terminate(self, timeout_s: float = STOP_S) -> int:
        """Send SIGTERM; return the exit code.  Raises subprocess.TimeoutExpired."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(timeout_s)
        self.process = None
        check_log(self.folder)
        return code

    def restart(self) -> Daemon:
        """Send SIGKILL, and start the daemon again."""
        self.kill()
        return self.start()

    @property
    def pid(self) -> int:
        assert self.process is not None, "the daemon does not run"
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def tail(self, characters: int = 4000) -> str:
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""

    # -- command line --

    def cli(
        self,
        *arguments: str,
        input: bytes | None = None,
        check: bool = True,
        timeout_s: float = END_S,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `qmd --config ... ARGUMENTS`; with `check`, each exit code but 0 is a failure."""
        return run(
            ["--config", str(self.config), *arguments],
            input=input,
            check=check,
            timeout_s=timeout_s,
            warm=self.warm,
        )

    def spawn_cli(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command that keeps running; the test closes the pipe of its standard output."""
        return subprocess.Popen(
            [*COMMAND, "--config", str(self.config), *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment_of_commands(),
        )

    def json(self, *arguments: str, **options: Any) -> list[dict[str, Any]]:
        """Return the objects that a command prints, one per line."""
        output = self.cli(*arguments, "--json", **options).stdout
        return [json.loads(line) for line in output.splitlines() if line.strip()]

    def create(self, *queues: str, transactional: bool = False) -> None:
        """Create private queues, given by the last parts of their names."""
        for queue in queues:
            flag = ["--transactional"] if transactional else []
            self.cli("queue", "create", f"private$\\{queue}", *flag)

    def receive(self, queue: str) -> list[dict[str, Any]]:
        """Receive all messages of a queue."""
        return self.json("receive", address(queue), "--all")

    def peek(self, queue: str) -> list[dict[str, Any]]:
        return self.json("peek", address(queue), "--all")

    def bodies(self, queue: str) -> list[bytes]:
        """Receive all messages of a queue; return their bodies."""
        return [body(message) for message in self.receive(queue)]

    def count(self, queue: str) -> int:
        (shown,) = self.json("queue", "show", address(queue))
        return int(shown["messages"])

    def send(self, destination: str, content: bytes, *options: str) -> str:
        """Send one message; return its id."""
        encoded = base64.b64encode(content).decode()
        (sent,) = self.json("send", destination, "--body-base64", encoded, *options)
        return str(sent["id"])

    def send_all(self, destination: str, contents: Iterable[bytes], *options: str) -> list[str]:
        """Send one message per body, which has no newline; return the ids, in order."""
        lines = b"".join(content + b"\n" for content in contents)
        rows = self.json("send", destination, "--each-line", *options, input=lines)
        return [str(row["id"]) for row in rows]

    def wait_for(self, queue: str, count: int, timeout_s: float = END_S) -> list[dict[str, Any]]:
        """Peek until `count` messages are in a queue; return them."""
        deadline = time.monotonic() + timeout_s
        while True:
            messages = self.peek(queue)
            if len(messages) >= count:
                return messages
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(messages)} of {count} messages in {queue}: {messages}")
            time.sleep(LOOK_S)


def empty_queues(daemon: Daemon) -> None:
    """Remove all messages of all queues."""
    for queue in daemon.json("queue", "list", "--system"):
        if queue["messages"]:
            daemon.cli("queue", "purge", queue["format_name"], "--yes")


def address(queue: str) -> str:
    """Return the path of a private queue; a longer name stays as it is."""
    return queue if "\\" in queue else f"private$\\{queue}"


def body(message: Mapping[str, Any]) -> bytes:
    return base64.b64decode(message["body_base64"], validate=True)


# Tests may have to run as root: this configuration allows it.
RUN_AS_ROOT: dict[str, Any] = {"queue_manager": {"run_as_root": True}}


def _merge(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, Mapping):
            _merge(values.setdefault(key, {}), value)
        else:
            values[key] = value


def _toml(values: Mapping[str, Any], prefix: str = "") -> str:
    """Return TOML: plain values, then tables; strings, numbers and lists are written as in JSON"""
    lines = [
        f"{json.dumps(key)} = {json.dumps(value)}"
        for key, value in values.items()
        if not isinstance(value, Mapping)
    ]
    text = "\n".join(lines) + "\n"
    for key, value in values.items():
        if isinstance(value, Mapping):
            name = f"{prefix}{json.dumps(key)}"
            text += f"\n[{name}]\n" + _toml(value, name + ".")
    return text


Cleaner = Callable[[Daemon], Daemon]  # the fixture `clean`


class Hosts:
    """The processes that one test starts; they end with the test.

    Its daemons are forks of one warm process, unless `warm` is False.
    """

    def __init__(self, *, warm: bool = True) -> None:
        self._warm = warm
        self.folder = Path(tempfile.mkdtemp(prefix="qmd-test-"))
        self._daemons: list[Daemon] = []
        self._remotes: list[RemoteQueueManager] = []
        self._proxies: list[Proxy] = []

    def daemon(self, *, start: bool = True, **settings: Mapping[str, Any]) -> Daemon:
        """Return a new queue manager; the keywords are sections of its configuration."""
        folder = self.folder / f"{len(self._daemons)}"
        daemon = Daemon(folder, settings=settings, warm=self._warm)
        self._daemons.append(daemon)
        return daemon.start() if start else daemon

    def remote(self, guid: bytes | None = None) -> RemoteQueueManager:
        remote = RemoteQueueManager(guid)
        self._remotes.append(remote)
        return remote

    def proxy(self, port: int) -> Proxy:
        proxy = Proxy(port)
        self._proxies.append(proxy)
        return proxy

    def logs(self) -> str:
        return "\n".join(f"--- {daemon.log.name}\n{daemon.tail()}" for daemon in self._daemons)

    def close(self) -> None:
        for remote in self._remotes:
            remote.close()
        for proxy in self._proxies:
            proxy.close()
        for daemon in self._daemons:
            daemon.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
