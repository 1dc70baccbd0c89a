"""A real console in a process of its own, and a client of it without a browser."""

from __future__ import annotations

import html
import http.client
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tests.forks import Process
from tests.patience import END_S
from tests.process.command_line import COMMAND, ROOT, environment_of_commands, warm_process
from tests.process.harness import Daemon, free_port
from tests.process.readiness import wait_ready

USERS = {"vera": "viewer", "otto": "operator", "anna": "administrator"}
PASSWORD = "correct horse"  # nosec: of users of tests


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Console:
    """A console of a daemon, with a user of each role: vera, otto and anna."""

    def __init__(self, daemon: Daemon, **settings: Any) -> None:
        self.daemon = daemon
        self.port = free_port()
        self.log = daemon.folder.with_name(f"{daemon.folder.name}-console.log")
        self.process: subprocess.Popen[bytes] | Process | None = None
        daemon.configure({"console": {"port": self.port, "refresh": "200ms", **settings}})
        for name, role in USERS.items():
            daemon.cli("console", "user", "add", name, "--role", role, "--password-file", "-",
                       input=PASSWORD.encode())  # fmt: skip

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *options: str) -> Console:
        """Start the console, and wait until it is ready."""
        self.process = wait_ready(lambda notify: self._spawn(notify, options), self.tail)
        return self

    def _spawn(self, notify: str, options: tuple[str, ...]) -> subprocess.Popen[bytes] | Process:
        arguments = ["--config", str(self.daemon.config), "console", *options]
        environment = {**environment_of_commands(), "NOTIFY_SOCKET": notify}
        with self.log.open("ab") as log, open(os.devnull, "rb") as nothing:
            if self.daemon.warm:
                return warm_process().spawn(arguments, environment, nothing, log, log)
            return subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=ROOT, stdin=nothing, stdout=log, stderr=log, env=environment,
            )  # fmt: skip

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def terminate(self) -> int:
        """Send SIGTERM; return the exit code."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(END_S)
        self.process = None
        return code

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def client(self, name: str = "") -> Client:
        """Return a client, logged in as a user if one is named."""
        client = Client(self.port)
        if name:
            answer = client.post("/login", {"name": name, "password": PASSWORD})
            assert answer.status == 303, answer
        return client


class Client:
    """A browser without scripts: it keeps cookies, and knows the secret of the forms."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""
        self.csrf = ""

    def ask(
        self, method: str, path: str, form: dict[str, Any] | None = None, **headers: str
    ) -> Answer:
        """Make a request; do not follow redirects."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=END_S)
        sent = {"cookie": self.cookie} if self.cookie else {}
        body = None
        if form is not None:
            body = urlencode(form, doseq=True)
            sent |= {
                "content-type": "application/x-www-form-urlencoded",
                "origin": f"http://127.0.0.1:{self.port}",
            }
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body, {k: v for k, v in sent.items() if v})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            text = response.read().decode()
        finally:
            connection.close()
        if "set-cookie" in found:
            self.cookie = found["set-cookie"].partition(";")[0]
        if csrf := re.search(r'name="csrf" value="([^"]+)"', text):
            self.csrf = html.unescape(csrf[1])
        return Answer(response.status, found, text)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, form: dict[str, Any], **headers: str) -> Answer:
        """Send a form, with the secret of the last page."""
        return self.ask("POST", path, {"csrf": self.csrf, **form}, **headers)

    def act(self, host: str, action: str, **fields: Any) -> Answer:
        """Do an action without its page of confirmation."""
        self.get("/jobs")
        return self.post(f"/hosts/{host}/act/{action}", {"confirmed": "1", **fields})


def open_console(folder: Path, *options: str) -> Iterator[Console]:
    """Yield a console beside a daemon."""
    daemon = Daemon(folder / "qmd")
    console = Console(daemon)
    try:
        daemon.start()
        daemon.create("orders", "bills")
        yield console.start(*options)
    finally:
        console.kill()
        daemon.kill()


def make_queues(console: Console) -> tuple[str, str]:
    """Return two new queues."""
    number = time.monotonic_ns()
    console.daemon.create(f"a{number}", f"b{number}")
    return f"private$\\a{number}", f"private$\\b{number}"


def ids(client: Client, queue: str) -> list[str]:
    """Return the lookup ids of the messages on the first page of a queue."""
    return re.findall(r'name="id" value="(\d+)"', client.get(page_of(queue)).text)


def page_of(queue: str) -> str:
    """Return the address of the page of a queue."""
    return f"/hosts/local/queue?{urlencode({'name': queue})}"


def ended(client: Client, answer: Answer) -> str:
    """Return the page of a job that has ended."""
    assert answer.status == 303, answer.text
    deadline = time.monotonic() + END_S
    while time.monotonic() < deadline:
        page = client.get(answer.headers["location"])
        if "running</span>" not in page.text:
            return page.text
        time.sleep(0.02)
    raise AssertionError("the job did not end")
