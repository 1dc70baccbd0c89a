"""The command line for persons and scripts: names, JSON, exit codes."""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from qmd.bodies.bus_headers import write_bus_headers
from tests.patience import END_S, LOOK_S
from tests.process import wire
from tests.process.command_line import run
from tests.process.harness import (
    DEADLETTER,
    DEADXACT,
    JOURNAL,
    Daemon,
    Hosts,
    body,
    free_port,
)
from tests.process.remote import RemoteQueueManager

MESSAGE_KEYS = {
    "id", "lookup_id", "label", "body_base64", "body_type", "class", "priority", "delivery",
    "transactional", "sent_at", "arrived_at", "source", "correlation_id", "sequence", "reason",
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain")
    daemon.create("orders", transactional=True)
    return daemon


@pytest.fixture
def program(daemon: Daemon) -> Iterator[Daemon]:
    """Yield the same daemon; its commands are real programs, as users start them."""
    daemon.warm = False
    yield daemon
    daemon.warm = True


def test_a_message_is_shown_with_at_least_the_documented_names(daemon: Daemon):
    before = datetime.now(UTC) - timedelta(seconds=2)
    sent = daemon.send(
        "plain", b"\0\1\xff", "--recoverable", "--label", "Ä label", "--priority", "5"
    )

    (message,) = daemon.receive("plain")

    assert set(message) >= MESSAGE_KEYS
    assert message["id"] == sent
    assert isinstance(message["lookup_id"], int)
    assert message["label"] == "Ä label"
    assert body(message) == b"\0\1\xff"
    assert message["body_type"] == 0
    assert message["class"] == "normal"
    assert message["priority"] == 5
    assert message["delivery"] == "recoverable"
    assert message["transactional"] is False
    assert message["sequence"] is None
    assert message["reason"] is None
    for key in ("sent_at", "arrived_at"):
        at = datetime.fromisoformat(message[key])
        assert at.tzinfo is not None
        assert before <= at <= datetime.now(UTC) + timedelta(seconds=2)
    (status,) = daemon.json("status")
    assert message["source"] == status["queue_manager"]


def test_a_transactional_message_shows_its_place_in_the_sequence(
    daemon: Daemon, remote: RemoteQueueManager
):
    peer = remote.connect(daemon.port)
    sequence = 1234 << 32 | 5
    peer.send(remote.transactional("orders", sequence, 7, 0))
    peer.wait_order_ack(sequence, 7)

    (message,) = daemon.receive("orders")

    assert message["transactional"] is True
    assert set(message["sequence"]) >= {"id", "number", "previous"}
    assert message["sequence"]["number"] == 7
    assert message["sequence"]["previous"] == 0


@pytest.mark.parametrize("formatter", ["xml", "binary", "activex", "utf-16"])
def test_a_body_is_written_and_shown_as_applications_on_windows_do(daemon: Daemon, formatter: str):
    daemon.cli("send", "plain", "grün", "--formatter", formatter)

    (shown,) = daemon.json("peek", "plain", "--content")
    text = daemon.cli("receive", "plain", "--body-only", "--content").stdout
    assert shown["content_format"] == ("text" if formatter == "utf-16" else formatter)
    assert shown["content"] == "grün"
    assert text.decode().strip() == "grün"


def test_an_object_is_written_as_xml(daemon: Daemon):
    order = ("--body-json", '{"Article": "screw"}', "--formatter", "xml")
    refused = daemon.cli("send", "plain", *order, check=False)
    daemon.cli("send", "plain", *order, "--root", "Order")

    (message,) = daemon.json("receive", "plain", "--content")

    assert refused.returncode == 2
    assert b"root" in refused.stderr
    assert b"<Order " in body(message)
    assert message["content"] == {"Article": "screw"}


def test_a_body_that_contradicts_its_type_is_shown_as_bytes(daemon: Daemon):
    daemon.cli("send", "plain", "abc", "--body-type", "VT_I4")

    (message,) = daemon.json("receive", "plain", "--content")

    assert (message["content_format"], message["content"]) == ("bytes", "YWJj")


def test_headers_of_a_service_bus_are_shown(daemon: Daemon):
    headers = {"NServiceBus.MessageId": "1", "NServiceBus.FailedQ": "billing@hostb"}
    extension = base64.b64encode(write_bus_headers("NServiceBus", headers)).decode()
    daemon.cli("send", "plain", "<Order/>", "--extension-base64", extension)

    row = daemon.cli("peek", "plain", "--content").stdout.decode()
    (message,) = daemon.json("receive", "plain", "--content")

    assert "NServiceBus: failed in billing@hostb" in row
    assert message["bus_headers"]["failed_queue"] == "billing@hostb"
    assert message["bus_headers"]["headers"] == headers


def test_peek_changes_nothing(program: Daemon):
    program.send_all("plain", [b"1", b"2", b"3"], "--recoverable")

    first = program.peek("plain")
    again = program.peek("plain")
    received = program.receive("plain")

    assert first == again == received
    assert [body(message) for message in received] == [b"1", b"2", b"3"]
    assert program.peek("plain") == []


def test_receive_takes_one_message_by_default(daemon: Daemon):
    daemon.send_all("plain", [b"1", b"2", b"3", b"4"], "--recoverable")

    one = daemon.json("receive", "plain")
    two = daemon.json("receive", "plain", "--count", "2")
    rest = daemon.json("receive", "plain", "--all")

    assert [[body(m) for m in part] for part in (one, two, rest)] == [[b"1"], [b"2", b"3"], [b"4"]]


def test_local_messages_are_in_order_of_priority_and_then_of_arrival(daemon: Daemon):
    for priority, text in ((1, b"a"), (6, b"b"), (1, b"c"), (6, b"d"), (7, b"e")):
        kind = "--express" if priority == 6 else "--recoverable"
        daemon.send("plain", text, kind, "--priority", str(priority))

    assert daemon.bodies("plain") == [b"e", b"b", b"d", b"a", b"c"]


def test_any_spelling_of_a_local_queue_reaches_it(daemon: Daemon):
    (status,) = daemon.json("status")
    port, name = daemon.port, status["name"]
    spellings = (
        "plain", "PLAIN", "private$\\plain", ".\\private$\\plain",
        "DIRECT=OS:.\\private$\\plain", "direct=os:.\\PRIVATE$\\Plain",
        f"DIRECT=TCP:127.0.0.1:{port}\\private$\\plain", f"DIRECT=OS:{name}\\private$\\plain",
        f"{name}\\private$\\plain", f"plain@{name}", f"plain@127.0.0.1:{port}",
    )  # fmt: skip

    sent = {each: daemon.json("send", each, each, "--recoverable") for each in spellings}
    found = daemon.wait_for("plain", len(spellings))
    arrived = {body(message).decode(): message["id"] for message in found}

    assert arrived == {each: row["id"] for each, (row,) in sent.items()}
    for each, (row,) in sent.items():
        assert row["destination"].upper().startswith("DIRECT="), each
    assert len(daemon.receive("plain")) == len(spellings)


@pytest.mark.parametrize(
    "spelling", ["q@127.0.0.1:{port}", "DIRECT=TCP:127.0.0.1:{port}\\private$\\q"]
)
def test_any_spelling_of_a_remote_queue_reaches_it(
    daemon: Daemon, remote: RemoteQueueManager, spelling: str
):
    listener = remote.listen()

    daemon.cli("send", spelling.format(port=listener.port), "x", "--recoverable")

    message = listener.accept().receive()
    assert message.destination.text.lower() == "tcp:127.0.0.1\\private$\\q"


def test_another_name_of_this_computer_stands_for_it(hosts: Hosts):
    daemon = hosts.daemon(queue_manager={"name": "Alpha", "aliases": ["Beta.example.org"]})
    daemon.create("plain")

    for host in ("alpha", "ALPHA", "beta.example.org", "BETA.Example.ORG", "localhost"):
        daemon.cli("send", f"DIRECT=OS:{host}\\private$\\plain", host, "--recoverable")

    assert len(daemon.receive("plain")) == 5


def test_the_body_may_come_from_the_command_a_file_or_standard_input(program: Daemon, tmp_path):
    path = tmp_path / "body"
    path.write_bytes(b"from a file\n\0")

    program.cli("send", "plain", "from the command", "--recoverable")
    program.cli("send", "plain", "--file", str(path), "--recoverable")
    program.cli("send", "plain", "--file", "-", "--recoverable", input=b"from standard input")

    assert program.bodies("plain") == [
        b"from the command",
        b"from a file\n\0",
        b"from standard input",
    ]


def test_a_body_of_almost_4_mb_goes_in_and_out(program: Daemon):
    content = bytes(range(256)) * 16_300

    program.cli("send", "plain", "--file", "-", "--recoverable", input=content)

    assert program.bodies("plain") == [content]


def test_a_body_over_4_mb_is_refused(daemon: Daemon):
    done = daemon.cli(
        "send", "plain", "--file", "-", "--recoverable", input=bytes(4 * 1024 * 1024 + 1),
        check=False,
    )  # fmt: skip

    assert done.returncode == 4
    assert daemon.receive("plain") == []


def test_a_transactional_queue_takes_transactional_messages_by_itself(daemon: Daemon):
    daemon.cli("send", "orders", "x")

    (message,) = daemon.receive("orders")
    assert message["transactional"] is True


def test_qmd_config_stands_for_the_option(daemon: Daemon):
    done = run(["status", "--json"], environment={"QMD_CONFIG": str(daemon.config)})

    assert json.loads(done.stdout)["listen"] == [f"127.0.0.1:{daemon.port}"]


def test_the_system_queues_exist_from_the_start(hosts: Hosts):
    daemon = hosts.daemon()

    for queue in (DEADXACT, DEADLETTER, JOURNAL):
        assert daemon.peek(queue) == []
    listed = {row["name"].lower() for row in daemon.json("queue", "list", "--system")}
    assert any("order_queue$" in name for name in listed)
    assert daemon.json("queue", "list") == []


def test_the_life_of_a_queue(program: Daemon):
    program.cli("queue", "create", "private$\\short", "--transactional", "--label", "a label")
    (shown,) = program.json("queue", "show", "short")
    assert shown["transactional"] is True
    assert shown["label"] == "a label"
    assert shown["messages"] == 0
    assert "short" in shown["format_name"]
    program.send_all("short", [b"1", b"2", b"3"], "--transactional")
    assert program.count("short") == 3
    assert any(row["name"].endswith("short") for row in program.json("queue", "list"))

    program.cli("queue", "purge", "short", "--yes")
    assert program.count("short") == 0
    program.cli("queue", "delete", "short", "--yes")

    assert program.cli("queue", "show", "short", check=False).returncode == 3


def test_a_queue_and_its_kind_survive_a_kill(hosts: Hosts):
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    daemon.create("plain")

    daemon.restart()

    kinds = {row["name"]: row["transactional"] for row in daemon.json("queue", "list")}
    assert sorted(kinds.values()) == [False, True]
    assert daemon.cli("send", "plain", "x", "--transactional", check=False).returncode == 4


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (2, ["no-such-command"]),
        (2, ["send"]),
        (2, ["send", "plain", "--priority", "8"]),
        (2, ["send", "plain", "--body-base64", "%%%"]),
        (2, ["receive", "plain", "--timeout", "5 parsecs"]),
        (2, ["receive", "DIRECT=nonsense"]),
        (3, ["receive", "no-such-queue"]),
        (3, ["peek", "no-such-queue"]),
        (3, ["queue", "show", "no-such-queue"]),
        (3, ["queue", "delete", "no-such-queue", "--yes"]),
        (3, ["send", "no-such-queue", "x"]),
        (4, ["queue", "create", "plain"]),
        (4, ["send", "orders", "x", "--recoverable"]),
        (4, ["send", "plain", "x", "--transactional"]),
        (6, ["receive", "plain"]),
        (6, ["peek", "plain"]),
        (6, ["receive", "plain", "--timeout", "50ms"]),
        (0, ["receive", "plain", "--all"]),
        (0, ["peek", "plain", "--all"]),
    ],
)
def test_exit_codes_have_their_meanings(program: Daemon, code: int, arguments: list[str]):
    done = program.cli(*arguments, check=False)

    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    if code:
        assert done.stdout == b""
        assert len(done.stderr.strip().splitlines()) == (0 if code == 6 else 1)


