"""`qmd check`: it reports a damaged folder, and the saved part of the folder can be used."""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from protocol import parse_user_message
from storage.options import PAGE_BYTES
from storage.rescue.database_file import DatabaseFile
from tests.process.connection import Closed
from tests.process.harness import Daemon, Hosts, body
from tests.process.peer import Peer
from tests.process.remote import Listener
from tests.process.test_hindrances import refused_start

BODIES = [b"<%04d>" % number for number in range(200)]
LABEL = "a label with an ä"
LEAF = 13  # the first byte of a page with rows


@pytest.fixture
def listener(hosts: Hosts) -> Listener:
    return hosts.remote().listen()


@pytest.fixture
def daemon(hosts: Hosts, listener: Listener) -> Daemon:
    """Yield a daemon with messages in three places; the outgoing ones have no destination."""
    daemon = hosts.daemon(delivery={"retry_first": "5ms", "retry_max": "20ms"})
    daemon.create("plain")
    daemon.create("orders", transactional=True)
    daemon.send_all("plain", BODIES, "--label", LABEL)
    daemon.send_all("orders", BODIES)
    daemon.send_all(listener.destination("q"), BODIES, "--transactional")
    return daemon


def data(daemon: Daemon) -> Path:
    return daemon.folder / "data"


def check(daemon: Daemon, *options: str) -> tuple[int, str]:
    done = daemon.cli("check", *options, check=False)
    assert done.stderr == b"" or b"Traceback" not in done.stderr
    return done.returncode, (done.stdout + done.stderr).decode()


def erase_a_page(daemon: Daemon) -> set[bytes]:
    """Destroy a page with messages of the queue `plain`; return the lost bodies."""
    path = data(daemon) / "queues.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with DatabaseFile(path) as file:
        (victim, content), *_ = [
            (number, file.page(number))
            for number in range(2, file.page_count + 1)
            if file.page(number)[0] == LEAF and LABEL.encode("utf-16-le") in file.page(number)
        ]
    with path.open("r+b") as damaged:
        damaged.seek((victim - 1) * PAGE_BYTES)
        damaged.write(b"\xff" * PAGE_BYTES)
    return {each for each in BODIES if each in content}


def test_an_intact_folder_is_reported_as_in_order(daemon: Daemon):
    daemon.terminate()

    code, words = check(daemon)
    (report,) = daemon.json("check")

    assert code == 0
    assert "The folder is in order; 600 messages in all." in words
    assert report["messages"]["private$\\plain"] == 200
    assert report["findings"] == []
    daemon.start()
    assert daemon.bodies("plain") == BODIES


def test_a_repair_never_writes_through_a_link(daemon: Daemon, tmp_path: Path):
    """Root may run the repair next to a folder of another user, which may contain a link."""
    daemon.terminate()
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o755)
    (victim / "precious").write_bytes(b"precious")
    (daemon.folder / "data.unfinished").symlink_to(victim)

    code, words = check(daemon, "--repair", str(tmp_path / "saved"))

    assert code == 1
    assert "could not be made" in words
    assert [path.name for path in victim.iterdir()] == ["precious"]
    assert victim.stat().st_mode & 0o777 == 0o755
    assert not (tmp_path / "saved").exists()


def test_a_folder_in_use_is_not_changed(daemon: Daemon):
    assert daemon.process is not None

    code, words = check(daemon)

    assert code == 1
    assert f"in use by process {daemon.process.pid}" in words


def test_the_intact_part_of_a_damaged_folder_is_saved_and_usable(
    daemon: Daemon, listener: Listener, tmp_path: Path
):
    daemon.kill()
    lost = erase_a_page(daemon)
    assert 0 < len(lost) < 100
    code, reason = refused_start(daemon)
    assert code == 1
    assert "qmd check" in reason
    before = (data(daemon) / "queues.db").read_bytes()
    file = tmp_path / "saved.ndjson"

    code, words = check(daemon, "--repair", str(file))

    assert code == 1
    certain = f"{600 - len(lost)} messages are certain"
    assert f"The folder is damaged: {certain}, 0 damaged, 0 in doubt" in words
    assert (data(daemon) / "queues.db").read_bytes() == before
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 600 - len(lost)
    assert file.stat().st_mode & 0o777 == 0o600
    assert all(is_lossless(line) for line in lines)
    data(daemon).rename(daemon.folder / "damaged")
    (daemon.folder / "data.repaired").rename(data(daemon))
    daemon.start()
    assert daemon.bodies("plain") == [each for each in BODIES if each not in lost]
    assert daemon.bodies("orders") == BODIES
    peer = accepted(listener)
    delivered = peer.receive_many(len(BODIES))
    assert [message.body for message in delivered] == BODIES
    assert daemon.terminate() == 0
    assert check(daemon)[0] == 0


def accepted(listener: Listener) -> Peer:
    """Accept a session; the first connections belong to daemons that have ended."""
    while True:
        with contextlib.suppress(Closed):
            return listener.accept()


def is_lossless(line: dict[str, Any]) -> bool:
    packet = parse_user_message(base64.b64decode(line["packet_base64"]))
    return (
        packet.properties.body == body(line)
        and line["problem"] is None
        and line["queue"].endswith(("plain", "orders", "q"))
        and line["lookup_id"] > 0
    )


def test_a_log_with_a_flipped_bit_is_reported_and_completely_recovered(
    daemon: Daemon, tmp_path: Path
):
    """A daemon would lose all commits behind the flipped bit."""
    daemon.kill()
    log = data(daemon) / "queues.db-wal"
    content = bytearray(log.read_bytes())
    with DatabaseFile(data(daemon) / "queues.db") as file:
        assert file.findings == []
    content[len(content) // 3] ^= 1
    log.write_bytes(content)
    file_name = tmp_path / "saved.ndjson"

    code, words = check(daemon, "--repair", str(file_name))

    assert code == 1
    assert "the log is damaged" in words
    lines = [json.loads(line) for line in file_name.read_text().splitlines()]
    certain = [body(line) for line in lines if line["certain"]]
    others = [line for line in lines if not line["certain"]]
    assert len(certain) + len(others) >= 600
    assert all(line["problem"] for line in others)
    assert {*certain} <= {*BODIES}


def test_existing_files_are_never_overwritten(daemon: Daemon, tmp_path: Path):
    daemon.terminate()
    file = tmp_path / "saved.ndjson"
    file.write_text("precious")

    code, words = check(daemon, "--repair", str(file))
    assert code == 2
    assert "never overwritten" in words
    (daemon.folder / "data.repaired").mkdir()
    code, words = check(daemon, "--repair", str(tmp_path / "other"))
    assert code == 1
    assert "stays as it is" in words

    assert file.read_text() == "precious"
    assert not (tmp_path / "other").exists()
    assert list((daemon.folder / "data.repaired").iterdir()) == []


def test_a_folder_is_given_by_an_argument_or_by_the_configuration(daemon: Daemon, tmp_path: Path):
    daemon.terminate()

    assert check(daemon, str(data(daemon)))[0] == 0
    code, words = check(daemon, str(tmp_path))
    assert code == 1
    assert "there is no queues.db" in words
