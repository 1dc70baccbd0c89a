"""Housekeeping of queues, with the command line of a running daemon."""

from __future__ import annotations

import contextlib
import gzip
import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.process.command_line import ROOT
from tests.process.harness import DEADLETTER, Daemon, Hosts, body


@pytest.fixture(scope="module")
def shared(shared_hosts: Hosts) -> Daemon:
    daemon = shared_hosts.daemon()
    daemon.create("plain")
    daemon.create("orders", transactional=True)
    return daemon


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


def test_a_move_lists_its_messages(daemon: Daemon):
    daemon.send_all("plain", [b"1", b"2"])

    assert daemon.cli("move", "plain", "plain;retry", check=False).returncode == 2
    assert (
        daemon.cli("move", "plain", "plain;retry", "--lookup-id", "5", check=False).returncode == 3
    )
    assert daemon.cli("move", "plain", "orders", "--all", check=False).returncode == 4
    (would,) = daemon.json("move", "plain", "plain;retry", "--limit", "1", "--dry-run")
    assert (would["messages"], would["dry_run"]) == (1, True)
    assert len(daemon.receive("plain")) == 2


def test_a_send_to_a_subqueue_is_refused(daemon: Daemon):
    daemon.send("plain", b"1")
    daemon.json("move", "plain", "plain;retry", "--all")

    refused = daemon.cli("send", "plain;retry", "2", check=False)

    assert refused.returncode == 4
    assert b"qmd move" in refused.stderr
    assert [body(message) for message in daemon.receive("plain;retry")] == [b"1"]


def test_a_purge_lists_its_messages_and_asks_for_confirmation(daemon: Daemon):
    daemon.send("plain", b"1", "--label", "old")
    daemon.send("plain", b"2", "--label", "new")

    (would,) = daemon.json("queue", "purge", "plain", "--label", "old", "--dry-run")
    assert (would["messages"], would["purged"]) == (1, False)
    refused = daemon.cli("queue", "purge", "plain", "--label", "old", check=False)
    assert refused.returncode == 2
    (purged,) = daemon.json("queue", "purge", "plain", "--label", "old", "--yes")
    assert purged["messages"] == 1

    assert [body(message) for message in daemon.receive("plain")] == [b"2"]


def test_senders_are_notified_of_messages_that_were_deleted_with_their_queue(daemon: Daemon):
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


def test_dead_letters_are_purged_only_after_a_confirmation(daemon: Daemon):
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


def test_exported_messages_are_imported_unchanged(daemon: Daemon, tmp_path: Path):
    file = tmp_path / "orders.ndjson"
    daemon.send(
        "plain", b"\0\xff", "--label", "Ä", "--priority", "6", "--time-to-be-received", "9m"
    )
    daemon.send("plain", b"2", "--admin-queue", "orders", "--acknowledge", "full-receive")
    daemon.json("move", "plain", "plain;retry", "--all")
    daemon.json("move", "plain;retry", "plain", "--all")
    before = daemon.peek("plain")

    (exported,) = daemon.json("export", "plain", str(file))
    assert exported["messages"] == 2
    assert file.stat().st_mode & 0o077 == 0
    assert daemon.cli("export", "plain", str(file), check=False).returncode == 1
    daemon.cli("queue", "purge", "plain", "--yes")
    (would,) = daemon.json("import", "plain", str(file), "--dry-run")
    (done,) = daemon.json("import", "plain", str(file))

    assert (would["messages"], done["messages"]) == (2, 2)
    after = daemon.receive("plain")
    for message in (*before, *after):
        del message["lookup_id"]
    assert after == before


