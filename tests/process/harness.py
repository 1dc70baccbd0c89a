"""A real daemon in a process of its own, and the command line that looks into it."""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.ledger import disagreements
from tests.patience import END_S
from tests.process.peer import RemoteQueueManager
from tests.process.warm import Warm

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "qmd"]
START_S = END_S
STOP_S = END_S

DEADXACT = "DIRECT=OS:.\\SYSTEM$;DEADXACT"
DEADLETTER = "DIRECT=OS:.\\SYSTEM$;DEADLETTER"
JOURNAL = "DIRECT=OS:.\\SYSTEM$;JOURNAL"


def free_port() -> int:
    """A port that nobody listens on, outside of the range that outgoing connections are given."""
    for _ in range(100):
        port = random.randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError("no free port found")


class Daemon:
    """A queue manager of its own folder and port.  `start`, `kill`, `terminate`, again and again.

    `settings` are written into the configuration that `qmd init` made, table by table.
    Its commands are forks of one warm process, unless `warm` is False.
    """

    warm = True
    start_s = START_S  # for how long it is waited for

    def __init__(
        self, folder: Path, *, settings: Mapping[str, Any] | None = None, port: int | None = None
    ) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.config = folder / "qmd.toml"
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder.with_name(folder.name + ".log")
        run(["init", str(folder), "--listen", f"127.0.0.1:{self.port}"], warm=True)
        self.configure(settings or {})

    # -- its life --

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Merge tables into the configuration file; takes effect at the next start."""
        values = tomllib.loads(self.config.read_text())
        if os.geteuid() == 0:
            _merge(values, RUN_AS_ROOT)
        _merge(values, settings)
        self.config.write_text(_toml(values))

    def spawn(self, **environment: str) -> subprocess.Popen[bytes]:
        """`serve` as a child process, not waiting for anything."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*COMMAND, "--config", str(self.config), "serve"],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**_environment(debugged=True), **environment},
            )

    def start(self) -> Daemon:
        """Start it and wait until it says READY=1 to NOTIFY_SOCKET."""
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
        """SIGKILL: what a power cut is to a process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            self.check_log()

    def terminate(self, timeout_s: float = STOP_S) -> int:
        """SIGTERM; its exit code.  Raises subprocess.TimeoutExpired."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(timeout_s)
        self.process = None
        self.check_log()
        return code

    def restart(self) -> Daemon:
        """SIGKILL and start again."""
        self.kill()
        return self.start()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP for a while: there, but silent."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def tail(self, characters: int = 4000) -> str:
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""

    def resident_bytes(self) -> int:
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def busy_s(self) -> float:
        """The processor time that it has had."""
        assert self.process is not None
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def open_files(self) -> int:
        assert self.process is not None
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    # -- its disk --

    def database(self) -> Path:
        """The SQLite file, found by its first bytes."""
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and not path.name.endswith(("-wal", "-shm")):
                with path.open("rb") as file:
                    if file.read(16) == b"SQLite format 3\0":
                        return path
        raise AssertionError(f"no database below {self.folder}")

    def check_log(self) -> None:
        """What the log of events tells is what the tables hold, however the daemon ended."""
        with tempfile.TemporaryDirectory(prefix="qmd-log-") as scratch:
            for name in ("queues.db", "queues.db-wal"):
                for path in self.folder.rglob(name):
                    shutil.copy(path, scratch)
            if not os.listdir(scratch):
                return
            with contextlib.closing(sqlite3.connect(f"{scratch}/queues.db")) as db:
                try:
                    problems = disagreements(db)
                except sqlite3.DatabaseError:
                    return  # a test has damaged it, or its first start was cut short
        assert not problems, "\n".join(problems)

    @contextlib.contextmanager
    def held_disk(self) -> Iterator[None]:
        """Nothing can be committed meanwhile: another connection holds the write lock."""
        with contextlib.closing(
            sqlite3.connect(self.database(), timeout=END_S, isolation_level=None)
        ) as intruder:
            intruder.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                intruder.execute("ROLLBACK")

    # -- its command line --

    def cli(
        self,
        *arguments: str,
        input: bytes | None = None,
        check: bool = True,
        timeout_s: float = END_S,
    ) -> subprocess.CompletedProcess[bytes]:
        """`qmd --config ... ARGUMENTS`; with `check` anything but exit code 0 is a failure."""
        return run(
            ["--config", str(self.config), *arguments],
            input=input,
            check=check,
            timeout_s=timeout_s,
            warm=self.warm,
        )

    def spawn_cli(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A command that runs on; its standard output is a pipe, which the test has to close."""
        return subprocess.Popen(
            [*COMMAND, "--config", str(self.config), *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        )

    def json(self, *arguments: str, **options: Any) -> list[dict[str, Any]]:
        """The objects that a command prints, one a line."""
        output = self.cli(*arguments, "--json", **options).stdout
        return [json.loads(line) for line in output.splitlines() if line.strip()]

    def create(self, *queues: str, transactional: bool = False) -> None:
        """Private queues, by the last part of their names."""
        for queue in queues:
            flag = ["--transactional"] if transactional else []
            self.cli("queue", "create", f"private$\\{queue}", *flag)

    def receive(self, queue: str) -> list[dict[str, Any]]:
        """All that is in a queue, taken out."""
        return self.json("receive", address(queue), "--all")

    def peek(self, queue: str) -> list[dict[str, Any]]:
        return self.json("peek", address(queue), "--all")

    def bodies(self, queue: str) -> list[bytes]:
        """The bodies of all that is in a queue, taken out."""
        return [body(message) for message in self.receive(queue)]

    def empty(self) -> None:
        """Remove all messages of all queues."""
        for queue in self.json("queue", "list", "--system"):
            if queue["messages"]:
                self.cli("queue", "purge", queue["format_name"], "--yes")

    def count(self, queue: str) -> int:
        (shown,) = self.json("queue", "show", address(queue))
        return int(shown["messages"])

    def send(self, destination: str, content: bytes, *options: str) -> str:
        """One message; its id."""
        encoded = base64.b64encode(content).decode()
        (sent,) = self.json("send", destination, "--body-base64", encoded, *options)
        return str(sent["id"])

    def send_all(self, destination: str, contents: Iterable[bytes], *options: str) -> list[str]:
        """One message for each body, which has no newline in it; their ids, in order."""
        lines = b"".join(content + b"\n" for content in contents)
        rows = self.json("send", destination, "--each-line", *options, input=lines)
        return [str(row["id"]) for row in rows]

    def wait_for(self, queue: str, count: int, timeout_s: float = END_S) -> list[dict[str, Any]]:
        """Look into a queue until so many messages are in it; they stay there."""
        deadline = time.monotonic() + timeout_s
        while True:
            messages = self.peek(queue)
            if len(messages) >= count:
                return messages
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(messages)} of {count} messages in {queue}: {messages}")


def address(queue: str) -> str:
    """`orders` is the private queue of that name; anything longer stays as it is."""
    return queue if "\\" in queue else f"private$\\{queue}"


def body(message: Mapping[str, Any]) -> bytes:
    return base64.b64decode(message["body_base64"], validate=True)


def run(
    arguments: list[str],
    *,
    input: bytes | None = None,
    check: bool = True,
    timeout_s: float = END_S,
    environment: Mapping[str, str] | None = None,
    warm: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    """The command line without a daemon of its own."""
    if warm:
        done = _warm().run(arguments, input=input, timeout_s=timeout_s)
    else:
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=ROOT,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env={**_environment(), **(environment or {})},
        )
    if check and done.returncode != 0:
        raise AssertionError(
            f"qmd {' '.join(arguments)[:300]} ended with {done.returncode}:\n"
            f"{done.stdout.decode(errors='replace')[-2000:]}"
            f"{done.stderr.decode(errors='replace')[-2000:]}"
        )
    return done


@functools.cache
def _warm() -> Warm:
    warm = Warm(ROOT, _environment())
    atexit.register(warm.close)
    return warm


def _environment(*, debugged: bool = False) -> dict[str, str]:
    """Ours, without what would lead a command to another daemon.

    Only a daemon is `debugged` where the tests are: on a busy machine a command would say of itself
    that it is slow, among what it has to say.
    """
    dropped = ("QMD_", "NOTIFY_SOCKET", "LISTEN_", "WATCHDOG_")
    if not debugged:
        dropped += ("PYTHONASYNCIODEBUG",)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


# Where the configuration allows the daemon to be root, as the tests may have to be.
RUN_AS_ROOT: dict[str, Any] = {"queue_manager": {"run_as_root": True}}


def _merge(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, Mapping):
            _merge(values.setdefault(key, {}), value)
        else:
            values[key] = value


def _toml(values: Mapping[str, Any], prefix: str = "") -> str:
    """Plain values first, tables after them; JSON's strings, numbers and lists are TOML's."""
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
    """All that one test starts, and ends with it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="qmd-test-"))
        self._daemons: list[Daemon] = []
        self._remotes: list[RemoteQueueManager] = []
        self._proxies: list[Proxy] = []

    def daemon(self, *, start: bool = True, **settings: Mapping[str, Any]) -> Daemon:
        """A new queue manager; the keywords are sections of its configuration."""
        folder = self._folder / f"{len(self._daemons)}"
        daemon = Daemon(folder, settings=settings)
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
        shutil.rmtree(self._folder, ignore_errors=True)


