"""A daemon with encrypted packets: its files, its keys, and a kill in the middle of traffic."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from pathlib import Path

from qmd.client import blocking
from tests.process.command_line import COMMAND, ROOT
from tests.process.harness import Daemon, Hosts

SECRET = b"the account number 4711 0815"
LABEL = "label of account 4711"


def key_file(folder: Path, name: str, digit: str) -> Path:
    file = folder / name
    file.write_text(digit * 64)
    file.chmod(0o600)
    return file


def files_with_the_secret(daemon: Daemon) -> list[str]:
    words = (SECRET, LABEL.encode(), LABEL.encode("utf-16-le"))
    files = [*(daemon.folder / "data").iterdir(), daemon.log]
    return [file.name for file in files if any(word in file.read_bytes() for word in words)]


def fill(daemon: Daemon) -> None:
    """Send messages that end in each place where packets are stored."""
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        for name in ("orders", "others"):
            qm.create_queue(name, journal=True)
        qm.create_queue("exact", transactional=True)
        for _ in range(20):
            qm.send("orders", SECRET * 50, label=LABEL)
        qm.receive("orders")  # a copy goes to the journal
        qm.send("orders,others,DIRECT=TCP:127.0.0.9\\private$\\far", SECRET * 100, label=LABEL)
        qm.send("DIRECT=TCP:127.0.0.9\\private$\\far", SECRET, label=LABEL)
        with qm.transaction() as transaction:
            transaction.send("exact", SECRET * 2000, label=LABEL)
            transaction.send("DIRECT=TCP:127.0.0.9\\private$\\far", SECRET, label=LABEL)


def bodies(daemon: Daemon, queue: str) -> list[bytes]:
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        return [message.body for message in qm.peek_each(queue)]


def test_no_body_reaches_a_file_and_the_key_is_needed_to_start(
    hosts: Hosts, tmp_path: Path
) -> None:
    first = key_file(tmp_path, "first.key", "1")
    daemon = hosts.daemon(storage={"key_files": [str(first)]})
    fill(daemon)
    daemon.kill()
    assert files_with_the_secret(daemon) == []

    daemon.configure({"storage": {"key_files": []}})
    refused = daemon.spawn()
    assert refused.wait() == 78
    assert "storage_key_missing" in daemon.log.read_text()
    assert "1" * 64 not in daemon.log.read_text()

    daemon.configure({"storage": {"key_files": [str(first)]}})
    daemon.start()
    assert bodies(daemon, "orders") == [SECRET * 50] * 19 + [SECRET * 100]
    assert bodies(daemon, "exact") == [SECRET * 2000]
    assert bodies(daemon, "orders;journal") == [SECRET * 50]
    assert files_with_the_secret(daemon) == []


def test_an_existing_folder_is_encrypted_its_key_changed_and_encryption_ended(
    hosts: Hosts, tmp_path: Path
) -> None:
    first, second = key_file(tmp_path, "first.key", "1"), key_file(tmp_path, "second.key", "2")
    daemon = hosts.daemon()
    fill(daemon)
    daemon.terminate()
    assert files_with_the_secret(daemon) == ["queues.db"]

    for keys, arguments, is_readable in (
        ([first], [], False),
        ([second, first], [], False),
        ([second], ["--plain"], True),
    ):
        daemon.configure({"storage": {"key_files": [str(each) for each in keys]}})
        daemon.cli("storage", "rewrite", *arguments)
        assert (files_with_the_secret(daemon) != []) == is_readable
    daemon.configure({"storage": {"key_files": []}})
    row = json.loads(daemon.cli("storage", "status", "--json").stdout)  # the only line
    assert (row["key"], row["use"]) == ("none", "new packets")

    daemon.start()
    assert bodies(daemon, "orders") == [SECRET * 50] * 19 + [SECRET * 100]
    assert bodies(daemon, "exact") == [SECRET * 2000]


def test_a_rewriting_that_is_killed_loses_nothing_and_is_finished_by_the_next(
    hosts: Hosts, tmp_path: Path
) -> None:
    first, second = key_file(tmp_path, "first.key", "1"), key_file(tmp_path, "second.key", "2")
    daemon = hosts.daemon(storage={"key_files": [str(first)]})
    with blocking.connect(daemon.folder / "qmd.sock") as qm:
        qm.create_queue("orders")
        sent = [b"%d " % number + SECRET * 500 for number in range(300)]
        for body in sent:
            qm.send("orders", body)
    daemon.terminate()
    daemon.configure({"storage": {"key_files": [str(second), str(first)]}})

    # The first pause is shorter than the start of an interpreter, the last as long as a whole run.
    kills, pause_s, is_finished = 0, 0.02, False
    while not is_finished:
        command = [*COMMAND, "--config", str(daemon.config), "storage", "rewrite"]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(pause_s)
            process.kill()
        is_finished = process.returncode == 0
        kills += process.returncode == -signal.SIGKILL
        pause_s *= 1.3
        assert files_with_the_secret(daemon) == []
    daemon.cli("storage", "rewrite")

    assert kills > 0
    daemon.configure({"storage": {"key_files": [str(second)]}})
    daemon.start()
    assert bodies(daemon, "orders") == sent
