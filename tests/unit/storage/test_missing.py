"""The check at the start for lost acknowledged commits: losses, and harmless differences."""

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from storage import DataMissing
from storage.engine import mark, missing
from storage.engine.log_position import LogPosition, read_index
from storage.engine.mark import Mark
from storage.options import PAGE_BYTES
from storage.rescue import check
from tests.unit.storage.support import durable, insert, key, opened, stored

FRAME_BYTES = 24 + PAGE_BYTES
COMMITS = 30


def frame_at(number: int) -> int:
    return 32 + number * FRAME_BYTES


async def commits(folder: Path, first: int, last: int, **changes: int) -> None:
    async with opened(folder, **changes) as storage:
        for number in range(first, last + 1):
            insert(storage, number)
            await durable(storage)


def killed(folder: Path, to: Path, count: int = COMMITS, first: int = 1) -> None:
    """Copy the folder of a storage that has made `count` commits and was not closed."""

    async def scenario() -> None:
        async with opened(folder) as storage:
            for number in range(first, first + count):
                insert(storage, number)
                await durable(storage)
            shutil.copytree(folder, to)

    asyncio.run(scenario())


def numbers(folder: Path) -> list[int]:
    """Open the storage in `folder`; return the keys of its messages."""

    async def scenario() -> list[int]:
        async with opened(folder) as storage:
            return await stored(storage)

    return asyncio.run(scenario())


def read_mark(folder: Path) -> Mark:
    found = mark.decode((folder / "mark").read_bytes())
    assert found is not None
    return found


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    killed(folder, tmp_path / "copy")
    return tmp_path / "copy"


ALL = [key(number) for number in range(1, COMMITS + 1)]


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_a_killed_process_loses_no_commit_and_its_mark_is_exact(copy: Path) -> None:
    (head, found) = (copy / "queues.db-shm").read_bytes(), read_mark(copy)

    assert found.log == read_index(head)
    assert found.log.frames > COMMITS
    assert missing.find(copy) is None
    assert numbers(copy) == ALL


def test_damage_of_every_valid_frame_is_detected(copy: Path, tmp_path: Path) -> None:
    frames = read_mark(copy).log.frames
    for number in range(0, frames, 7):
        for offset in (9, 24 + 4000):  # in the header of the frame, in its content
            damaged = tmp_path / f"{number}-{offset}"
            shutil.copytree(copy, damaged)
            flip(damaged / "queues.db-wal", frame_at(number) + offset)
            lost = missing.find(damaged)
            assert lost is not None, (number, offset)
            assert "queues.db-wal" in lost
            shutil.rmtree(damaged)


