"""The life of an installed qmd, which every kind of package must support."""

from __future__ import annotations

import http.client
import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.patience import END_S
from tests.process.console_program import PASSWORD, Client
from tests.process.harness import free_port


class Installed:
    """An installed command, run without the environment and the files of the tests.

    `command` is its words, `folder` a new folder as the command sees it; it may write there.
    """

    def __init__(self, command: list[str], folder: Path, log: Path) -> None:
        self.command = command
        self.folder = folder
        self.log = log
        self.config = folder / "qmd.toml"
        self.ports = {name: free_port() for name in ("listen", "http", "metrics", "console")}
        self.environment = {
            "QMD_QUEUE_MANAGER_RUN_AS_ROOT": "true",
            **{f"QMD_{name.upper()}_PORT": str(port) for name, port in self.ports.items()},
        }

    def run(self, *words: str, input: str | None = None, fails: bool = False) -> str:
        """Run a command; return its output."""
        done = subprocess.run(
            [*self.command, "--config", str(self.config), *words],
            cwd="/", env=self.environment, input=input,
            capture_output=True, text=True, check=False, timeout=END_S,
        )  # fmt: skip
        assert (done.returncode != 0) is fails, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def init(self) -> None:
        """Write the configuration of a new queue manager."""
        self.run("init", str(self.folder), "--listen", f"127.0.0.1:{self.ports['listen']}")

    @contextmanager
    def running(self, *words: str, **changes: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command that keeps running; end it with SIGTERM."""
        environment: Mapping[str, str] = {**self.environment, **changes}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*self.command, "--config", str(self.config), *words],
                cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
            try:
                yield process
                process.terminate()
                assert process.wait(END_S) == 0, self.log.read_text()[-4000:]
            finally:
                process.kill()
                process.wait()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Run the daemon."""
        with self.running("serve") as process:
            self.wait(process, ["status"])
            yield

    def wait(self, process: subprocess.Popen[bytes], words: list[str]) -> None:
        """Wait until a command succeeds, as long as `process` runs."""
        deadline = time.monotonic() + END_S
        while True:
            done = subprocess.run(
                [*self.command, "--config", str(self.config), *words],
                cwd="/", env=self.environment, capture_output=True, check=False, timeout=END_S,
            )  # fmt: skip
            if done.returncode == 0:
                return
            assert process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.1)

    def get(self, process: subprocess.Popen[bytes], name: str, path: str) -> tuple[int, str]:
        """Get a page of a door or the console as soon as it listens; return status and text."""
        deadline = time.monotonic() + END_S
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.ports[name], timeout=END_S)
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                return response.status, response.read().decode()
            except ConnectionRefusedError:
                assert process.poll() is None, self.log.read_text()[-4000:]
                assert time.monotonic() < deadline
                time.sleep(0.1)
            finally:
                connection.close()


def exchange_messages(installed: Installed) -> None:
    """Create a queue, send, receive."""
    installed.run("queue", "create", "orders", "--transactional")
    installed.run("send", "orders", "--label", "first", "hello")
    (peeked,) = installed.run("peek", "orders", "--all", "--json").splitlines()
    received = installed.run("receive", "orders", "--json")

    assert json.loads(peeked)["label"] == json.loads(received)["label"] == "first"


def open_doors(installed: Installed) -> None:
    """Read a description of the HTTP door, metrics, and a page of the console with its parts."""
    with installed.running("door", "http") as door:
        assert installed.get(door, "http", "/openapi.json")[0] == 200
    with installed.running("door", "metrics") as door:
        status, text = installed.get(door, "metrics", "/metrics")
        assert (status, "qmd_queue_messages" in text) == (200, True), text[:2000]
    installed.run(
        *("console", "user", "add", "vera", "--role", "viewer", "--password-file", "-"),
        input=PASSWORD,
    )
    with installed.running("console", "--no-link") as console:
        assert installed.get(console, "console", "/static/console.css")[0] == 200
        client = Client(installed.ports["console"])
        assert client.post("/login", {"name": "vera", "password": PASSWORD}).status == 303
        assert "orders" in client.get("/hosts/local/queues").text
