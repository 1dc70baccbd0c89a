"""Removed, truncated or damaged files of the data folder: the start is refused with the reason."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.options import PAGE_BYTES
from tests.process.harness import Daemon, Hosts
from tests.process.test_hindrances import refused_start

BODIES = [b"<%04d>" % number for number in range(60)]
FRAME_BYTES = 24 + PAGE_BYTES
LOG_HEADER_BYTES = 32


@pytest.fixture
def daemon(hosts: Hosts) -> Daemon:
    """Yield a killed daemon with its messages in the write-ahead log, one commit each."""
    daemon = hosts.daemon()
    daemon.create("plain")
    daemon.restart()
    for number in range(0, len(BODIES), 20):
        daemon.send_all("plain", BODIES[number : number + 20])
    daemon.kill()
    return daemon


def database(daemon: Daemon) -> Path:
    return daemon.folder / "data" / "queues.db"


def log(daemon: Daemon) -> Path:
    return daemon.folder / "data" / "queues.db-wal"


def remove_index(daemon: Daemon) -> None:
    (daemon.folder / "data" / "queues.db-shm").unlink(missing_ok=True)


def flip_a_bit(daemon: Daemon) -> None:
    """Flip a bit in a valid frame in the middle of the log."""
    with log(daemon).open("r+b") as file:
        salts = file.read(24)[16:]
        frames = 0
        while True:
            file.seek(LOG_HEADER_BYTES + frames * FRAME_BYTES + 8)
            if file.read(8) != salts:
                break
            frames += 1
        assert frames > 10
        file.seek(LOG_HEADER_BYTES + frames // 2 * FRAME_BYTES + 24 + 100)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


def flip_a_bit_without_a_mark(daemon: Daemon) -> None:
    flip_a_bit(daemon)
    (daemon.folder / "data" / "mark").unlink(missing_ok=True)


def flip_a_bit_at_the_beginning(daemon: Daemon) -> None:
    with log(daemon).open("r+b") as file:
        file.seek(17)
        byte = file.read(1)[0]
        file.seek(17)
        file.write(bytes([byte ^ 4]))


def cut_log_to_half(daemon: Daemon) -> None:
    os.truncate(log(daemon), log(daemon).stat().st_size // 2)


def empty_log(daemon: Daemon) -> None:
    os.truncate(log(daemon), 0)


def remove_log(daemon: Daemon) -> None:
    log(daemon).unlink()


def remove_log_and_index(daemon: Daemon) -> None:
    log(daemon).unlink()
    remove_index(daemon)


def empty_database(daemon: Daemon) -> None:
    os.truncate(database(daemon), 0)


def remove_database(daemon: Daemon) -> None:
    database(daemon).unlink()


def remove_all_of_the_database(daemon: Daemon) -> None:
    for path in database(daemon).parent.glob("queues.db*"):
        path.unlink()


def remove_all_of_the_database_and_the_mark(daemon: Daemon) -> None:
    remove_all_of_the_database(daemon)
    (daemon.folder / "data" / "mark").unlink(missing_ok=True)


DAMAGES: list[tuple[Callable[[Daemon], None], str]] = [
    (flip_a_bit, "queues.db-wal is damaged"),
    (flip_a_bit_without_a_mark, "queues.db-wal is damaged after frame"),
    (flip_a_bit_at_the_beginning, "queues.db-wal is not the former file"),
    (cut_log_to_half, "queues.db-wal is damaged or cut off"),
    (empty_log, "queues.db-wal is gone"),
    (remove_log, "queues.db-wal is gone"),
    (remove_log_and_index, "queues.db-wal is gone"),
    (empty_database, "queues.db is empty"),
    (remove_database, "queues.db is gone"),
    (remove_all_of_the_database, "queues.db is gone"),
    (remove_all_of_the_database_and_the_mark, "queues.db is gone"),
]


def contents(daemon: Daemon) -> dict[str, bytes]:
    """Return the contents of the files that hold messages."""
    names = ("queues.db", "queues.db-wal")
    folder = daemon.folder / "data"
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


@pytest.mark.parametrize(("damage", "words"), DAMAGES, ids=[each.__name__ for each, _ in DAMAGES])
def test_a_start_refuses_to_lose_data_until_it_is_permitted(
    daemon: Daemon, damage: Callable[[Daemon], None], words: str
):
    damage(daemon)
    before = contents(daemon)

    code, reason = refused_start(daemon)

    assert code == 78  # systemd does not restart it
    assert words in reason
    for remedy in ("qmd check", "--repair", "--accept-loss"):
        assert remedy in reason
    assert contents(daemon) == before
    checked = daemon.cli("check", check=False)
    assert checked.returncode == 1
    assert words in (checked.stdout + checked.stderr).decode()
    assert refused_start(daemon)[0] == 78
    assert contents(daemon) == before

    daemon.cli("check", "--accept-loss")

    daemon.start()
    left = daemon.bodies("plain") if "plain" in str(daemon.json("queue", "list")) else []
    assert left == BODIES[: len(left)]
    assert len(left) < len(BODIES)
    daemon.restart()


def test_restored_files_end_the_refusal(daemon: Daemon):
    kept = daemon.folder / "kept"
    shutil.move(log(daemon), kept)
    assert refused_start(daemon)[0] == 78

    shutil.move(kept, log(daemon))
    daemon.start()

    assert daemon.bodies("plain") == BODIES


def test_an_abandoned_log_is_kept_beside_the_database(daemon: Daemon):
    flip_a_bit(daemon)
    damaged = log(daemon).read_bytes()

    (said,) = daemon.json("check", "--accept-loss")

    assert Path(said["log"]).read_bytes() == damaged
    assert "damaged" in said["missing"]


def test_a_complete_folder_needs_no_permission(daemon: Daemon):
    mark = (daemon.folder / "data" / "mark").read_bytes()

    done = daemon.cli("check", "--accept-loss")

    assert b"Nothing is missing" in done.stdout
    assert (daemon.folder / "data" / "mark").read_bytes() == mark
    daemon.start()
    assert daemon.bodies("plain") == BODIES


def test_sqlite_may_checkpoint_the_log_and_remove_it(daemon: Daemon):
    with contextlib.closing(sqlite3.connect(database(daemon))) as db:
        db.execute("SELECT count(*) FROM message").fetchone()
    assert not log(daemon).exists()

    daemon.start()

    assert daemon.bodies("plain") == BODIES


def test_an_older_copy_of_the_database_is_detected(daemon: Daemon):
    daemon.start()
    assert daemon.terminate() == 0
    copy = daemon.folder / "copy"
    shutil.copy(database(daemon), copy)
    daemon.start()
    daemon.send_all("plain", BODIES)
    assert daemon.terminate() == 0
    shutil.copy(copy, database(daemon))

    code, reason = refused_start(daemon)

    assert code == 78
    assert "queues.db is older than the mark" in reason
    daemon.cli("check", "--accept-loss")
    daemon.start()
    assert daemon.bodies("plain") == BODIES


def test_the_database_of_another_queue_manager_is_detected(daemon: Daemon, hosts: Hosts):
    other = hosts.daemon()
    assert other.terminate() == 0
    daemon.start()
    assert daemon.terminate() == 0
    shutil.copy(database(other), database(daemon))

    code, reason = refused_start(daemon)

    assert code == 78
    assert "belongs to queue manager" in reason


def test_a_folder_without_a_mark_starts_and_gets_one(daemon: Daemon):
    mark = daemon.folder / "data" / "mark"
    mark.unlink()

    daemon.start()

    assert daemon.bodies("plain") == BODIES
    assert mark.stat().st_size > 0
    assert mark.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"\0" * 61, b"anything else", b"\xff" * 4096])
def test_an_empty_mark_does_not_prevent_a_start(daemon: Daemon, content: bytes):
    (daemon.folder / "data" / "mark").write_bytes(content)

    daemon.start()

    assert daemon.bodies("plain") == BODIES


def test_an_older_mark_is_accepted_after_a_loss_of_power(daemon: Daemon):
    mark = daemon.folder / "data" / "mark"
    older = mark.read_bytes()
    daemon.start()
    daemon.send_all("plain", BODIES)
    daemon.kill()
    mark.write_bytes(older)

    daemon.start()

    assert daemon.bodies("plain") == BODIES * 2


def test_a_copy_of_a_folder_is_a_folder(daemon: Daemon, tmp_path: Path):
    folder = daemon.folder / "data"
    backup = tmp_path / "backup"
    shutil.copytree(folder, backup)
    daemon.start()
    daemon.send_all("plain", BODIES)
    daemon.kill()
    shutil.rmtree(folder)
    shutil.copytree(backup, folder)

    daemon.start()

    assert daemon.bodies("plain") == BODIES
