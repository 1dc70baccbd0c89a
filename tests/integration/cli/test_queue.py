"""qmd queue, and its questions before a command loses messages."""

import json
import os
import pty
import subprocess
import sys

import pytest

from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames
from tests.patience import END_S


def test_queues_are_listed_as_a_table_or_as_json(qmd, peer):
    peer.put(r"private$\orders", b"1", b"2")

    table = qmd("queue", "list").output.splitlines()
    (listed,) = map(json.loads, qmd("queue", "list", "--json").output.splitlines())

    assert table[0].split() == ["NAME", "TRANSACTIONAL", "MESSAGES", "BYTES", "JOURNAL", "LABEL"]
    assert table[1].split() == [r"private$\orders", "no", "2", "-", "-", "-"]
    assert listed == {"name": r"private$\orders", "messages": 2, "transactional": False}


def test_an_empty_list_of_queues_is_not_an_error(qmd, peer):
    result = qmd("queue", "list")

    assert result.exit_code == 0
    assert result.stdout == ""
    assert "qmd queue create" in result.stderr


def test_a_purge_needs_yes_without_a_terminal(qmd, peer):
    peer.put("orders", b"1", b"2")

    refused = qmd("queue", "purge", "orders")
    assert refused.exit_code == 2
    assert refused.stderr == (
        "qmd: error QM-5008: purge orders with 2 messages: no terminal to ask for confirmation;"
        " add --yes\n"
    )
    assert len(peer.queues["orders"]) == 2

    done = qmd("queue", "purge", "orders", "--yes", "--json")
    assert json.loads(done.output) == {
        "name": "orders",
        "purged": True,
        "messages": 2,
        "dry_run": False,
    }
    assert peer.queues["orders"] == []


@pytest.mark.parametrize(("answer", "left"), [(b"y\n", 0), (b"n\n", 2), (b"\n", 2)])
def test_the_user_is_asked_before_messages_are_lost(peer, config, answer, left):
    peer.put("orders", b"1", b"2")
    keyboard, terminal = pty.openpty()
    os.write(keyboard, answer)

    done = subprocess.run(
        [sys.executable, "-m", "qmd", "--config", config, "queue", "purge", "orders"],
        stdin=terminal,
        capture_output=True,
        timeout=END_S,
    )
    os.close(keyboard)
    os.close(terminal)

    assert b"purge orders with 2 messages? [y/N]" in done.stderr
    assert (done.returncode == 0) == (left == 0)
    assert len(peer.queues["orders"]) == left


def test_an_empty_queue_is_deleted_without_a_question(qmd, peer):
    peer.refusals[operator_frames.DeleteQueue] = frames.Refused(0, "read_only", "not this one")

    result = qmd("queue", "delete", "orders")

    assert result.stderr == "qmd: not this one\n"
    assert peer.requests_of(operator_frames.DeleteQueue)[0].name == "orders"


def test_a_queue_is_created_with_the_given_options(qmd, peer):
    peer.refusals[operator_frames.CreateQueue] = frames.Refused(0, "queue_exists", "it is there")

    qmd("queue", "create", "orders", "--transactional", "--label", "a", "--quota", "64KiB")

    (request,) = peer.requests_of(operator_frames.CreateQueue)
    assert (request.name, request.transactional, request.label) == ("orders", True, "a")
    assert (request.journal, request.quota_bytes) == (False, 65536)


def test_only_the_given_properties_are_changed(qmd, peer):
    qmd("queue", "set", "orders", "--quota", "2GB", "--no-journal")
    qmd("queue", "set", "orders", "--journal-quota", "none", "--label", "")

    first, second = peer.requests_of(operator_frames.SetQueue)
    assert first == operator_frames.SetQueue(
        first.number, "orders", 2_000_000_000, None, False, None
    )
    assert second == operator_frames.SetQueue(
        second.number, "orders", None, frames.UNLIMITED, None, ""
    )


def test_a_change_without_properties_is_wrong_usage(qmd, peer):
    result = qmd("queue", "set", "orders")

    assert result.exit_code == 2
    assert "--quota" in result.stderr
    assert peer.requests_of(operator_frames.SetQueue) == []