def test_an_unreachable_daemon_is_reported_in_one_line(hosts: Hosts):
    daemon = hosts.daemon(start=False)

    done = daemon.cli("status", check=False)

    assert done.returncode == 5
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_missing_configuration_is_reported_in_one_line(tmp_path):
    done = run(["--config", str(tmp_path / "nothing.toml"), "status"], check=False)

    assert done.returncode == 78
    assert len(done.stderr.strip().splitlines()) == 1


def test_receive_waits_for_a_message_that_comes_over_the_wire(
    daemon: Daemon, remote: RemoteQueueManager
):
    waiting = daemon.spawn_cli("receive", "plain", "--timeout", "20s", "--json")
    deadline = time.monotonic() + END_S
    while daemon.json("queue", "show", "plain")[0]["readers_waiting"] == 0:
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)
    peer = remote.connect(daemon.port)

    peer.send(remote.message("plain", b"at last", recoverable=True))

    output, _ = waiting.communicate(timeout=END_S)
    assert waiting.returncode == 0
    assert body(json.loads(output)) == b"at last"
    assert daemon.receive("plain") == []


def test_a_receiver_that_is_killed_during_its_wait_takes_no_message(
    daemon: Daemon, remote: RemoteQueueManager
):
    waiting = daemon.spawn_cli("receive", "plain", "--follow", "--json")
    deadline = time.monotonic() + END_S
    while daemon.json("queue", "show", "plain")[0]["readers_waiting"] == 0:
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)
    waiting.kill()
    waiting.communicate()
    while daemon.json("queue", "show", "plain")[0]["readers_waiting"] != 0:
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)

    daemon.send("plain", b"x", "--recoverable")

    assert daemon.bodies("plain") == [b"x"]