def test_an_export_may_be_packed(daemon: Daemon, tmp_path: Path):
    packed, plain = tmp_path / "orders.ndjson.gz", tmp_path / "orders.ndjson"
    texts = [b"%d" % number for number in range(700)]
    daemon.send_all("plain", texts)
    daemon.json("export", "plain", str(packed))
    daemon.json("export", "plain", str(plain))
    daemon.cli("queue", "purge", "plain", "--yes")

    assert packed.stat().st_mode & 0o077 == 0
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert b"null" not in plain.read_bytes()
    assert packed.stat().st_size * 5 < plain.stat().st_size
    daemon.json("import", "plain", str(packed))
    assert daemon.bodies("plain") == texts
    # Also through a pipe, two packed exports in a row, and next to unpacked lines.
    daemon.cli("import", "plain", input=packed.read_bytes() * 2)
    daemon.cli("import", "plain", input=plain.read_bytes())
    assert daemon.bodies("plain") == texts * 3

    whole = packed.read_bytes()
    for broken in (whole[:-9], whole[: len(whole) // 2], whole[:300] + b"x" * 300):
        packed.write_bytes(broken)
        refused = daemon.cli("import", "plain", str(packed), check=False)
        assert refused.returncode == 2
        assert daemon.peek("plain") == []
        piped = daemon.cli("import", "plain", input=broken, check=False)
        assert piped.returncode == 2
        assert b"cannot be imported" in piped.stderr
        daemon.cli("queue", "purge", "plain", "--yes")


def test_an_import_reads_a_growing_file_up_to_its_size_at_the_beginning(
    daemon: Daemon, tmp_path: Path
):
    whole, growing = tmp_path / "whole.ndjson", tmp_path / "growing.ndjson"
    texts = [b"%d" % number for number in range(4000)]
    daemon.send_all("plain", texts)
    daemon.json("export", "plain", str(whole))
    daemon.cli("queue", "purge", "plain", "--yes")
    lines = whole.read_bytes().splitlines(keepends=True)

    growing.write_bytes(b"".join(lines[:500]) + lines[500][:50])
    refused = daemon.cli("import", "plain", str(growing), check=False)
    assert refused.returncode == 2
    assert b"ends in the middle of line 501, and nothing is imported" in refused.stderr
    assert daemon.peek("plain") == []

    growing.write_bytes(b"".join(lines[:500]))
    ended = threading.Event()

    def write() -> None:
        with growing.open("ab", buffering=0) as file:
            for line in lines[500:]:
                file.write(line[:50])
                if not ended.is_set():
                    time.sleep(0.0005)
                file.write(line[50:])

    writer = threading.Thread(target=write)
    writer.start()
    attempts = 0
    while True:
        done = daemon.cli("import", "plain", str(growing), check=False)
        if done.returncode == 0:
            break
        attempts += 1
        assert b"nothing is imported" in done.stderr
        assert daemon.count("plain") == 0
        if attempts == 20:  # it always came in the middle of a line
            ended.set()
    ended.set()
    writer.join()
    imported = daemon.count("plain")
    assert imported >= 500
    if imported < len(lines):
        assert f"the next one is --start-line {imported + 1}".encode() in done.stderr
        daemon.cli("import", "plain", str(growing), "--start-line", str(imported + 1))
    assert daemon.bodies("plain") == texts


def test_an_export_shows_its_progress_and_uses_little_memory(daemon: Daemon, tmp_path: Path):
    """60 MB of messages; a terminal shows a progress bar after one second, a file gets none."""
    for _ in range(15):
        daemon.send_all("plain", [b"x" * 20_000] * 200)
    file = tmp_path / "orders.ndjson"
    reported = """
import sys
from qmd.cli import main
import qmd.cli.progress
qmd.cli.progress.PATIENCE_S = 0.0
try:
    main()
finally:
    status = open("/proc/self/status").read()
    print(status.partition("VmHWM:")[2].split()[0], flush=True)
"""

    def peak_kb(*words: str) -> tuple[int, bytes]:
        terminal, end = pty.openpty()
        shown: list[bytes] = []

        def look() -> None:
            """Read continuously: one read gets a part, and a full terminal blocks its writer."""
            with contextlib.suppress(OSError):  # no process has the other end open any more
                while some := os.read(terminal, 1 << 16):
                    shown.append(some)

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            command = [sys.executable, "-c", reported, "--config", str(daemon.config), *words]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=end, check=True, cwd=ROOT)
        finally:
            os.close(end)
            watcher.join()
            os.close(terminal)
        return int(done.stdout.split()[-1]), b"".join(shown)

    least, _ = peak_kb("queue", "list")
    exported, shown = peak_kb("export", "plain", str(file))
    assert file.stat().st_size > 60 << 20
    assert b"exporting" in shown
    assert b"3000/3000" in shown
    daemon.cli("queue", "purge", "plain", "--yes")
    imported, shown = peak_kb("import", "plain", str(file))
    assert b"importing" in shown
    assert b"3000/3000" in shown
    daemon.cli("queue", "purge", "plain", "--yes")

    assert exported - least < 40 << 10
    assert imported - least < 80 << 10  # two batches of 8 MB as lines, packets and a frame
    silent = daemon.cli("export", "plain", str(tmp_path / "none.ndjson"))
    assert b"exporting" not in silent.stderr


def test_a_broken_line_is_named_and_the_complete_file_is_refused(daemon: Daemon, tmp_path: Path):
    file = tmp_path / "orders.ndjson"
    daemon.send_all("plain", [b"1", b"2", b"3"])
    daemon.json("export", "plain", str(file))
    daemon.cli("queue", "purge", "plain", "--yes")
    lines = file.read_bytes().splitlines(keepends=True)
    broken = [
        b"{}\n",
        b"not json\n",
        lines[1].replace(b'"qmd_message":1', b'"qmd_message":2'),
        lines[1].replace(b'"packet_base64":"', b'"packet_base64":"AAAA'),
        lines[1][: len(lines[1]) // 2],
    ]

    for line in broken:
        file.write_bytes(lines[0] + line + lines[2])
        refused = daemon.cli("import", "plain", str(file), check=False)
        assert refused.returncode == 2
        assert b"line 2" in refused.stderr

    assert daemon.peek("plain") == []
    piped = daemon.cli("import", "plain", input=lines[0] + b"{}\n", check=False)
    assert b"line 2" in piped.stderr
    assert b"--start-line 2" in piped.stderr
    assert len(daemon.receive("plain")) == 1


def test_an_import_is_resumed_without_duplicates(daemon: Daemon, tmp_path: Path):
    file, position = tmp_path / "orders.ndjson", tmp_path / "position"
    daemon.send_all("plain", [b"%d" % number for number in range(300)])
    daemon.json("export", "plain", str(file))
    daemon.cli("queue", "purge", "plain", "--yes")
    lines = file.read_bytes().splitlines(keepends=True)

    file.write_bytes(b"".join(lines[:280]))
    daemon.json("import", "plain", str(file), "--position", str(position))
    file.write_bytes(b"".join(lines))
    (rest,) = daemon.json("import", "plain", str(file), "--position", str(position))
    (again,) = daemon.json("import", "plain", str(file), "--position", str(position))

    assert (rest["messages"], again["messages"]) == (20, 0)
    assert daemon.bodies("plain") == [b"%d" % number for number in range(300)]


def test_messages_are_imported_into_queues_of_their_kind_only(daemon: Daemon, tmp_path: Path):
    file = tmp_path / "plain.ndjson"
    daemon.send("plain", b"1")
    daemon.json("export", "plain", str(file))

    refused = daemon.cli("import", "orders", str(file), check=False)

    assert refused.returncode == 4
    assert b"is not transactional" in refused.stderr
    daemon.receive("plain")


def test_a_killed_import_is_resumed(daemon: Daemon, tmp_path: Path):
    file, position = tmp_path / "orders.ndjson", tmp_path / "position"
    texts = [b"%d" % number for number in range(4000)]
    daemon.send_all("plain", texts)
    daemon.json("export", "plain", str(file))
    daemon.cli("queue", "purge", "plain", "--yes")

    killed = 0
    for _ in range(3):
        before = daemon.count("plain")
        importing = daemon.spawn_cli("import", "plain", str(file), "--position", str(position))
        assert importing.stdout is not None
        with importing.stdout:
            while importing.poll() is None and daemon.count("plain") == before:
                pass
            importing.kill()
        killed += importing.wait() < 0
    daemon.kill()
    daemon.start()
    daemon.json("import", "plain", str(file), "--position", str(position))

    assert killed
    assert daemon.bodies("plain") == texts
