"""Operations on many messages: in pieces, and consistent after Ctrl-C or a kill at any moment."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qmd.cli.packed_lines import rows
from tests.patience import END_S
from tests.process.command_line import COMMAND, ROOT, environment_of_commands
from tests.process.harness import DEADLETTER, DEADXACT, Daemon, Hosts, body

COUNT = 30_000
FEWER = 4_096
FEWEST = 2_048  # two pieces
STEP_MESSAGES = 1_024


def begin(
    daemon: Daemon, is_under_way: Callable[[], object], *words: str
) -> subprocess.Popen[bytes]:
    """Start a command; return when it has done something, or has ended."""
    command = subprocess.Popen(
        [*COMMAND, "--config", str(daemon.config), *words],
        cwd=ROOT,
        env=environment_of_commands(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # Tests that run in the background of a shell ignore it, and so would the command.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + END_S
    while not is_under_way() and command.poll() is None:
        assert time.monotonic() < deadline
    return command


def test_a_move_that_is_interrupted_continues_in_order(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    daemon.create("orders", "later", transactional=True)
    lines = [b"%d" % number for number in range(COUNT)]
    daemon.send_all("private$\\orders", lines, "--transactional")
    words = ("move", "orders", "later", "--all")
    command = begin(daemon, lambda: daemon.count("later"), *words)
    command.send_signal(signal.SIGINT)
    _, said = command.communicate(timeout=END_S)

    moved = daemon.count("later")
    assert moved + daemon.count("orders") == COUNT, "each message is in one queue"
    if command.returncode:  # it did not end before the signal
        assert command.returncode == 130, said
        assert b"the same command continues" in said
        named = int(said.partition(b"at least ")[2].split()[0])
        assert named <= moved <= named + STEP_MESSAGES, said
    daemon.cli("move", "orders", "later", "--all")
    assert daemon.count("orders") == 0
    assert [body(each) for each in daemon.peek("later")] == lines, "in order"


@pytest.mark.parametrize(("suffix", "end"), [("", signal.SIGINT), (".gz", signal.SIGKILL)])
def test_an_export_that_is_interrupted_goes_on_where_it_was(
    hosts: Hosts, tmp_path: Path, suffix: str, end: signal.Signals
) -> None:
    daemon = hosts.daemon()
    daemon.create("orders")
    lines = [b"%d" % number for number in range(COUNT)]
    daemon.send_all("private$\\orders", lines)
    file = tmp_path / f"orders.jsonl{suffix}"
    part = tmp_path / f"{file.name}.part"
    words = ("export", "orders", str(file))
    command = begin(daemon, lambda: part.exists() and part.stat().st_size > 100_000, *words)
    command.send_signal(end)
    _, said = command.communicate(timeout=END_S)

    assert command.returncode in (130, -signal.SIGKILL), said
    assert not file.exists()
    if end is signal.SIGINT:
        assert b"was not written, and the queue is unchanged" in said
        assert b"with --resume goes on after" in said
    # Lines before the part's end are not written again: these messages have left the queue.
    daemon.cli("receive", "orders", "--count", "10")
    (report,) = daemon.json(*words, "--resume")
    found = [json.loads(line) for line in rows(file, 1 << 20)]
    assert [each["body_text"].encode() for each in found] == lines
    assert report["messages"] == COUNT
    assert sorted(each.name for each in tmp_path.glob("orders*")) == [file.name]


def test_a_part_of_another_export_is_refused(hosts: Hosts, tmp_path: Path) -> None:
    daemon = hosts.daemon()
    daemon.create("orders", "others")
    daemon.send_all("private$\\orders", [b"1", b"2"])
    daemon.cli("export", "orders", str(tmp_path / "others.part"))
    resume = ("export", "others", str(tmp_path / "others"), "--resume")

    assert b"it has messages of private$\\orders" in daemon.cli(*resume, check=False).stderr
    (tmp_path / "others.part").write_bytes(b"{}\n")
    assert b"line 1 is no line of an export" in daemon.cli(*resume, check=False).stderr
    (tmp_path / "others.part").unlink()
    assert b"there is no" in daemon.cli(*resume, check=False).stderr
    assert list(tmp_path.glob("others*")) == []


def test_a_purge_that_is_interrupted_stops_and_continues(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    daemon.create("orders")
    daemon.send_all("private$\\orders", [b"%d" % number for number in range(FEWER)])
    words = ("queue", "purge", "orders", "--yes")
    command = begin(daemon, lambda: daemon.count("orders") < FEWER, *words)
    command.send_signal(signal.SIGINT)
    _, said = command.communicate(timeout=END_S)
    left = daemon.count("orders")
    if command.returncode:
        assert command.returncode == 130, said
        assert b"the same command continues" in said

    assert [int(body(each)) for each in daemon.peek("orders")] == list(range(FEWER - left, FEWER))
    assert daemon.json(*words)[0]["messages"] == left
    assert daemon.count("orders") == 0


def test_a_daemon_that_is_killed_in_a_purge_has_purged_whole_pieces(hosts: Hosts) -> None:
    """Each message is in the queue, or its sender has one negative acknowledgment for it."""
    daemon = hosts.daemon()
    daemon.create("orders", "answers")
    lines = [b"%d" % number for number in range(FEWER)]
    options = ("--acknowledge", "negative-receive", "--admin-queue", "answers")
    daemon.send_all("private$\\orders", lines, *options)
    ids = [each["id"] for each in daemon.peek("orders")]
    words = ("queue", "purge", "orders", "--yes")
    command = begin(daemon, lambda: daemon.count("orders") < FEWER, *words)
    daemon.kill()
    command.communicate(timeout=END_S)
    daemon.start()

    left = daemon.count("orders")
    purged = [each["correlation_id"] for each in daemon.peek("answers")]
    assert purged == ids[: FEWER - left]
    daemon.cli(*words)
    assert [each["correlation_id"] for each in daemon.peek("answers")] == ids


def test_a_daemon_that_is_killed_in_a_resend_has_sent_each_message_once(hosts: Hosts) -> None:
    daemon = hosts.daemon()
    daemon.create("orders", transactional=True)
    lines = [b"%d" % number for number in range(FEWEST)]
    daemon.send_all("private$\\orders", lines, "--transactional", "--dead-letter")
    daemon.cli("reject", "orders", "--count", str(FEWEST), "--yes")
    queue = DEADXACT if daemon.count(DEADXACT) else DEADLETTER
    assert daemon.count(queue) == FEWEST
    words = ("dead-letter", "requeue", "--all")
    command = begin(daemon, lambda: daemon.count("orders"), *words)
    daemon.kill()
    command.communicate(timeout=END_S)
    daemon.start()

    assert daemon.count("orders") + daemon.count(queue) == FEWEST
    daemon.cli(*words)
    assert [body(each) for each in daemon.peek("orders")] == lines
