"""Attacks on the logins of the console: by other users of this computer, and with old tokens."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

pytest.importorskip("jinja2", reason="the extra qmd-msmq[console] is not installed")
pytest.importorskip("httptools", reason="the extra qmd-msmq[console] is not installed")

from qmd.access.tokens import create
from qmd.console.logins import FREE_FAILURES, WAITING_MAX
from tests.patience import END_S
from tests.process.console_program import PASSWORD, Console
from tests.process.harness import Daemon
from tests.users import connect_to_port_as, needs_root

OTHER = 64_001  # a user without rights
GUESSES = 12  # after which an attempt has to wait for minutes


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    daemon = Daemon(tmp_path / "qmd")
    (tmp_path / "reports").mkdir()
    console = Console(daemon, actions="always", reports=str(tmp_path / "reports"))
    try:
        daemon.start()
        daemon.create("orders")
        yield console.start()
    finally:
        console.kill()
        daemon.kill()


def post_login(console: Console, connection: socket.socket, **form: str) -> None:
    """Send the form of the login over a connection."""
    body = urlencode(form).encode()
    head = (
        f"POST /login HTTP/1.1\r\nhost: 127.0.0.1:{console.port}\r\norigin: {console.address}\r\n"
        f"content-type: application/x-www-form-urlencoded\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)


def answer_of(connection: socket.socket) -> str:
    """Return the answer to a request, up to the end of the page."""
    connection.settimeout(END_S)
    found = b""
    while b"</html>" not in found and b" 303 " not in found:
        data = connection.recv(65536)
        assert data, found
        found += data
    return found.decode()


def guess_as(console: Console, name: str, count: int) -> list[str]:
    """Send wrong passwords of a user as another user of this computer; return the answers."""
    answers = []
    for number in range(count):
        with connect_to_port_as(OTHER, console.port) as connection:
            post_login(console, connection, name=name, password=f"wrong {number}")
            answers.append(answer_of(connection))
    return answers


def is_made_to_wait(answers: list[str]) -> bool:
    """On a busy machine the wait of one guess may end before the next one comes."""
    return any("Too many failed attempts" in answer for answer in answers)


@needs_root
def test_wrong_passwords_of_another_local_user_keep_no_user_out(console: Console) -> None:
    """All users of this computer have the same address."""
    answers = guess_as(console, "vera", GUESSES)
    assert "is wrong" in answers[0]
    assert is_made_to_wait(answers)
    assert is_made_to_wait(guess_as(console, "otto", FREE_FAILURES - 1))

    for name in ("vera", "otto"):
        login = console.client().post("/login", {"name": name, "password": PASSWORD})
        assert login.status == 303


@needs_root
def test_a_login_of_its_own_gives_a_local_user_no_further_guesses(console: Console) -> None:
    answers = []
    for number in range(GUESSES):
        with connect_to_port_as(OTHER, console.port) as connection:
            post_login(console, connection, name="vera", password=f"wrong {number}")
            answers.append(answer_of(connection))
        with connect_to_port_as(OTHER, console.port) as connection:
            post_login(console, connection, name="otto", password=PASSWORD)
            answer_of(connection)

    assert is_made_to_wait(answers)


@needs_root
def test_wrong_tokens_in_all_places_keep_no_other_token_out(console: Console) -> None:
    """The daemon answers a wrong token late, and all tokens waited in one line."""
    token = create(console.daemon.folder / "remote-tokens", "reader", frozenset({"read"}), ())
    with contextlib.ExitStack() as crowd:
        for number in range(WAITING_MAX + 10):
            source = f"127.0.1.{1 + number % 200}"
            connection = connect_to_port_as(OTHER, console.port, source=source)
            crowd.enter_context(connection)
            post_login(console, connection, token=f"wrong {number}")

        assert console.client().post("/login", {"token": token}).status == 303


def test_a_revoked_token_is_out_of_the_console(console: Console) -> None:
    """The queue manager refuses it, but settings, jobs and reports are pages of the console."""
    token = create(console.daemon.folder / "remote-tokens", "boss", frozenset({"admin"}), ())
    client = console.client()
    assert client.post("/login", {"token": token}).status == 303
    assert client.get("/hosts/local/settings").status == 200

    console.daemon.cli("remote", "token", "revoke", "boss")

    deadline = time.monotonic() + END_S / 2
    while client.get("/jobs").status != 303:
        assert time.monotonic() < deadline, "it still sees the jobs of all users"
        time.sleep(0.2)
    assert client.get("/hosts/local/settings").status == 303


def test_an_export_reads_each_message_once(console: Console) -> None:
    """The address of a page has room for some thousand ids, and all may be those of one message."""
    size = 120_000
    console.daemon.send("orders", b"x" * size)
    client = console.client("vera")
    (message,) = console.daemon.json("peek", "orders", "--all")
    ids = "".join(f"&id={message['lookup_id']}" for _ in range(1500))
    before = peak_bytes(console)

    found = client.get(f"/hosts/local/export?queue=private$%5Corders{ids}")

    assert found.status == 200
    assert found.text.count("\n") == 1
    assert peak_bytes(console) < before + 500 * size


def peak_bytes(console: Console) -> int:
    """Return the most memory that the console has used."""
    assert console.process is not None
    status = Path(f"/proc/{console.process.pid}/status").read_text()
    (line,) = [each for each in status.splitlines() if each.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@needs_root
def test_a_cookie_of_a_local_user_is_of_no_use_to_another_one(console: Console) -> None:
    """A browser sends it to each port of this computer, also to a page of that user."""
    client = console.client("anna")
    assert client.get("/hosts/local/settings").status == 200

    for ends_before in (False, True):
        with connect_to_port_as(OTHER, console.port) as thief:
            host = f"host: 127.0.0.1:{console.port}"
            request = f"GET /jobs HTTP/1.1\r\n{host}\r\ncookie: {client.cookie}\r\n\r\n"
            thief.sendall(request.encode())
            if ends_before:
                thief.shutdown(socket.SHUT_WR)
            thief.settimeout(END_S)
            answer = thief.recv(65536).decode()
        assert "/login" in answer.partition("\r\n\r\n")[0], answer
    assert client.get("/hosts/local/settings").status == 200


def test_a_link_among_the_reports_leads_to_no_other_file(console: Console, tmp_path: Path) -> None:
    """The user of the jobs writes there, and cannot read what the console can."""
    reports, secret = tmp_path / "reports", tmp_path / "secret"
    secret.mkdir()
    for folder in (secret, reports / "run-1"):
        folder.mkdir(exist_ok=True)
        (folder / "report.html").write_text(f"of {folder.name}")
    (reports / "latest").symlink_to("run-1")
    (reports / "folder").symlink_to(secret)
    (reports / "file.html").symlink_to(secret / "report.html")
    client = console.client("vera")

    assert client.get("/reports/latest").text == "of run-1"
    for name in ("folder", "file.html"):
        found = client.get(f"/reports/{name}")
        assert found.status == 404
        assert "of secret" not in found.text
