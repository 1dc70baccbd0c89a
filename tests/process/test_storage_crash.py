"""Storage in real processes that are killed, and on machines that lose their power.

A process prints that messages are durable only after storage reported it (storage_worker.py).
Afterwards all of them must exist, intact, once, and with the state of their sequence.

"""

import asyncio
import os
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from enum import Enum, auto
from pathlib import Path
from typing import NamedTuple

import pytest

from storage import Storage
from tests.process.storage_worker import OPTIONS, found

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parent.parent.parent
KILLS = 20
LINES_MAX = 60


def start(folder: Path, batches: int, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.process.storage_worker", str(folder), str(batches)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | environment,
    )


class Said:
    """The output of a process so far, line by line."""

    def __init__(self) -> None:
        self.first, self.last = 1, 0
        self.reserved: list[int] = []

    def add(self, line: str) -> None:
        kind, *numbers = line.split()
        if kind == "reserved":
            (number,) = map(int, numbers)
            assert all(number >= earlier + 10 for earlier in self.reserved)
            self.reserved.append(number)
            return
        first, last = map(int, numbers)
        assert first >= self.first, "a deleted message is there again"
        assert last >= self.last, "a durable message is lost"
        self.first, self.last = first, last


@pytest.mark.slow
def test_durable_messages_survive_many_kills(tmp_path: Path) -> None:
    rng = random.Random(1)
    said = Said()

    for _ in range(KILLS):
        with start(tmp_path / "data", batches=100_000) as worker:
            assert worker.stdout is not None
            for _ in range(rng.randrange(LINES_MAX)):
                said.add(worker.stdout.readline())
            worker.kill()
            for line in worker.stdout:
                if line.endswith("\n"):
                    said.add(line)

    assert said.last > KILLS
    with closing(sqlite3.connect(tmp_path / "data" / "queues.db")) as db:
        said.add("found {} {}".format(*found(db)))
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


class Record(NamedTuple):
    """One act from the log of power_log.c."""

    kind: str
    path: str
    offset: int
    data: bytes


class Loss(Enum):
    """The fate of unsynced writes in a loss of power."""

    NONE = auto()
    ALL = auto()
    TORN = auto()  # the first writes are on the disk, the next one in part
    SOME_WRITES = auto()
    SOME_SECTORS = auto()


SECTOR_BYTES = 512