def test_follow_prints_arriving_messages_until_it_is_interrupted(daemon: Daemon):
    following = daemon.spawn_cli("receive", "plain", "--follow", "--json")
    assert following.stdout is not None
    try:
        for text in (b"1", b"2"):
            daemon.send("plain", text, "--recoverable")
            assert body(json.loads(following.stdout.readline())) == text
        following.send_signal(signal.SIGINT)
        assert following.wait(END_S) == 130
    finally:
        following.kill()
        following.wait()
        following.stdout.close()
    assert daemon.receive("plain") == []


def test_sessions_and_sequences_are_shown(daemon: Daemon, remote: RemoteQueueManager):
    peer = remote.connect(daemon.port)
    sequence = 99 << 32 | 1
    peer.send(remote.transactional("orders", sequence, 1))
    peer.send(remote.transactional("orders", sequence, 2))
    peer.wait_order_ack(sequence, 2)

    sessions = daemon.json("session", "list")
    incoming = [row for row in daemon.json("sequence", "list") if row["id"] == sequence]

    assert any(row["received"] == 2 for row in sessions)
    assert [row["number"] for row in incoming] == [2]
    daemon.receive("orders")


def test_many_messages_come_out_as_one_json_object_a_line(program: Daemon):
    ids = program.send_all("plain", [b"%d" % number for number in range(1000)], "--recoverable")

    output = program.cli("receive", "plain", "--all", "--json").stdout.splitlines()

    assert [json.loads(line)["id"] for line in output] == ids
    assert len(set(ids)) == 1000


