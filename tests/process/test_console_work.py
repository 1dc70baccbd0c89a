"""The console as a program: hostile texts, pages of messages, actions and several hosts."""

from __future__ import annotations

import html
import json
import re
import socket
import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest

pytest.importorskip("jinja2", reason="the extra qmd-msmq[console] is not installed")
pytest.importorskip("httptools", reason="the extra qmd-msmq[console] is not installed")

from qmd.bodies.bus_headers import write_bus_headers
from tests.patience import END_S
from tests.process.console_program import (
    Console,
    ended,
    ids,
    make_queues,
    open_console,
    page_of,
)
from tests.process.harness import DEADLETTER, Daemon, free_port

pytestmark = pytest.mark.process
ORDERS = "private$\\orders"


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    yield from open_console(tmp_path_factory.mktemp("console"))


@pytest.fixture
def queues(console: Console) -> tuple[str, str]:
    return make_queues(console)


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
        extension = write_bus_headers("Rebus", {"rbs2-msg-type": text, "rbs2-source-queue": text})
        qm.send(queues[0], text.encode(), label=text, extension=extension)
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


def test_the_oldest_messages_include_those_for_other_hosts(console):
    from qmd.client import blocking

    destination = f"DIRECT=TCP:127.0.0.1:{free_port()}\\private$\\late"
    with blocking.connect(console.daemon.folder / "qmd.sock") as qm:
        qm.send(destination, b"1", delivery="recoverable")
    client = console.client("vera")
    end = time.monotonic() + END_S
    while "private$\\late" not in (page := client.get("/oldest").text):  # answers are shared
        assert time.monotonic() < end
        time.sleep(0.5)
    assert "Messages wait until a session" in page


def test_a_message_is_found_by_a_part_of_its_label(console, queues):
    client, label = console.client("vera"), f"invoice {time.monotonic_ns()}"
    console.daemon.send(queues[0], b"x", "--label", label)
    console.daemon.send(queues[1], b"x", "--label", label, "--dead-letter")
    console.daemon.cli("reject", queues[1], "--yes")

    found = client.get(f"/find?message={label[4:].replace(' ', '%20')}").text

    rows = found.partition("<tbody>")[2].partition("</tbody>")[0]
    assert rows.count(label) == 2, found
    assert queues[0] in html.unescape(rows)
    assert "application rejected the message" in rows
    assert "Answers of the hosts" not in found, "it is no id"
    assert "Not found" in client.get("/find?message=nothing-like-that").text


def test_a_message_for_another_host_is_found_and_leads_to_its_page(console):
    label = f"waybill {time.monotonic_ns()}"
    destination = f"DIRECT=TCP:127.0.0.1:{free_port()}\\private$\\late"
    for name in (label, "another"):
        console.daemon.send(destination, b"x", "--label", name, "--recoverable")
    client = console.client("vera")

    found = client.get(f"/find?message={quote(label.upper()[3:])}").text

    rows = found.partition('aria-label="Messages for other hosts"')[2]
    rows = rows.partition("<tbody>")[2].partition("</tbody>")[0]
    assert (rows.count("<tr>"), label in rows, "waiting" in rows) == (1, True, True), found
    assert "outgoing messages --find" in found
    assert "Not found" not in found
    message, queue = re.findall(r'href="([^"]+)"', rows)
    assert "private$\\late" in html.unescape(client.get(html.unescape(message)).text)
    listed = client.get(html.unescape(queue)).text
    assert label in listed
    assert ">another<" in listed
    listed = client.get(f"{html.unescape(queue)}&text={quote(label)}").text
    assert label in listed
    assert ">another<" not in listed


def test_headers_of_a_service_bus_are_on_the_page_of_a_message(console, queues):
    from qmd.client import blocking

    headers = {"NServiceBus.MessageId": "1", "NServiceBus.FailedQ": "billing@hostb"}
    with blocking.connect(console.daemon.folder / "qmd.sock") as qm:
        qm.send(queues[0], "a", extension=write_bus_headers("NServiceBus", headers))
    client = console.client("vera")
    (lookup_id,) = ids(client, queues[0])
    name = queues[0].replace("\\", "%5C")
    page = client.get(f"/hosts/local/message?queue={name}&id={lookup_id}")
    assert "NServiceBus: failed in billing@hostb" in page.text


@pytest.mark.parametrize("body", [b"\xff\xfe\xfd" * 99, b"<a>" * 9999, b"\0" * 5000, b""])
def test_odd_bodies_are_shown(console, queues, body):
    from qmd.client import blocking

    with blocking.connect(console.daemon.folder / "qmd.sock") as qm:
        qm.send(queues[0], body)
    client = console.client("vera")
    (lookup_id,) = ids(client, queues[0])
    for format in ("", "text", "json", "xml", "utf-16", "binary", "activex", "hex", "nonsense"):
        page = client.get(
            f"/hosts/local/message?queue={quote(queues[0])}&id={lookup_id}&as={format}"
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
    base = page_of(queues[0])

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


def test_dead_letters_that_were_sent_again_are_taken_back_unless_they_were_received(
    console, queues
):
    for at in range(3):
        console.daemon.cli("send", queues[0], f"{at}", "--dead-letter")
    console.daemon.cli("reject", queues[0], "--count", "3", "--yes")
    client = console.client("otto")
    started = client.act("local", "resend", queue=DEADLETTER, destination=queues[0])
    assert "3 messages" in ended(client, started)
    console.daemon.cli("receive", queues[0])

    page = ended(client, client.post(f"{started.headers['location']}/undo", {}))

    assert "2 messages" in page
    assert "1 message skipped" in page
    assert ids(client, queues[0]) == []
    (group,) = [
        each
        for each in console.daemon.json("dead-letter", "list")
        if queues[0] in each["destination"]
    ]
    assert (group["messages"], group["class"]) == (2, "nack_receive_rejected")
    assert "took back" in group["reason"]


def test_a_move_back_leaves_out_messages_that_were_received(console, queues):
    for at in range(3):
        console.daemon.cli("send", queues[0], f"{at}")
    client = console.client("otto")
    started = client.act("local", "move", queue=queues[0], target=queues[1], all="1")
    ended(client, started)
    console.daemon.cli("receive", queues[1])

    page = ended(client, client.post(f"{started.headers['location']}/undo", {}))

    assert "1 message skipped" in page
    assert len(ids(client, queues[0])) == 2


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


def test_settings_show_their_source_and_what_they_need(console):
    client = console.client("anna")
    page = client.get("/hosts/local/settings").text
    assert "console.port" in page
    assert "qmd.toml:" in page
    assert str(console.port) in page

    console.daemon.configure({"log": {"level": "warning"}})
    until = time.monotonic() + END_S
    while "needs a reload" not in client.get("/hosts/local/settings").text:
        assert time.monotonic() < until
    assert client.act("local", "reload-settings").status == 303
    assert "needs a reload" not in client.get("/hosts/local/settings").text


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
