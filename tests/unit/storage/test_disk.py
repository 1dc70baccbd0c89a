"""The rewriting of the log, and the reserve file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import Disk, FolderInUse, StorageOptions
from storage.engine import recovery
from storage.engine.reserve import Reserve

MIB = 1024 * 1024


class SmallDisk(Disk):
    """A disk of 10 MiB with the reserve, and `used_bytes` of other data."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self.asked = 0

    def free_bytes(self, folder: Path) -> int:
        self.asked += 1
        return 10 * MIB - self.used_bytes - self.file_bytes(folder / "reserve")


def reserve_on(disk: Disk, folder: Path) -> Reserve:
    options = StorageOptions(disk_reserve_bytes=4 * MIB, disk_watermark_bytes=2 * MIB)
    return Reserve(disk, folder / "queues.db", options)


def test_the_log_is_rewritten_in_place_and_synced_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(3 * recovery.CHUNK_BYTES + 17)
    log = tmp_path / "queues.db-wal"
    log.write_bytes(content)
    written, synced = bytearray(), []
    pwrite, fsync = os.pwrite, os.fsync

    def observed_pwrite(file: int, data: bytes, offset: int) -> int:
        assert offset == len(written)
        count = pwrite(file, data[: len(data) // 2 + 1], offset)  # the system may write less
        written.extend(data[:count])
        return count

    def observed_fsync(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        fsync(file)

    monkeypatch.setattr(os, "pwrite", observed_pwrite)
    monkeypatch.setattr(os, "fsync", observed_fsync)

    assert recovery.rewrite_log(log) == len(content)
    assert written == content
    assert log.read_bytes() == content
    assert synced == [str(log), str(tmp_path)]


def test_without_a_log_no_rewrite_is_needed(tmp_path: Path) -> None:
    assert recovery.rewrite_log(tmp_path / "queues.db-wal") == 0
    assert list(tmp_path.iterdir()) == []


def test_the_reserve_takes_up_room_on_the_disk(tmp_path: Path) -> None:
    reserve = reserve_on(Disk(), tmp_path)

    reserve.take()

    assert reserve.held
    held = (tmp_path / "reserve").stat()
    assert held.st_size == 4 * MIB
    assert held.st_blocks * 512 >= 4 * MIB


def test_without_fallocate_the_reserve_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(file: int, offset: int, size: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    Disk().reserve(tmp_path / "reserve", 4 * MIB + 1)

    held = (tmp_path / "reserve").stat()
    assert held.st_size == 4 * MIB + 1
    assert held.st_blocks * 512 >= 4 * MIB


def test_a_reserve_that_cannot_be_made_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(os, "pwrite", full)
    reserve = reserve_on(Disk(), tmp_path)

    reserve.take()

    assert not reserve.held
    assert list(tmp_path.iterdir()) == []


def test_the_reserve_is_removed_once_and_made_again_when_there_is_room_beside_it(
    tmp_path: Path,
) -> None:
    disk = SmallDisk()
    reserve = reserve_on(disk, tmp_path)
    reserve.take()

    assert reserve.give_up()
    assert not reserve.give_up()
    assert list(tmp_path.iterdir()) == []

    disk.used_bytes = 4 * MIB + 1
    reserve.take()
    assert not reserve.held
    disk.used_bytes = 4 * MIB
    reserve.take()
    assert reserve.held


def test_a_start_with_an_existing_reserve_needs_no_more_room(tmp_path: Path) -> None:
    disk = SmallDisk()
    reserve_on(disk, tmp_path).take()
    disk.used_bytes = 6 * MIB

    reserve = reserve_on(disk, tmp_path)
    reserve.take()

    assert reserve.held


def test_there_is_room_above_the_watermark_and_while_the_reserve_is_held(tmp_path: Path) -> None:
    disk = SmallDisk()
    reserve = reserve_on(disk, tmp_path)
    assert not reserve.has_room(0.0)

    reserve.take()
    assert reserve.has_room(1.0)
    disk.used_bytes = 4 * MIB + 1
    assert not reserve.has_room(2.0)
    disk.used_bytes = 4 * MIB
    assert reserve.has_room(3.0)
    reserve.give_up()
    assert not reserve.has_room(4.0)


def test_the_system_is_asked_for_room_at_most_once_a_second(tmp_path: Path) -> None:
    disk = SmallDisk()
    reserve = reserve_on(disk, tmp_path)
    reserve.take()
    disk.asked = 0

    for tenth in range(100, 131):
        reserve.has_room(tenth / 10)

    assert disk.asked == 4


def test_a_folder_stays_locked_when_its_lock_file_is_removed(tmp_path: Path) -> None:
    lock = Disk().lock(tmp_path)
    (tmp_path / "lock").unlink()

    with pytest.raises(
        FolderInUse, match=r"another process; the file lock, which would name it, was removed"
    ):
        Disk().lock(tmp_path)

    assert not (tmp_path / "lock").exists()
    lock.release()
    Disk().lock(tmp_path).release()


def test_a_folder_stays_locked_when_another_lock_file_takes_its_place(tmp_path: Path) -> None:
    lock = Disk().lock(tmp_path)
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").write_text("4711\n")

    with pytest.raises(FolderInUse):
        Disk().lock(tmp_path)

    lock.release()


def test_the_storage_never_writes_through_a_link(tmp_path: Path) -> None:
    """The storage may run as root in a folder of another user, with a link of that user."""
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_bytes(b"precious")
    folder.mkdir()
    disk = Disk()
    acts: dict[str, Callable[[Path], object]] = {
        "lock": lambda path: disk.lock(path.parent),
        "mark": lambda path: disk.open_mark(path, 65),
        "reserve": lambda path: disk.reserve(path, 1000),
        "queues.db-wal": disk.rewrite_log,
        f"probe.{os.getpid()}": lambda path: disk.probe(path.parent),
    }
    for name, act in acts.items():
        (folder / name).symlink_to(victim)
        with pytest.raises(OSError, match=r"symbolic links|File exists"):
            act(folder / name)
        assert victim.read_bytes() == b"precious", name
        (folder / name).unlink()