def test_a_label_cannot_control_the_terminal(daemon: Daemon, remote: RemoteQueueManager):
    peer = remote.connect(daemon.port)
    peer.send(remote.message("plain", b"\x1b[2Jbody", label="\x1b]0;owned\x07", recoverable=True))
    peer.wait_stored()

    shown = daemon.cli("receive", "plain", "--all").stdout

    assert b"\x1b" not in shown
    assert b"\x07" not in shown


@pytest.mark.parametrize(
    "arguments",
    [[], ["send"], ["receive"], ["peek"], ["serve"], ["init"], ["status"], ["queue"],
     ["queue", "create"], ["outgoing"], ["sequence"], ["session"]],
)  # fmt: skip
def test_help_comes_quickly(arguments: list[str]):
    best_s, processor_s = map(min, zip(*(_time(arguments) for _ in range(3)), strict=True))

    # The limit is 200 ms.  On a busy machine only the processor time of the command counts,
    # which is longer when other processes use the processor's caches.
    assert best_s < 0.2 or (os.getloadavg()[0] >= 1 and processor_s < 0.4)


def _time(arguments: list[str]) -> tuple[float, float]:
    """Return the elapsed time and the processor time."""
    started, used_s = time.monotonic(), _used_by_children_s()
    done = run([*arguments, "--help"])
    assert b"Usage" in done.stdout
    return time.monotonic() - started, _used_by_children_s() - used_s


def _used_by_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_nothing_is_lost_when_the_reader_of_the_output_goes_away(daemon: Daemon):
    daemon.send_all("plain", [b"x" * 1000] * 500, "--recoverable")
    process = daemon.spawn_cli("receive", "plain", "--all", "--json")
    assert process.stdout is not None
    read = [process.stdout.readline() for _ in range(10)]
    process.stdout.close()
    assert process.wait(END_S) != 0

    assert all(read)
    left = len(daemon.receive("plain"))
    assert left >= 500 - 10 - 64 * 4, "only what was printed into the closed pipe is gone"


def test_a_send_to_a_closed_port_is_accepted_and_waits(daemon: Daemon):
    destination = f"DIRECT=TCP:127.0.0.1:{free_port()}\\private$\\q"

    daemon.send(destination, b"x", "--recoverable")

    (shown,) = daemon.json("outgoing", "show", destination)
    assert shown["messages"] == 1
    assert shown["state"] != "connected"


def test_the_id_of_a_message_is_its_source_and_its_number(
    daemon: Daemon, remote: RemoteQueueManager
):
    listener = remote.listen()
    sent = daemon.send(listener.destination("q"), b"x", "--express")
    message = listener.accept().receive()
    assert isinstance(message, wire.Message)

    guid, number = sent.split("\\")
    (status,) = daemon.json("status")
    assert guid == status["queue_manager"]
    assert int(number) == message.message_id
