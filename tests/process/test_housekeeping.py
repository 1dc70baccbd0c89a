"""Housekeeping on queues, from the command line of a running daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.harness import DEADLETTER, Cleaner, Daemon, Hosts, body


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain")
    daemon.create("orders", transactional=True)
    return daemon


@pytest.fixture
def daemon(shared: Daemon, clean: Cleaner) -> Daemon:
    return clean(shared)


def test_messages_are_moved_to_a_subqueue_and_back(daemon: Daemon):
    daemon.send_all("plain", [b"1", b"2", b"3"])
    second = daemon.peek("plain")[1]["lookup_id"]

    (moved,) = daemon.json("move", "plain", "plain;retry", "--lookup-id", str(second))

    assert (moved["messages"], moved["dry_run"]) == (1, False)
    (there,) = daemon.peek("plain;retry")
    assert (body(there), there["move_count"], there["lookup_id"]) == (b"2", 1, second)
    assert there["last_move_at"] is not None
    (queue,) = daemon.json("queue", "show", "plain")
    assert [(each["name"], each["messages"]) for each in queue["subqueues"]] == [
        (r"private$\plain;retry", 1)
    ]
    daemon.json("move", "plain;retry", "plain", "--all")
    assert [body(message) for message in daemon.receive("plain")] == [b"1", b"2", b"3"]


def test_a_move_says_which_messages_it_is_about(daemon: Daemon):
    daemon.send_all("plain", [b"1", b"2"])

    assert daemon.cli("move", "plain", "plain;retry", check=False).returncode == 2
    assert (
        daemon.cli("move", "plain", "plain;retry", "--lookup-id", "5", check=False).returncode == 3
    )
    assert daemon.cli("move", "plain", "orders", "--all", check=False).returncode == 4
    (would,) = daemon.json("move", "plain", "plain;retry", "--limit", "1", "--dry-run")
    assert (would["messages"], would["dry_run"]) == (1, True)
    assert len(daemon.receive("plain")) == 2


def test_nobody_sends_to_a_subqueue(daemon: Daemon):
    daemon.send("plain", b"1")
    daemon.json("move", "plain", "plain;retry", "--all")

    refused = daemon.cli("send", "plain;retry", "2", check=False)

    assert refused.returncode == 4
    assert b"qmd move" in refused.stderr
    assert [body(message) for message in daemon.receive("plain;retry")] == [b"1"]


def test_a_purge_says_what_would_go_and_asks_before_it_goes(daemon: Daemon):
    daemon.send("plain", b"1", "--label", "old")
    daemon.send("plain", b"2", "--label", "new")

    (would,) = daemon.json("queue", "purge", "plain", "--label", "old", "--dry-run")
    assert (would["messages"], would["purged"]) == (1, False)
    refused = daemon.cli("queue", "purge", "plain", "--label", "old", check=False)
    assert refused.returncode == 2
    (purged,) = daemon.json("queue", "purge", "plain", "--label", "old", "--yes")
    assert purged["messages"] == 1

    assert [body(message) for message in daemon.receive("plain")] == [b"2"]


def test_senders_hear_of_messages_that_were_deleted_with_their_queue(daemon: Daemon):
    daemon.create("brief", "answers")
    daemon.send(
        "brief", b"1", "--admin-queue", r".\private$\answers", "--acknowledge", "nack-receive"
    )

    (would,) = daemon.json("queue", "delete", "brief", "--dry-run")
    (gone,) = daemon.json("queue", "delete", "brief", "--yes")

    assert (would["messages"], gone["messages"]) == (1, 1)
    (answer,) = daemon.wait_for("answers", 1)
    assert answer["class"] == "nack_queue_deleted"
    daemon.cli("queue", "delete", "answers", "--yes")


def test_dead_letters_are_grouped_shown_and_sent_again(daemon: Daemon):
    daemon.send_all("plain", [b"1", b"2"], "--time-to-be-received", "1s", "--label", "late")
    daemon.wait_for(DEADLETTER, 2)

    (group,) = daemon.json("dead-letter", "list")
    assert (group["messages"], group["class"]) == (2, "nack_receive_timeout")
    assert group["reason"]
    shown = daemon.json("dead-letter", "show", "--label", "late", "--reason", "not received")
    assert [body(message) for message in shown] == [b"1", b"2"]
    (why,) = daemon.json("dead-letter", "why", shown[0]["id"])
    assert why["state"] == "dead_lettered"
    (would,) = daemon.json("dead-letter", "requeue", "--all", "--dry-run")
    assert (would["messages"], would["dry_run"]) == (2, True)
    (done,) = daemon.json("dead-letter", "requeue", "--id", shown[1]["id"])
    assert done["messages"] == 1

    (again,) = daemon.json("receive", "plain")
    assert (body(again), again["correlation_id"]) == (b"2", shown[1]["id"])
    daemon.json("dead-letter", "move", "plain", "--all")
    assert [body(message) for message in daemon.receive("plain")] == [b"1"]
    assert daemon.json("dead-letter", "list") == []


def test_dead_letters_are_purged_after_a_question_only(daemon: Daemon):
    daemon.send("plain", b"1", "--time-to-be-received", "1s")
    daemon.wait_for(DEADLETTER, 1)

    assert daemon.cli("dead-letter", "purge", check=False).returncode == 2
    (done,) = daemon.json("dead-letter", "purge", "--class", "nack_receive_timeout", "--yes")

    assert done["messages"] == 1


def test_a_message_is_corrected_and_sent_again(daemon: Daemon):
    sent = daemon.send("plain", b"wrnog", "--label", "l")
    place = str(daemon.peek("plain")[0]["lookup_id"])

    (done,) = daemon.json("resend", "plain", place, "--to", "orders", "--body", "wrong")

    assert done["messages"] == 1
    assert daemon.receive("plain") == []
    (again,) = daemon.receive("orders")
    assert (body(again), again["label"], again["correlation_id"]) == (b"wrong", "l", sent)
    assert again["transactional"]


def test_a_body_is_edited_before_it_is_sent_again(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i s/nog/ong/ $1\n")
    editor.chmod(0o755)
    daemon.send("plain", b"wrnog")
    place = str(daemon.peek("plain")[0]["lookup_id"])
    monkeypatch.setattr(daemon, "warm", False)
    monkeypatch.setenv("EDITOR", str(editor))

    daemon.cli("resend", "plain", place, "--edit")

    assert daemon.bodies("plain") == [b"wrong"]