class PowerlessDisk:
    """The possible contents of the disk after a logged series of acts and a loss of power.

    A failed sync drops its writes: Linux keeps them in memory only, marked clean.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._synced: dict[str, bytearray] = {}
        self._unsynced: dict[str, list[Record]] = {}
        self._names_synced: set[str] = set()

    def feed(self, record: Record) -> None:
        path = record.path
        match record.kind:
            case "c":
                self._synced[path] = bytearray()
            case "w" | "t":
                self._unsynced.setdefault(path, []).append(record)
            case "s":
                for act in self._unsynced.pop(path, []):
                    apply(self._synced[path], act)
            case "f":
                self._unsynced.pop(path, None)
            case "d":
                self._names_synced = set(self._synced)
            case "u":
                self._synced.pop(path, None)
                self._unsynced.pop(path, None)

    def write(self, to: Path, loss: Loss, rng: random.Random) -> None:
        for path, synced in self._synced.items():
            is_named = path in self._names_synced or loss is Loss.NONE
            if is_named or (loss is not Loss.ALL and rng.random() < 0.5):
                content = bytearray(synced)
                for act in kept(self._unsynced.get(path, []), loss, rng):
                    apply(content, act)
                (to / Path(path).relative_to(self._folder)).write_bytes(content)


def kept(acts: list[Record], loss: Loss, rng: random.Random) -> Iterator[Record]:
    torn_at = rng.randrange(len(acts) + 1)
    for position, act in enumerate(acts):
        match loss:
            case Loss.NONE:
                yield act
            case Loss.TORN if position < torn_at:
                yield act
            case Loss.TORN if position == torn_at and act.kind == "w":
                sectors = rng.randrange(len(act.data) // SECTOR_BYTES + 1)
                yield act._replace(data=act.data[: sectors * SECTOR_BYTES])
            case Loss.SOME_WRITES if rng.random() < 0.5:
                yield act
            case Loss.SOME_SECTORS if act.kind == "w":
                for start in range(0, len(act.data), SECTOR_BYTES):
                    if rng.random() < 0.5:
                        sector = act.data[start : start + SECTOR_BYTES]
                        yield act._replace(offset=act.offset + start, data=sector)


def apply(content: bytearray, act: Record) -> None:
    if len(content) < act.offset:
        content.extend(bytes(act.offset - len(content)))
    if act.kind == "t":
        del content[act.offset :]
    else:
        content[act.offset : act.offset + len(act.data)] = act.data


def read_log(path: Path) -> list[Record]:
    header = struct.Struct("<BIIQ")
    log, position, records = path.read_bytes(), 0, []
    while position < len(log):
        kind, path_bytes, data_bytes, offset = header.unpack_from(log, position)
        path_at = position + header.size
        data_at = path_at + path_bytes
        position = data_at + data_bytes
        records.append(
            Record(chr(kind), log[path_at:data_at].decode(), offset, log[data_at:position])
        )
    return records


def lines(records: list[Record]) -> list[str]:
    return b"".join(record.data for record in records if record.kind == "o").decode().splitlines()


@pytest.fixture(scope="module")
def power_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is needed to build power_log.c")
    library = tmp_path_factory.mktemp("power") / "power_log.so"
    source = Path(__file__).with_name("power_log.c")
    command = ["gcc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source, "-ldl"]
    subprocess.run(command, check=True)
    return library


class Machine:
    """One data folder under power_log.c."""

    def __init__(self, library: Path, base: Path) -> None:
        self.folder = base / "data"
        self.folder.mkdir(parents=True)
        self._log = base / "log"
        self._library = library

    def run(self, batches: int, fail_sync: int = 0) -> list[Record]:
        """Run a worker to its end; return all records of this machine so far."""
        worker = start(
            self.folder,
            batches,
            LD_PRELOAD=str(self._library),
            POWER_FOLDER=str(self.folder),
            POWER_LOG=str(self._log),
            POWER_FAIL_SYNC=str(fail_sync),
        )
        worker.communicate()
        return read_log(self._log)


def state_after(disk: PowerlessDisk, to: Path, loss: Loss, rng: random.Random) -> tuple[int, int]:
    """Simulate a loss of power and return the state; None if the first start was interrupted."""
    to.mkdir()
    disk.write(to, loss, rng)
    with closing(sqlite3.connect(to / "queues.db")) as db:
        db.execute("PRAGMA synchronous = OFF")  # this look needs no durability
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return found(db) if tables else (1, 0)


async def starts(folder: Path) -> tuple[int, int]:
    storage = await Storage.open(folder, OPTIONS, now_ms=1, new_id=bytes(16))
    try:
        return await storage.read(found)
    finally:
        await storage.close()


@pytest.mark.slow
def test_durable_messages_survive_a_loss_of_power_at_any_moment(
    power_log: Path, tmp_path: Path
) -> None:
    machine = Machine(power_log, tmp_path / "machine")
    records = machine.run(batches=40)
    disk, said, rng = PowerlessDisk(machine.folder), Said(), random.Random(1)

    for position, record in enumerate(records):
        if record.kind == "o":
            said.add(record.data.decode())
            continue
        disk.feed(record)
        for loss in Loss:
            after = tmp_path / "after"
            first, last = state_after(disk, after, loss, rng)
            assert last >= said.last, f"act {position}, {loss}: a durable message is lost"
            assert first >= said.first, f"act {position}, {loss}: a deleted message is back"
            if (position + loss.value) % 20 == 0:
                assert asyncio.run(starts(after)) == (first, last)
            shutil.rmtree(after)

    assert said.last == 100


@pytest.mark.parametrize("fail_sync", [*range(8, 20), 25, 30, 31])  # earlier ones: first start
def test_after_a_failed_sync_the_next_start_reports_only_durable_messages(
    power_log: Path, tmp_path: Path, fail_sync: int
) -> None:
    machine = Machine(power_log, tmp_path / "machine")
    failed = machine.run(batches=40, fail_sync=fail_sync)
    assert any(record.kind == "f" for record in failed)

    records = machine.run(batches=0)
    said = Said()
    disk = PowerlessDisk(machine.folder)
    for record in failed:
        disk.feed(record)
    for line in lines(failed):
        said.add(line)
    _, last = state_after(disk, tmp_path / "before", Loss.ALL, random.Random(1))
    assert last >= said.last, "more was said to be durable than had been synced"

    greeting = next(
        position
        for position, record in enumerate(records[len(failed) :], len(failed))
        if record.kind == "o"
    )
    for record in records[len(failed) : greeting]:
        disk.feed(record)
    said.add(records[greeting].data.decode())

    first, last = state_after(disk, tmp_path / "after", Loss.ALL, random.Random(1))

    assert last >= said.last, "the start spoke of a message that was only in the page cache"
    assert first >= said.first
