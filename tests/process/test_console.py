"""The console as a program: logins, roles, and forms of other pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("jinja2", reason="the extra qmd-msmq[console] is not installed")
pytest.importorskip("httptools", reason="the extra qmd-msmq[console] is not installed")

from qmd.access.tokens import create
from tests.process.console_program import (
    PASSWORD,
    Client,
    Console,
    ended,
    make_queues,
    open_console,
    page_of,
)
from tests.process.harness import Daemon

pytestmark = pytest.mark.process
ORDERS = "private$\\orders"
PAGES = (
    *("/", "/oldest", "/dead-letters", "/find", "/jobs", "/reports", "/hosts/local"),
    *("/hosts/local/queues", "/hosts/local/queue?name=private$%5Corders", "/hosts/local/outgoing"),
    *("/hosts/local/dead-letters", "/hosts/local/sessions", "/hosts/local/directory"),
    "/hosts/local/services",
)


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    yield from open_console(tmp_path_factory.mktemp("console"), "--link")


@pytest.fixture
def queues(console: Console) -> tuple[str, str]:
    return make_queues(console)


# -- logins --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
def test_a_page_needs_a_login_and_is_there_for_a_viewer(console, path):
    refused = console.client().get(path)
    assert refused.status == 303
    assert refused.headers["location"].startswith("/login")
    assert console.client("vera").get(path).status == 200


def test_a_login_returns_to_the_page_but_to_no_other_site(console):
    good = {"name": "vera", "password": PASSWORD}
    for target, reached in (
        ("/jobs", "/jobs"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/a\r\nset-cookie: x=y", "/"),
    ):
        answer = console.client().post("/login", {**good, "next": target})
        assert answer.headers["location"] == reached


def test_a_logout_ends_the_session_at_the_server(console):
    client = console.client("vera")
    cookie = client.cookie
    client.get("/jobs")
    assert client.post("/logout", {}).status == 303

    client.cookie = cookie
    assert client.get("/jobs").status == 303


def test_wrong_passwords_slow_attempts_down(tmp_path):
    daemon = Daemon(tmp_path / "qmd")
    console = Console(daemon).start()
    try:
        client = console.client()
        texts = [
            client.post("/login", {"name": "vera", "password": f"wrong {at}"}).text
            for at in range(7)
        ]
        assert "name or the password is wrong" in texts[0]
        assert "Too many failed attempts" in texts[-1]
        refused = client.post("/login", {"name": "vera", "password": PASSWORD})
        assert refused.status == 403
    finally:
        console.kill()


def test_many_attempts_at_once_gain_nothing_and_many_users_may_log_in_at_once(tmp_path):
    daemon = Daemon(tmp_path / "qmd")
    console = Console(daemon).start()

    def attempt(name: str, password: str) -> tuple[int, str]:
        answer = console.client().post("/login", {"name": name, "password": password})
        return answer.status, answer.text

    try:
        with ThreadPoolExecutor(24) as pool:
            good = list(pool.map(lambda _: attempt("vera", PASSWORD)[0], range(24)))
            wrong = list(pool.map(lambda at: attempt(f"x{at}", "wrong")[1], range(24)))
        assert good == [303] * 24
        assert sum("is wrong" in text for text in wrong) < 24
        assert any("Too many failed attempts" in text for text in wrong)
    finally:
        console.kill()


def test_a_removed_user_is_out_at_once(console):
    console.daemon.cli("console", "user", "add", "gast", "--password-file", "-", input=b"pass")
    client = console.client()
    assert client.post("/login", {"name": "gast", "password": "pass"}).status == 303
    assert client.get("/jobs").status == 200

    console.daemon.cli("console", "user", "remove", "gast")

    assert client.get("/jobs").status == 303


def test_the_printed_link_logs_in_once(console):
    link = re.search(r"(/login/once\?key=\S+)", console.log.read_text())
    assert link is not None
    client = console.client()

    assert client.get(link[1]).headers["location"] == "/"
    assert "administrator" in client.get("/jobs").text
    assert console.client().get(link[1]).status == 403


def test_a_token_logs_in_with_its_own_rights(console, queues):
    path = console.daemon.folder / "remote-tokens"
    token = create(path, f"only-{queues[0][-6:]}", frozenset({"read"}), (queues[0],))
    client = console.client()

    assert client.post("/login", {"token": "not a token"}).status == 403
    assert client.post("/login", {"token": token}).status == 303

    assert "(viewer)" in client.get("/jobs").text
    name = queues[1].replace("\\", "%5C")
    assert "does not" in client.get(f"/hosts/local/queue?name={name}").text


# -- requests of other pages ---------------------------------------------------------------------


def test_each_response_forbids_scripts_and_frames(console):
    client = console.client("vera")
    for path in (*PAGES, "/nothing", "/login", "/static/console.js"):
        answer = client.get(path)
        policy = answer.headers.get("content-security-policy", "")
        assert "default-src 'none'" in policy, path
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert not re.search(
            r"<script(?! src=\"/static/)|\son\w+=|\sstyle=|javascript:", answer.text
        )
        assert not re.search(r"(src|href|action)=\"(https?:)?//", answer.text)


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(console):
    answer = console.client().post("/login", {"name": "vera", "password": PASSWORD})

    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


def test_a_form_without_the_secret_or_of_another_origin_is_refused(console, queues):
    client = console.client("otto")
    client.get("/jobs")
    fields = {"queue": queues[0], "target": queues[1], "all": "1", "confirmed": "1"}
    path = "/hosts/local/act/move"

    assert client.post(path, {**fields, "csrf": "x"}).status == 403
    other = console.client("otto")
    other.get("/jobs")
    assert client.post(path, {**fields, "csrf": other.csrf}).status == 403
    assert client.post(path, fields, origin="http://evil.example").status == 403
    assert client.post(path, fields, origin="null").status == 403
    assert client.post(path, fields, origin="").status == 403
    assert client.post(path, fields, content_type="text/plain").status == 403
    assert client.get(path).status == 404
    assert client.post(path, fields).status == 303


def test_another_name_of_this_computer_is_refused(console):
    """A page of an attacker can let its own name point to 127.0.0.1."""
    for name in ("evil.example", f"evil.example:{console.port}", "", "127.0.0.1.evil.example"):
        assert console.client("vera").get("/jobs", host=name or "x").status == 403
    assert console.client("vera").get("/jobs", host=f"localhost:{console.port}").status == 200


# -- roles ---------------------------------------------------------------------------------------


def test_a_viewer_changes_nothing_and_an_operator_removes_nothing(console, queues):
    fields = {"queue": queues[0], "target": queues[1], "all": "1"}

    for action in ("move", "resend", "purge", "pause", "delete-queue"):
        assert console.client("vera").act("local", action, **fields).status == 403
    for action in ("purge", "delete-queue", "purge-outgoing", "create-queue"):
        assert console.client("otto").act("local", action, **fields).status == 403
    assert console.client("otto").get("/hosts/local/settings").status == 403
    assert "act/move" not in console.client("vera").get(page_of(queues[0])).text


def test_a_job_is_shown_to_its_user_and_to_administrators(console, queues):
    console.daemon.cli("send", queues[0], "x")
    otto = console.client("otto")
    started = otto.act("local", "move", queue=queues[0], target=queues[1], all="1")
    ended(otto, started)

    assert console.client("vera").get(started.headers["location"]).status == 404
    assert console.client("anna").get(started.headers["location"]).status == 200


@pytest.mark.parametrize(
    ("settings", "host", "may"),
    [
        ({"actions": "never"}, "127.0.0.1", False),
        ({"names": ["console.example"]}, "console.example", False),
        ({"names": ["console.example"], "actions": "always"}, "console.example", True),
    ],
)
def test_beyond_loopback_the_console_only_shows_by_default(tmp_path, settings, host, may):
    daemon = Daemon(tmp_path / "qmd")
    console = Console(daemon, **settings).start()
    try:
        client = Client(console.port)
        known = {"host": host, "origin": f"http://{host}"}
        good = {"name": "anna", "password": PASSWORD}
        assert client.post("/login", good, **known).status == 303
        client.get("/jobs", host=host)
        answer = client.post("/hosts/local/act/pause", {"destination": "x"}, **known)
        assert (answer.status == 200) is may
        assert ("only shows" in client.get("/jobs", host=host).text) is not may
    finally:
        console.kill()
