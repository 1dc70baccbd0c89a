"""The history of messages, with the real command line: `qmd why`, `qmd trace`, `qmd events`.

docs/cli.md "What happened to a message"; docs/events.md.

"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from qmd.client import blocking
from tests.patience import END_S, LOOK_S
from tests.process.harness import DEADXACT, Cleaner, Daemon, Hosts, body, empty_queues, free_port
from tests.process.remote import RemoteQueueManager

QUICK = {"resend": ["500ms"], "retry_first": "50ms", "retry_max": "200ms"}
EVENT = {
    *("schema", "host", "queue_manager", "cursor", "block", "index", "time", "at_ms", "kind"),
    *("message_id", "queue", "peer", "lookup_id", "sequence_id", "sequence_number", "class"),
    *("delivery", "bytes", "reason", "to_queue", "transaction", "label"),
    "correlation_id",
}


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> tuple[Daemon, Daemon]:
    sender = shared_hosts.daemon(delivery=QUICK, queue_manager={"name": "hosta"})
    receiver = shared_hosts.daemon(delivery=QUICK, queue_manager={"name": "hostb"})
    receiver.create("orders", transactional=True)
    receiver.create("plain")
    sender.create("here")
    return sender, receiver


@pytest.fixture
def pair(shared: tuple[Daemon, Daemon], clean: Cleaner) -> Iterator[tuple[Daemon, Daemon]]:
    for daemon in shared:
        clean(daemon)
    yield shared
    for daemon in shared:
        empty_queues(daemon)


def to(receiver: Daemon, queue: str) -> str:
    return f"DIRECT=TCP:127.0.0.1:{receiver.port}\\private$\\{queue}"


def test_both_sides_report_a_message_that_has_arrived(pair: tuple[Daemon, Daemon]) -> None:
    sender, receiver = pair
    sent = sender.send(to(receiver, "orders"), b"ten screws", "--transactional")
    receiver.wait_for("orders", 1)
    wait_until_empty(sender)

    (reported,) = sender.json("why", sent)
    (peer,) = reported["peers"]
    assert peer["answered"], peer["explanation"]
    assert (peer["host"], peer["state"]) == ("hostb", "queued")
    text = sender.cli("why", sent).stdout.decode()
    assert "At hostb (127.0.0.1:" in text
    assert "It is in private$\\orders since" in text
    assert "first in line; no receiver waits for it" in text
    with blocking.connect(receiver.folder / "qmd.sock") as qm:
        assert qm.why(sent)["peers"][0]["host"] == "hosta"
        assert qm.trace(sent)[0]["kind"] == "sent"
        assert any(event["message_id"] == sent for event in qm.events_each())


def test_the_trace_has_the_events_of_both_sides(pair: tuple[Daemon, Daemon]) -> None:
    sender, receiver = pair
    sent = sender.send(to(receiver, "orders"), b"x", "--transactional")
    receiver.wait_for("orders", 1)
    wait_until_empty(sender)
    receiver.receive("orders")

    reported = sender.json("trace", sent)

    assert {event["host"] for event in reported} == {"hosta", "hostb"}
    assert all(set(event) == EVENT and event["message_id"] == sent for event in reported)
    kinds = [event["kind"] for event in reported]
    assert kinds[0] == "sent"
    assert {"transmitted", "accepted", "order_acknowledged", "received"} <= set(kinds)
    lines = sender.cli("trace", sent).stdout.decode().splitlines()
    assert len(lines) == len(reported) + 1
    assert lines[0].split()[:3] == ["TIME", "HOST", "KIND"]


def test_a_computer_that_is_down_is_named_with_the_remedy(pair: tuple[Daemon, Daemon]) -> None:
    sender, _ = pair
    destination = f"DIRECT=TCP:127.0.0.1:{free_port()}\\private$\\q"
    sent = sender.send(destination, b"x")

    deadline = time.monotonic() + END_S
    while True:
        text = sender.cli("why", sent).stdout.decode()
        if "times in a row" in text:
            break
        assert time.monotonic() < deadline, text
        time.sleep(LOOK_S)
    assert f"It waits in the outgoing queue for {destination}" in text
    assert "because: " in text
    assert "no program listens" in text
    assert f"Remedy: Check that the queue manager at {destination[11:26]}" in text


@pytest.mark.parametrize("own", [False, True])
def test_the_remedy_for_a_dead_letter_works(pair: tuple[Daemon, Daemon], own: bool) -> None:
    sender, receiver = pair
    if own:
        sender.create("mine", transactional=True)
    late = f"late{own}"
    options = ["--dead-letter-queue", "mine"] if own else []
    sent = sender.send(to(receiver, late), b"x", "--transactional", *options)
    sender.wait_for("mine" if own else DEADXACT, 1)

    (reported,) = sender.json("why", sent)
    assert reported["state"] == "dead_lettered"
    assert "has no queue" in reported["sentences"][0]
    receiver.create(late, transactional=True)
    (remedy,) = reported["remedies"]
    command = shlex.split(remedy.partition(": ")[2])
    assert command[:3] == ["qmd", "dead-letter", "requeue"]
    sender.cli(*command[1:])

    assert [body(message) for message in receiver.wait_for(late, 1)] == [b"x"]
    (reported,) = sender.json("why", sent, "--only-here")
    assert reported["state"] == "requeued"


def test_a_received_message_is_found_by_its_lookup_id(pair: tuple[Daemon, Daemon]) -> None:
    sender, _ = pair
    sent = sender.send("here", b"x")
    (message,) = sender.receive("here")

    (reported,) = sender.json("why", str(message["lookup_id"]), "--queue", "here")

    assert (reported["message_id"], reported["state"]) == (sent, "received")


def test_an_unknown_message_is_not_found(pair: tuple[Daemon, Daemon]) -> None:
    sender, _ = pair
    unknown = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0\\7"

    done = sender.cli("why", unknown, check=False)
    assert done.returncode == 3
    assert b"has no record of this message" in done.stdout
    assert sender.cli("why", "77", check=False).returncode == 3
    assert sender.cli("why", "nonsense", check=False).returncode == 2
    assert sender.cli("trace", unknown, check=False).returncode == 3


def test_a_queue_manager_that_cannot_answer_is_asked_once(
    pair: tuple[Daemon, Daemon], remote: RemoteQueueManager
) -> None:
    sender, _ = pair
    listener = remote.listen()
    sent = sender.send(listener.destination("q"), b"x")
    peer = listener.accept()
    assert peer.receive().body == b"x"
    wait_until_empty(sender)

    first = sender.cli("why", sent).stdout.decode()
    second = sender.cli("why", sent).stdout.decode()

    assert "did not answer: it does not run qmd" in first
    assert "is not asked again for" in second
    assert "These are the records of hosta" in second
    question = peer.receive()
    assert question.destination.text.endswith("\\private$\\qmd_history$")
    assert question.transaction is None
    peer.read_for(0.2)
    assert peer.inbox == []


def test_a_local_question_asks_no_other_queue_manager(pair: tuple[Daemon, Daemon]) -> None:
    sender, receiver = pair
    sent = sender.send(to(receiver, "plain"), b"x")
    receiver.wait_for("plain", 1)

    (reported,) = sender.json("why", sent, "--only-here")

    assert reported["peers"] == []
    assert reported["sides"] == "These are the records of hosta; no other queue manager was asked."


def test_an_outgoing_queue_shows_its_figures_and_its_connection_in_words(
    pair: tuple[Daemon, Daemon],
) -> None:
    sender, receiver = pair
    destination = to(receiver, "orders")
    sender.send(destination, b"x", "--transactional")
    wait_until_empty(sender)

    (facts,) = sender.json("outgoing", "show", destination)
    text = sender.cli("outgoing", "show", destination).stdout.decode()

    assert facts["sequence"]["last_ack"] == facts["sequence"]["next_number"] - 1
    assert f"a session with 127.0.0.1:{receiver.port} was opened" in text
    assert "exactly-once delivery" in text
    assert "unacknowledged                      0 (0 of them sent)" in text
    assert "messages is unacknowledged." in sender.cli("sequence", "list").stdout.decode()
    assert "were stored, in order." in receiver.cli("sequence", "list").stdout.decode()


# qmd events


def test_the_last_events_are_printed_and_filtered(pair: tuple[Daemon, Daemon]) -> None:
    sender, _ = pair
    sent = [sender.send("here", b"%d" % each) for each in range(3)]
    sender.receive("here")

    reported = sender.json("events", "tail", "--queue", "here", "--lines", "6")
    received = sender.json("events", "tail", "--kind", "received", "--since", "1h")

    assert [event["message_id"] for event in reported if event["kind"] == "sent"] == sent
    assert [event["message_id"] for event in received][-3:] == sent
    assert {event["kind"] for event in received} == {"received"}
    assert sender.cli("events", "tail", "--kind", "nonsense", check=False).returncode == 4
    assert len(sender.json("events", "tail", "--lines", "2")) == 2


def test_following_shows_new_events(pair: tuple[Daemon, Daemon]) -> None:
    sender, _ = pair
    sender.send("here", b"before")
    follower = sender.spawn_cli("events", "tail", "--follow", "--lines", "1", "--json")
    assert follower.stdout is not None
    with follower.stdout as lines:
        try:
            json.loads(lines.readline())  # the last event: the command follows from here

            sent = sender.send("here", b"after")

            event = json.loads(lines.readline())
            assert (event["kind"], event["message_id"]) == ("sent", sent)
        finally:
            follower.terminate()
            assert follower.wait(END_S) == 130


def test_an_export_continues_the_last_one(pair: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    sender, _ = pair
    first = [sender.send("here", b"%d" % each) for each in range(5)]
    one, two = tmp_path / "one.ndjson", tmp_path / "two.ndjson"
    (summary,) = sender.json("events", "export", str(one), "--kind", "sent")
    second = [sender.send("here", b"%d" % each) for each in range(3)]
    (rest,) = sender.json("events", "export", str(two), "--from", summary["next"], "--kind", "sent")

    reported = [json.loads(line) for line in one.read_text().splitlines()]
    assert [event["message_id"] for event in reported][-5:] == first
    assert all(set(event) == EVENT for event in reported)
    assert summary["events"] == len(reported)
    reported = [json.loads(line) for line in two.read_text().splitlines()]
    assert [event["message_id"] for event in reported] == second
    assert rest["events"] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.ndjson", "two.ndjson"]


def test_an_export_is_limited_to_a_time(pair: tuple[Daemon, Daemon]) -> None:
    sender, _ = pair
    sender.send("here", b"x")
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()

    everything = sender.cli("events", "export", "-", "--to", later).stdout.splitlines()
    nothing = sender.cli("events", "export", "-", "--from", later).stdout.splitlines()

    assert everything
    assert nothing == []
    assert sender.cli("events", "export", "-", "--from", "soon", check=False).returncode == 2
    of_another_log = sender.cli("events", "export", "-", "--from", "99999.0", check=False)
    assert of_another_log.returncode != 0
    assert b"a backup of the data folder was restored" in of_another_log.stderr


def test_parquet_without_pyarrow_is_one_line_with_the_remedy(
    pair: tuple[Daemon, Daemon], tmp_path: Path
) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        pass
    else:
        pytest.skip("pyarrow is installed")
    sender, _ = pair
    file = tmp_path / "events.parquet"

    done = sender.cli("events", "export", str(file), "--format", "parquet", check=False)

    assert done.returncode == 1
    assert b"pip install '.[spark]'" in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_parquet_has_the_same_events(pair: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    sender, receiver = pair
    sender.send(to(receiver, "orders"), b"x", "--transactional")
    wait_until_empty(sender)
    file, lines = tmp_path / "events.parquet", tmp_path / "events.ndjson"
    (summary,) = sender.json("events", "export", str(lines))
    sender.json("events", "export", str(file), "--format", "parquet")

    rows = parquet.read_table(file).to_pylist()

    reported = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(rows) == summary["events"] == len(reported)
    for row, event in zip(rows, reported, strict=True):
        assert row.pop("time").timestamp() == pytest.approx(event["at_ms"] / 1000)
        sequence_id = row.pop("sequence_id")
        assert (None if sequence_id is None else int(sequence_id)) == event.pop("sequence_id")
        del event["time"]
        assert row == event


def wait_until_empty(daemon: Daemon) -> None:
    """Wait until all outgoing messages are acknowledged."""
    deadline = time.monotonic() + END_S
    while any(
        row["messages"] for row in daemon.json("outgoing", "list") if row["state"] != "waiting"
    ):
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)