class Proxy:
    """A TCP proxy between two daemons whose cable can be pulled."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.port: int = listener.getsockname()[1]
        self._begin(listener)

    def _begin(self, listener: socket.socket) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self.connections = 0
        self.bytes_passed = 0
        self._passed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._start(self._accept)

    def destination(self, queue: str) -> str:
        return f"DIRECT=TCP:127.0.0.1:{self.port}\\private$\\{queue}"

    def cut(self) -> None:
        """End every connection that runs through; new ones are let in."""
        with self._lock:
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def wait_passed(self, count: int, timeout_s: float = 2.0) -> None:
        """Until so many more bytes went through, or for so long."""
        goal = self.bytes_passed + count
        with self._passed:
            self._passed.wait_for(lambda: self.bytes_passed >= goal, timeout_s)

    def retarget(self, port: int) -> None:
        """From now on the cable leads to another port."""
        self._target_port = port
        self.cut()

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                far = self._reach()
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._sockets |= {near, far}
            self._start(lambda near=near, far=far: self._pair(near, far))

    def _reach(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._target_port), 5)

    def _pair(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=self._pump, args=(far, near), daemon=True)
        back.start()
        self._pump(near, far)
        back.join()
        with self._lock:
            self._sockets -= {near, far}
        near.close()
        far.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
                with self._passed:
                    self.bytes_passed += len(data)
                    self._passed.notify_all()
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class ControlProxy(Proxy):
    """The same between an application and its daemon: `path` is a control socket as well."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cut.sock"
        self._target = folder / "qmd.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen(16)
        self._begin(listener)

    def _reach(self) -> socket.socket:
        far = socket.socket(socket.AF_UNIX)
        try:
            far.connect(str(self._target))
        except OSError:
            far.close()
            raise
        return far
