"""`python -m tests.crash.traffic FOLDER SEED`: random traffic on a storage, until it is killed.

The traffic has floods and drains, long and short messages, copies that share a part, deletions of
queues, freed pages, checkpoints, stops and starts.  Each step prints a line to standard output.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from protocol.names.format_name import parse_format_name
from qmd.control_protocol.messages import RECOVERABLE, NewMessage
from qmd.message.addresses import NO_ADDRESS, queue_address
from qmd.message.build import compose
from qmd.message.shared_packet import cut, split
from storage import Storage, StorageOptions
from storage.engine import checkpoint
from storage.tables import counters, directory_changes, queues, stages, ways_back
from storage.tables.directory_changes import DirectoryChange
from storage.tables.events import Event
from storage.tables.keys import message_key
from storage.tables.message_id_history import Segment
from storage.tables.outgoing import OutgoingQueueRow
from storage.tables.ways_back import WayBack

OWN_ID = bytes(range(16))
BLOCK = 1000  # size of a reservation of arrival numbers
SIZES = (0, 40, 40, 300, 300, 1500, 1500, 1500, 9000, 30_000)
DESTINATION = queue_address(parse_format_name("DIRECT=TCP:10.0.0.1\\private$\\q"))
STEP_BYTES_MAX = 100_000
LIVE_MAX = 150


class Traffic:
    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._random = random.Random(seed)
        self._live: dict[str, list[int]] = {"message": [], "outgoing": []}
        self._queues: list[int] = []
        self._arrival, self._reserved = 1, 1
        self._number = 0
        self._sequences = 0

    async def run(self) -> None:
        while True:
            options = StorageOptions(
                disk_reserve_bytes=0,
                disk_watermark_bytes=0,
                wal_autocheckpoint_pages=self._random.choice((30, 60, 200)),
                wal_size_limit_bytes=self._random.choice((0, 1 << 20)),
            )
            checkpoint.SMALL_LOG_BYTES = self._random.choice((50_000, 8_000_000))
            storage = await Storage.open(
                self._folder, options, now_ms=int(time.time() * 1000), new_id=OWN_ID
            )
            if not self._queues:
                await self._begin(storage)
            for _ in range(self._random.randrange(20, 400)):
                await self._step(storage)
                print(flush=True)
            await storage.close()

    async def _begin(self, storage: Storage) -> None:
        for number in range(3):
            await self._create_queue(storage, number)
        for number in range(16, 19):
            row = OutgoingQueueRow(
                number, f"DIRECT=TCP:10.0.0.{number}\\q", "a:1", False, 1, 0, 1, 1
            )
            storage.batch.outgoing.add_queue(row)

    async def _create_queue(self, storage: Storage, number: int) -> None:
        name = f"private$\\q{number}"
        row = await storage.batch.run(
            lambda db: queues.create(db, name=name, transactional=False, now_s=1)
        )
        self._queues.append(row.id)

    async def _step(self, storage: Storage) -> None:
        choose = self._random
        acts: dict[Callable[[Storage], Awaitable[None] | None], int] = {
            self._insert: 30,
            self._insert_outgoing: 10,
            self._insert_copies: 3,
            self._insert_pieces: 3,
            self._drain: 20,
            self._delete_some: 10,
            self._small_tables: 6,
        }
        act = choose.choices(list(acts), list(acts.values()))[0]
        if sum(map(len, self._live.values())) > LIVE_MAX:
            act = self._drain
        if self._arrival + BLOCK // 2 >= self._reserved:
            first = await storage.batch.run(lambda db: counters.reserve(db, "arrival", BLOCK))
            self._arrival, self._reserved = first, first + BLOCK
            await storage.batch.run(lambda db: counters.reserve(db, "message", BLOCK))
        going_on = act(storage)
        if going_on is not None:
            await going_on
        if choose.random() < 0.1:
            await storage.vacuum(choose.choice((1, 20, 10_000)))
        if choose.random() < 0.02:
            queue_id = self._queues.pop(choose.randrange(len(self._queues)))
            self._live["message"] = [key for key in self._live["message"] if key >> 48 != queue_id]
            await storage.batch.run(lambda db: queues.delete(db, queue_id))
            await self._create_queue(storage, choose.randrange(1000, 1 << 30))
        await storage.batch.run(lambda db: None)

    def _packet(self) -> bytes:
        self._number += 1
        size = self._random.choice(SIZES)
        return compose(
            NewMessage("", self._random.randbytes(size), label="a label"),
            source=OWN_ID,
            destination=DESTINATION,
            admin=NO_ADDRESS,
            response=NO_ADDRESS,
            message_number=self._number,
            sent_time_s=1,
            delivery=RECOVERABLE,
            position=None,
        )

    def _keys(self, queue_id: int) -> Iterator[int]:
        level = self._random.choice((3, 3, 3, 3, 1, 7))
        for _ in range(self._random.choice((1, 1, 5, 60))):
            if self._arrival < self._reserved:
                self._arrival += 1
                yield message_key(queue_id, level, self._arrival - 1)

    def _insert(self, storage: Storage) -> None:
        size = 0
        numbers: list[int] = []
        for key in self._keys(self._random.choice(self._queues)):
            packet = self._packet()
            expires = self._random.choice((None, None, 1 << 40))
            storage.batch.insert_message(key, packet, 1, expires)
            segment = Segment(self._number // 30, OWN_ID, 1, "", b"")
            storage.batch.incoming.remember_message_ids(segment).extend(
                (self._number, self._number)
            )
            self._live["message"].append(key)
            numbers.append(self._number)
            size += len(packet)
            if size > STEP_BYTES_MAX:
                break
        if self._random.random() < 0.7:
            return
        event = Event(kind="accepted", at_ms=1, source=self._random.randbytes(16), numbers=numbers)
        storage.batch.mention(event)

    def _insert_outgoing(self, storage: Storage) -> None:
        for key in self._keys(self._random.randrange(16, 19)):
            storage.batch.outgoing.insert(key, self._packet())
            self._live["outgoing"].append(key)

    def _insert_copies(self, storage: Storage) -> None:
        packet = self._packet()
        self._sequences += 1
        part_id = self._arrival * 1000 + self._sequences
        head, part = cut(packet, part_id)
        rows = [
            (key, 1, None, None, head, part)
            for key in self._keys(self._random.choice(self._queues))
        ]
        if rows:
            storage.batch.insert_shared_part(part_id, packet[len(head) :])
            storage.batch.insert_message_copies(rows, len(head) * len(rows))
            self._live["message"] += [row[0] for row in rows]

    async def _insert_pieces(self, storage: Storage) -> None:
        """Insert a message whose end is stored ahead, or leave the pieces without it."""
        packet = self._packet()
        self._sequences += 1
        first = self._arrival * 1000 + self._sequences * 10
        head = packet[: split(packet)]
        size = self._random.choice((500, 5_000)) + len(packet) // 8
        ids: list[int] = []
        for at in range(len(head), len(packet), size):
            follows = ids[-1] if ids else None
            ids.append(first + len(ids))
            storage.batch.pieces.insert(ids[-1], packet[at : at + size], follows)
            if self._random.random() < 0.7:
                await storage.batch.barrier()
        fate = self._random.choice(("accepted", "accepted", "refused", "left"))
        if fate == "accepted":
            for key in list(self._keys(self._random.choice(self._queues)))[:1]:
                part = ids[-1], len(packet) - len(head)
                storage.batch.insert_message(key, head, 1, part=part)
                storage.batch.pieces.use(ids)
                self._live["message"].append(key)
                return
        if fate != "left":
            storage.batch.pieces.delete(ids)

    def _drain(self, storage: Storage) -> None:
        """Remove the oldest messages, as readers do."""
        keys = self._live[self._random.choice(("message", "message", "outgoing"))]
        count = self._random.choice((1, 10, 100, len(keys)))
        self._delete(storage, sorted(keys)[:count])

    def _delete_some(self, storage: Storage) -> None:
        keys = self._live[self._random.choice(("message", "outgoing"))]
        self._delete(
            storage, self._random.sample(keys, len(keys) // self._random.choice((2, 7, 50)))
        )

    def _delete(self, storage: Storage, keys: list[int]) -> None:
        for table, delete in (
            ("message", storage.batch.delete_messages),
            ("outgoing", storage.batch.outgoing.delete),
        ):
            gone = set(keys) & set(self._live[table])
            if gone:
                delete(sorted(gone))
                self._live[table] = [key for key in self._live[table] if key not in gone]

    def _small_tables(self, storage: Storage) -> None:
        choose = self._random
        storage.batch.record_outcome(choose.randbytes(16), b"result", 1)
        ids = [choose.randrange(100).to_bytes(16, "big") for _ in range(10)]

        def unit(db: object) -> None:
            for each in ids:
                if choose.random() < 0.7:
                    ways_back.remember(db, WayBack(each, each, "host" * 20, 1))  # type: ignore[arg-type]
                else:
                    ways_back.forget(db, each)  # type: ignore[arg-type]
                directory_changes.note(db, DirectoryChange(each, "path" * 20, False, 1))  # type: ignore[arg-type]

        def stage(db: object) -> None:
            stages.add(
                db,  # type: ignore[arg-type]
                query="query",
                epoch=choose.randrange(50),
                part=1,
                attempt="a",
                first_row=1,
                row_count=1,
                at_s=1,
                data=choose.randbytes(choose.choice((10, 20_000))),
            )

        storage.batch.run(unit)
        storage.batch.run(stage)


if __name__ == "__main__":
    asyncio.run(Traffic(Path(sys.argv[1]), int(sys.argv[2])).run())
