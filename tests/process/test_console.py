"""The console as a program: logins, roles, forms, hostile texts, actions and several hosts."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("jinja2", reason="the extra qmd-msmq[console] is not installed")
pytest.importorskip("httptools", reason="the extra qmd-msmq[console] is not installed")

from qmd.access.tokens import create
from tests.patience import END_S
from tests.process.console_program import PASSWORD, Answer, Client, Console
from tests.process.harness import DEADLETTER, Daemon, free_port

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
    daemon = Daemon(tmp_path_factory.mktemp("console") / "qmd")
    console = Console(daemon)
    try:
        daemon.start()
        daemon.create("orders", "bills")
        yield console.start("--link")
    finally:
        console.kill()
        daemon.kill()


@pytest.fixture
def queues(console: Console) -> tuple[str, str]:
    """Return two queues of this test."""
    number = time.monotonic_ns()
    console.daemon.create(f"a{number}", f"b{number}")
    return f"private$\\a{number}", f"private$\\b{number}"


def ids(client: Client, queue: str) -> list[str]:
    page = client.get(f"/hosts/local/queue?name={queue.replace(chr(92), '%5C')}")
    return re.findall(r'name="id" value="(\d+)"', page.text)


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
        policy = answer.headers["content-security-policy"]
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
    assert (
        "act/move"
        not in console.client("vera")
        .get(f"/hosts/local/queue?name={queues[0].replace(chr(92), '%5C')}")
        .text
    )


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


# -- messages ------------------------------------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202eevil\u2066",
    "</title></textarea></pre><h1>x",
    "{{ 7 * 7 }}",
    "a\x1b[31mb\x07c",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_labels_and_bodies_stay_text(console, queues, text):
    from qmd.client import blocking

    with blocking.connect(console.daemon.folder / "qmd.sock") as qm:
        qm.send(queues[0], text.encode(), label=text)
    client = console.client("anna")
    (lookup_id,) = ids(client, queues[0])
    name = queues[0].replace("\\", "%5C")
    for path in (
        f"/hosts/local/queue?name={name}",
        f"/hosts/local/queue?name={name}&text=a&part=body",
        f"/hosts/local/message?queue={name}&id={lookup_id}",
        "/oldest",
    ):
        page = client.get(path)
        assert page.status == 200, path
        inside = re.sub(r"<textarea.*?</textarea>", "", page.text, flags=re.DOTALL)
        assert "<script>alert" not in page.text
        assert "<img" not in page.text
        assert "<h1>x" not in page.text
        assert ">49<" not in page.text
        assert not set("\u202e\u2066\x1b\x07") & set(inside), path


@pytest.mark.parametrize("body", [b"\xff\xfe\xfd" * 99, b"<a>" * 9999, b"\0" * 5000, b""])
def test_odd_bodies_are_shown(console, queues, body):
    from qmd.client import blocking

    with blocking.connect(console.daemon.folder / "qmd.sock") as qm:
        qm.send(queues[0], body)
    client = console.client("vera")
    (lookup_id,) = ids(client, queues[0])
    for format in ("", "text", "json", "xml", "utf-16", "binary", "activex", "hex", "nonsense"):
        page = client.get(
            f"/hosts/local/message?queue={queues[0].replace(chr(92), '%5C')}&id={lookup_id}"
            f"&as={format}"
        )
        assert page.status == 200, format


def test_messages_are_paged_and_searched(console, queues):
    from qmd.client import blocking, new_message

    with blocking.connect(console.daemon.folder / "qmd.sock") as qm:
        qm.send_many(
            [
                new_message(
                    queues[0], f"body {at:03d}".encode("utf-16-le"), label=f"label {at:03d}"
                )
                for at in range(120)
            ]
        )
    client = console.client("vera")
    base = f"/hosts/local/queue?name={queues[0].replace(chr(92), '%5C')}"

    def labels(path: str) -> list[int]:
        found = re.findall(r"<bdi>label (\d+)</bdi>", client.get(path).text)
        return [int(each) for each in found]

    def link(path: str, words: str) -> str:
        found = re.search(rf'href="([^"]+)">{words}<', client.get(path).text)
        assert found is not None, words
        return found[1].replace("&amp;", "&")

    assert labels(base) == list(range(50))
    second = link(base, "Next page")
    assert labels(second) == list(range(50, 100))
    assert labels(link(second, "Next page")) == list(range(100, 120))
    assert labels(link(second, "Previous page")) == list(range(50))
    assert labels(link(base, "Last page")) == list(range(70, 120))
    assert labels(f"{base}&text=LABEL+07") == list(range(70, 80))
    assert labels(f"{base}&text=body+113&part=body") == [113]
    assert labels(f"{base}&text=body+113&part=label") == []
    more = link(f"{base}&text=label", "Search on")
    assert labels(more) == list(range(50, 100))


def test_the_history_of_a_message_is_on_its_page(console, queues):
    sent = console.daemon.json("send", queues[0], "hello", "--label", "traced")[0]["id"]
    client = console.client("vera")

    found = client.get(f"/find?message={sent.replace(chr(92), '%5C')}")

    assert found.status == 303
    page = client.get(found.headers["location"]).text
    assert 'class="timeline"' in page
    assert " sent" in page
    assert "It is in" in page
    assert "qmd why" in page


# -- actions -------------------------------------------------------------------------------------


def test_an_action_shows_first_what_it_would_do(console, queues):
    console.daemon.cli("send", queues[0], "x", "--label", "one")
    client = console.client("otto")
    client.get("/jobs")

    page = client.post(
        "/hosts/local/act/move", {"queue": queues[0], "target": queues[1], "all": "1"}
    )

    assert page.status == 200
    assert "1 message</b>" in page.text
    assert "Nothing has been done yet" in page.text
    assert "qmd move" in page.text
    assert len(ids(client, queues[0])) == 1


def test_messages_are_moved_and_moved_back(console, queues):
    for at in range(3):
        console.daemon.cli("send", queues[0], f"{at}", "--label", f"m{at}")
    client = console.client("otto")
    started = client.act("local", "move", queue=queues[0], target=queues[1], all="1")

    page = ended(client, started)

    assert "3 messages" in page
    assert len(ids(client, queues[1])) == 3
    undone = client.post(f"{started.headers['location']}/undo", {})
    ended(client, undone)
    assert len(ids(client, queues[0])) == 3
    assert ids(client, queues[1]) == []
    assert client.post(f"{started.headers['location']}/undo", {}).status == 404


def test_chosen_messages_are_moved_and_the_others_stay(console, queues):
    for at in range(3):
        console.daemon.cli("send", queues[0], f"{at}", "--label", f"m{at}")
    client = console.client("otto")
    first, second, third = ids(client, queues[0])

    ended(client, client.act("local", "move", queue=queues[0], target=queues[1],
                             id=[first, third]))  # fmt: skip

    assert ids(client, queues[0]) == [second]


def test_a_message_is_sent_again_with_another_body(console, queues):
    console.daemon.cli("send", queues[0], "old", "--label", "kept")
    client = console.client("otto")
    (lookup_id,) = ids(client, queues[0])

    ended(client, client.act("local", "resend", queue=queues[0], id=lookup_id, to=queues[1],
                             change_body="1", body="new"))  # fmt: skip

    (received,) = console.daemon.json("receive", queues[1])
    assert received["label"] == "kept"
    assert "bmV3" in received["body_base64"]
    assert ids(client, queues[0]) == []


def test_dead_letters_are_sent_again_by_their_reason(console, queues):
    daemon, nowhere = console.daemon, f"DIRECT=TCP:127.0.0.1:{free_port()}\\private$\\x"
    for at in range(5):
        daemon.cli("send", nowhere, f"{at}", "--label", "dead")
    daemon.cli("outgoing", "purge", nowhere, "--yes")
    client = console.client("anna")

    (group,) = [each for each in daemon.json("dead-letter", "list")
                if nowhere in each["reason"]]  # fmt: skip
    assert nowhere in client.get("/dead-letters").text
    chosen = {"queue": DEADLETTER, "class": group["class"], "reason": nowhere}
    client.get("/jobs")
    preview = client.post("/hosts/local/act/resend", {**chosen, "to": queues[1]}).text
    assert "5 messages</b>" in preview
    assert "qmd dead-letter requeue" in preview
    ended(client, client.act("local", "resend", to=queues[1], **chosen))

    assert len(ids(client, queues[1])) == 5
    assert not [each for each in daemon.json("dead-letter", "list") if nowhere in each["reason"]]


def test_an_export_can_be_imported(console, queues, tmp_path):
    console.daemon.cli("send", queues[0], "x", "--label", "exported")
    client = console.client("vera")
    (lookup_id,) = ids(client, queues[0])
    name = queues[0].replace("\\", "%5C")

    exported = client.get(f"/hosts/local/export?queue={name}&id={lookup_id}")

    assert exported.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in exported.headers["content-security-policy"]
    file = tmp_path / "messages.jsonl"
    file.write_text(exported.text)
    console.daemon.cli("import", queues[1], str(file))
    assert json.loads(exported.text)["label"] == "exported"
    assert len(ids(client, queues[1])) == 1


def test_outgoing_queues_are_paused_and_resumed(console):
    daemon, target = console.daemon, f"DIRECT=TCP:127.0.0.1:{free_port()}\\private$\\x"
    daemon.cli("send", target, "hello")
    client = console.client("otto")

    def state() -> str:
        (row,) = [each for each in daemon.json("outgoing", "list")
                  if each["destination"].lower() == target.lower()]  # fmt: skip
        return str(row["state"])

    assert client.act("local", "pause", destination=target).status == 303
    assert state() == "paused"
    assert "done" in client.get("/hosts/local/outgoing").text
    assert client.act("local", "resume", destination=target).status == 303
    assert state() == "waiting"
    assert (
        "Attempts to connect"
        in client.get(f"/hosts/local/destination?name={target.replace(chr(92), '%5C')}").text
    )


def test_queues_are_created_and_deleted(console):
    client, name = console.client("anna"), f"private$\\new{time.monotonic_ns()}"

    assert client.act("local", "create-queue", queue=name, label="made").status == 303
    assert name in [each["name"] for each in console.daemon.json("queue", "list")]
    assert client.act("local", "create-queue", queue=name).status == 409
    assert (
        client.act("local", "delete-queue", queue=name, back="//evil.example").headers["location"]
        == "/hosts/local"
    )
    assert name not in [each["name"] for each in console.daemon.json("queue", "list")]


def test_settings_show_their_source(console):
    page = console.client("anna").get("/hosts/local/settings").text

    assert "[console] port" in page
    assert "qmd.toml" in page
    assert str(console.port) in page


# -- hosts ---------------------------------------------------------------------------------------


def test_a_host_that_is_down_does_not_hide_the_others(console, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    token = tmp_path / "token"
    token.write_text("x")
    hosts = ["local", f"down tcp://127.0.0.1:{port} token={token}", f"gone {tmp_path}/no.sock"]
    daemon = Daemon(tmp_path / "qmd")
    made = Console(daemon, hosts=hosts)
    try:
        daemon.start()
        made.start()
        page = made.client("vera").get("/")
        assert page.status == 200
        assert "2 hosts cannot be reached" in page.text
        assert page.text.count("unreachable</span>") == 2
        assert made.client("vera").get("/hosts/down").status == 502
        assert made.client("vera").get("/hosts/local/queues").status == 200
    finally:
        made.kill()
        daemon.kill()


def test_a_message_is_followed_from_host_to_host(tmp_path):
    sender, receiver = Daemon(tmp_path / "a"), Daemon(tmp_path / "b")
    made = Console(sender, hosts=["a", f"b {receiver.folder / 'qmd.sock'}"])
    try:
        sender.start()
        receiver.start()
        receiver.create("inbox")
        sent = sender.json(
            "send", f"DIRECT=TCP:127.0.0.1:{receiver.port}\\private$\\inbox", "hello"
        )[0]["id"]
        assert receiver.json("receive", "inbox", "--timeout", f"{END_S:.0f}s")
        made.start()
        client = made.client("vera")
        page = client.get(f"/hosts/a/message?message={sent.replace(chr(92), '%5C')}").text
        timeline = page.partition('class="timeline"')[2].partition("</ol>")[0]
        kinds = re.findall(r"</b> (?:<bdi>)?([a-z ]+)", timeline)
        assert kinds[0] == "sent"
        assert "received" in kinds[-1] or "received" in " ".join(kinds)
        fleet = client.get("/").text
        assert "Flows between hosts" in fleet
    finally:
        made.kill()
        sender.kill()
        receiver.kill()


def test_the_console_stops_on_request(console, tmp_path):
    daemon = Daemon(tmp_path / "qmd")
    made = Console(daemon).start()
    try:
        assert made.terminate() == 0
    finally:
        made.kill()