def test_every_truncation_is_detected(copy: Path, tmp_path: Path) -> None:
    frames = read_mark(copy).log.frames
    for number in (*range(0, frames, 9), frames - 1):
        damaged = tmp_path / str(number)
        shutil.copytree(copy, damaged)
        os.truncate(damaged / "queues.db-wal", frame_at(number) + FRAME_BYTES * 2 // 3)
        assert missing.find(damaged) is not None, number
        shutil.rmtree(damaged)


def test_without_a_mark_intact_commits_after_the_damage_reveal_it(
    copy: Path, tmp_path: Path
) -> None:
    (copy / "mark").unlink()
    with closing(sqlite3.connect(f"file:{copy / 'queues.db'}?mode=ro", uri=True)) as db:
        db.execute("SELECT count(*) FROM message").fetchone()
    frames = read_index((copy / "queues.db-shm").read_bytes()).frames
    for number in range(0, frames - 12, 5):
        damaged = tmp_path / str(number)
        shutil.copytree(copy, damaged)
        flip(damaged / "queues.db-wal", frame_at(number) + 24 + 77)
        lost = missing.find(damaged)
        assert lost is not None, number
        assert "intact commits after the damage" in lost
        shutil.rmtree(damaged)


def test_a_torn_last_commit_is_not_a_loss(copy: Path, tmp_path: Path) -> None:
    """The power failed within the last commit, before it was acknowledged: the mark does not
    include it, and any of its frames may be on the disk."""
    older = (copy / "mark").read_bytes()
    frames = read_mark(copy).log.frames
    log = copy / "queues.db-wal"
    with closing(sqlite3.connect(copy / "queues.db", isolation_level=None)) as db:
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("CREATE TABLE wide (content)")
        db.execute("INSERT INTO wide VALUES (zeroblob(50000))")
        shutil.copy(log, tmp_path / "torn")
        more = read_index((copy / "queues.db-shm").read_bytes()).frames
    shutil.copy(tmp_path / "torn", log)
    # Closing the connection has moved its commits into the database, which is harmless here.
    assert more > frames + 6
    for first in range(more - 6, more):
        damaged = tmp_path / str(first)
        shutil.copytree(copy, damaged)
        (damaged / "mark").write_bytes(older)
        flip(damaged / "queues.db-wal", frame_at(first) + 24 + 100)
        assert missing.find(damaged) is None, first
        shutil.rmtree(damaged)


@pytest.fixture
def padded(copy: Path, tmp_path: Path) -> Path:
    """Return a folder with three more commits that are padded: a copy of its last frame follows
    each.  SQLite writes this padding where a disk may damage sectors beside a write."""
    uri = f"file:{copy / 'queues.db'}?psow=0"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = FULL")
        for _ in range(3):
            db.execute("UPDATE identity SET created_at_s = created_at_s + 1")
        found = read_mark(copy)
        end = read_index((copy / "queues.db-shm").read_bytes())
        assert end.frames == found.log.frames + 6  # each changes one page
        (copy / "mark").write_bytes(mark.encode(found._replace(log=end)))
        shutil.copytree(copy, tmp_path / "padded")
    return tmp_path / "padded"


def test_the_padding_after_the_last_commit_may_be_lost(padded: Path) -> None:
    frames = read_mark(padded).log.frames
    os.truncate(padded / "queues.db-wal", frame_at(frames - 1) + 2000)
    assert missing.find(padded) is None

    os.truncate(padded / "queues.db-wal", frame_at(frames - 2) + 2000)
    lost = missing.find(padded)
    assert lost is not None
    assert f"of {frames} frames" in lost


def test_padding_after_a_torn_commit_is_not_a_later_commit(padded: Path) -> None:
    frames = read_mark(padded).log.frames
    (padded / "mark").unlink()
    before_the_last = frame_at(frames - 3) + 100
    flip(padded / "queues.db-wal", before_the_last)
    assert missing.find(padded) is None  # only the last commit and its padding follow

    flip(padded / "queues.db-wal", before_the_last)
    flip(padded / "queues.db-wal", frame_at(frames - 5) + 100)
    lost = missing.find(padded)
    assert lost is not None
    assert "intact commits after the damage" in lost


def test_a_restarted_log_is_not_a_loss(folder: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(folder, wal_autocheckpoint_pages=60) as storage:
            marks = []
            for number in range(1, 240):  # the log begins anew after about 60 of them
                insert(storage, number)
                await durable(storage)
                if number % 10 == 0:
                    marks.append((folder / "mark").read_bytes())
            shutil.copytree(folder, tmp_path / "copy")
            assert len({mark.decode(each).log.salts for each in marks}) > 2  # type: ignore[union-attr]
        for older in marks:  # each mark that a loss of power may leave
            (tmp_path / "copy" / "mark").write_bytes(older)
            assert missing.find(tmp_path / "copy") is None

    asyncio.run(scenario())
    found = read_mark(tmp_path / "copy")
    assert found.merged <= found.stretch
    assert numbers(tmp_path / "copy") == [key(number) for number in range(1, 240)]


def test_a_missing_log_is_detected_after_each_of_its_restarts(folder: Path, tmp_path: Path) -> None:
    """This includes a commit that changes only an existing row."""

    async def scenario() -> None:
        async with opened(folder, wal_autocheckpoint_pages=60) as storage:
            for number in range(1, 60):
                insert(storage, number)
                await durable(storage)
                await storage.vacuum()  # after a checkpoint that the commit may have caused
                before = missing_log(number)
                if read_mark(folder).merged == read_mark(folder).stretch:
                    assert before is None  # the database has everything
                else:
                    assert before is not None, number

    def missing_log(number: int) -> str | None:
        copy = tmp_path / str(number)
        copy.mkdir()
        for name in ("queues.db", "mark"):
            shutil.copy(folder / name, copy)
        return missing.find(copy)

    asyncio.run(scenario())


def test_after_a_clean_stop_the_mark_names_the_database_as_complete(folder: Path) -> None:
    asyncio.run(commits(folder, 1, 5))

    found = read_mark(folder)

    assert found.merged == found.stretch > 0
    assert not (folder / "queues.db-wal").exists()
    assert missing.find(folder) is None


def test_an_older_copy_of_the_database_is_detected_with_and_without_a_log(
    folder: Path, tmp_path: Path
) -> None:
    asyncio.run(commits(folder, 1, 5))
    shutil.copy(folder / "queues.db", tmp_path / "older")
    asyncio.run(commits(folder, 6, 9))
    killed(folder, tmp_path / "copy", 3, first=10)

    for each in (folder, tmp_path / "copy"):
        shutil.copy(tmp_path / "older", each / "queues.db")
        lost = missing.find(each)
        assert lost is not None
        assert "older" in lost


def test_the_database_of_another_queue_manager_is_detected(folder: Path) -> None:
    asyncio.run(commits(folder, 1, 5))
    with closing(sqlite3.connect(folder / "queues.db", isolation_level=None)) as db:
        db.execute("UPDATE identity SET queue_manager = ?", (b"another-manager!",))
        db.execute("DELETE FROM counter WHERE name = ?", (mark.COUNTER,))

    lost = missing.find(folder)

    assert lost is not None
    assert "belongs to queue manager" in lost


def test_an_interrupted_first_start_leaves_a_new_folder(folder: Path, tmp_path: Path) -> None:
    """The database may be empty, and the log may hold only the commit that makes the schema."""
    killed(folder, tmp_path / "copy", 0)
    copy = tmp_path / "copy"
    (copy / "mark").unlink()
    os.truncate(copy / "queues.db", 0)

    assert missing.find(copy) is None


def test_a_refused_folder_is_not_changed(copy: Path) -> None:
    flip(copy / "queues.db-wal", frame_at(60))
    before = {path.name: path.read_bytes() for path in copy.iterdir() if "shm" not in path.name}

    for _ in range(2):
        with pytest.raises(DataMissing, match="damaged or cut off") as refused:
            numbers(copy)

    assert "--accept-loss" in str(refused.value)
    after = {path.name: path.read_bytes() for path in copy.iterdir() if "shm" not in path.name}
    assert {**after, "lock": b""} == {**before, "lock": b""}


def test_a_refusal_does_not_change_the_index_of_the_log(copy: Path) -> None:
    before = (copy / "queues.db-shm").read_bytes()
    os.truncate(copy / "queues.db-wal", frame_at(50))

    assert missing.find(copy) is not None

    assert (copy / "queues.db-shm").read_bytes() == before
    assert any("end of the log is missing" in each for each in check.check(copy).findings)


def test_accepting_one_loss_does_not_accept_later_losses(copy: Path) -> None:
    flip(copy / "queues.db-wal", frame_at(60))
    kept = missing.accept(copy)
    assert kept is not None
    left = numbers(copy)
    assert left == ALL[: len(left)]
    assert len(left) < len(ALL)

    (copy / "queues.db").unlink()

    assert missing.find(copy) == "queues.db is gone, although the folder has been in use"


def test_accepting_a_loss_never_writes_through_a_link(copy: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    for name in ("mark", "mark.new"):
        (copy / name).unlink(missing_ok=True)
        (copy / name).symlink_to(victim)

    missing.accept(copy)

    assert victim.read_bytes() == b"precious"
    assert read_mark(copy).is_accepted


WRITTEN = mark.encode(Mark(b"1" * 16, 1, 1, LogPosition(b"2" * 8, 3, b"4" * 8)))


@pytest.mark.parametrize("data", [b"", b"\0" * 200, b"qmdM", WRITTEN[:-1], b"Q" + WRITTEN[1:]])
def test_an_invalid_mark_is_ignored(data: bytes) -> None:
    assert mark.decode(data) is None


def test_a_written_mark_is_read_back() -> None:
    for is_accepted in (False, True):
        written = Mark(bytes(range(16)), 2**40, 7, LogPosition(b"saltsalt", 9, b"checksum"))
        written = written._replace(is_accepted=is_accepted)
        assert len(mark.encode(written)) == mark.SIZE_BYTES <= 512
        assert mark.decode(mark.encode(written)) == written
