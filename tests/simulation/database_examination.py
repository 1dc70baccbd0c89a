"""The examination of a host's database, with SQL that shares nothing with the storage package."""

from __future__ import annotations

import sqlite3
import zlib
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping
from functools import lru_cache

import msgspec

from tests.ledger import Message, disagreements
from tests.process import wire
from tests.simulation import acknowledgments, vfs
from tests.simulation.disk import BorrowedDisk
from tests.simulation.file_contents import Contents
from tests.simulation.message_copies import CopyFound
from tests.simulation.message_records import (
    Found,
    Place,
    Totals,
    marked,
)
from tests.stored_packets import missing_parts, packets, unshared_parts

_LOOKUP_BITS, _ARRIVAL_BITS = 48, 44
_IN_SEQUENCE = 8  # the level of transactional messages in outgoing queues: they have numbers
_FOR_OTHERS = " for others"  # ends the name of a queue of relayed messages
_ACKNOWLEDGED_TO = f"\\{acknowledgments.QUEUE}\0".encode("utf-16-le")  # ends a queue's name
_KINDS = {
    "system$;deadletter": "dead",
    "system$;deadxact": "dead",
    "system$;journal": "journal",
}


def examine(
    image: dict[str, Contents],
    host: str,
    *,
    with_log: bool = False,
    thorough: bool = False,
    has_stopped: bool = False,
    copies: Container[int] = (),
    hosts: Mapping[str, str] = {},
) -> Found:
    """Return the contents of a host's database.

    `with_log`: compare its event log with its tables.  `thorough`: run SQLite's check of the file.
    `has_stopped`: the daemon stopped in good order, so that the log must report the end of every
    message in its memory.  `copies`: marks of messages to several queues.  `hosts`: host part of a
    direct name -> host.  Raises sqlite3.Error if the database cannot be read.
    """
    own_paths = {path.replace(f"/{host}/", "/oracle/", 1): data for path, data in image.items()}
    disk = BorrowedDisk("oracle", own_paths)
    vfs.mount(disk)
    if disk.find("/oracle/data/queues.db") is None:
        return Found({}, {}, {}, {})
    database = vfs.connect("/oracle/data/queues.db")
    try:
        reader = _Examination(database, host, copies, hosts)
        found = reader.read(thorough=thorough)
        if with_log and found.queues:
            reader.check_dead_letters()
            logged: Counter[str] = Counter()
            in_memory: set[tuple[str, int | Message]] | None = set() if has_stopped else None
            problems = [*disagreements(database, in_memory, seen=logged), *reader.problems]
            return found._replace(contradictions=problems, logged=logged)
        return found
    finally:
        disk.discard()
        database.close()


class _Examination:
    """One examination of a database."""

    def __init__(
        self,
        database: sqlite3.Connection,
        host: str,
        copies: Container[int],
        hosts: Mapping[str, str],
    ) -> None:
        self._database = database
        self._host = host
        self._marks_of_copies = copies
        self._hosts = hosts
        self._places: dict[int, list[Place]] = defaultdict(list)
        self._copies: list[CopyFound] = []
        self._aborts: dict[int, int] = {}
        self.problems: list[str] = []

    def read(self, *, thorough: bool) -> Found:
        database, host = self._database, self._host
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'queue'").fetchone():
            return Found(self._places, {}, {}, {})
        verdict = "ok"
        if thorough:
            (verdict,) = database.execute("PRAGMA quick_check").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"the database of {host} is damaged: {verdict}")
        self._check_parts()
        names = dict(database.execute("SELECT id, key FROM queue"))
        kinds = {id_: (name, _kind(name)) for id_, name in names.items()}
        queues = _Sums(names)
        aborted = dict(
            database.execute("SELECT key, abort_count FROM message WHERE abort_count > 0")
        )
        for key, packet in packets(database, "message"):
            if key in aborted and (number := marked(packet)) is not None:
                self._aborts[number] = aborted[key]
            queue_id = key >> _LOOKUP_BITS
            if queue_id not in kinds:
                raise sqlite3.DatabaseError(
                    f"a message of {host} is in a queue that does not exist"
                )
            queues.add(queue_id, packet)
            name, kind = kinds[queue_id]
            self._see(packet, kind, name)
        names = dict(database.execute("SELECT id, destination FROM outgoing_queue"))
        kinds = {
            id_: (name, "relayed" if name.endswith(_FOR_OTHERS) else "outgoing")
            for id_, name in names.items()
        }
        outgoing = _Sums(names)
        positions = {
            id_: base + next_number
            for id_, base, next_number in database.execute(
                "SELECT id, base, next_number FROM outgoing_queue"
            )
        }
        for key, packet in packets(database, "outgoing"):
            queue_id = key >> _LOOKUP_BITS
            name, kind = kinds[queue_id]
            level, position = key >> _ARRIVAL_BITS & 0xF, key & (1 << _ARRIVAL_BITS) - 1
            if level == _IN_SEQUENCE and position >= positions[queue_id]:
                raise sqlite3.DatabaseError(
                    f"{host} will give a number of {name} again: {position} is there, and"
                    f" {positions[queue_id]} would come next"
                )
            outgoing.add(queue_id, packet)
            self._see(packet, kind, name)
        awaiting = _Sums(names)
        for queue_id, packet in packets(database, "awaiting", "queue_id"):
            awaiting.add(queue_id, packet)
            self._see(packet, "awaiting", names[queue_id])
        self._see_delayed()
        return Found(
            self._places,
            queues.totals(),
            outgoing.totals(),
            {name: each for name, each in awaiting.totals().items() if each.messages},
            copies=self._copies,
            aborts=self._aborts,
        )

    def _see_delayed(self) -> None:
        """Read the messages that wait for their time, with all of their copies."""
        ((own_id,),) = self._database.execute("SELECT queue_manager FROM identity")
        for names, data in self._database.execute("SELECT queue, data FROM delayed"):
            number = marked(data)
            if number is None:
                continue
            _, ids = msgspec.msgpack.decode(data)
            if number not in self._marks_of_copies:
                self._places[number].append(Place(self._host, "delayed", names))
                continue
            for name, each in zip(names.split(","), ids, strict=True):
                copy = CopyFound.delayed(number, (own_id, each), name, self._host, self._hosts)
                self._copies.append(copy)

    def _see(self, packet: bytes, kind: str, queue: str) -> None:
        number = marked(packet)
        if _is_acknowledgment(packet):
            # The end of an acknowledgment is not acknowledged, and no queue keeps it.
            if kind in ("dead", "journal", "kept", "awaiting"):
                self.problems.append(f"an acknowledgment is kept in {queue}")
            return  # a negative acknowledgment contains the body of its message
        if number is None:
            return
        place = Place(self._host, kind, queue)
        if number in self._marks_of_copies:
            self._copies.append(CopyFound.of(number, packet, place, self._hosts))
        else:
            self._places[number].append(place)

    def check_dead_letters(self) -> None:
        """Check that each dead letter has a reason and a class."""
        dead = {
            id_: name
            for id_, name in self._database.execute("SELECT id, key FROM queue")
            if _kind(name) == "dead"
        }
        reasons = dict(self._database.execute("SELECT key, reason FROM message"))
        for key, packet in packets(self._database, "message"):
            if key >> _LOOKUP_BITS not in dead:
                continue
            if not reasons[key] or _class_of(packet) == 0:
                self.problems.append(f"dead letter {marked(packet)} has no reason or no class")

    def _check_parts(self) -> None:
        """Check that each body that copies share is intact, and exists as long as one of them."""
        database = self._database
        if missing := missing_parts(database):
            raise sqlite3.DatabaseError(f"copies of {self._host} lack their body: {missing[:3]}")
        if unshared := unshared_parts(database):
            raise sqlite3.DatabaseError(f"bodies of {self._host} belong to no copy: {unshared[:3]}")
        for part_id, packet, checksum in database.execute(
            "SELECT id, packet, checksum FROM shared_part"
        ):
            if zlib.crc32(packet) != checksum:
                raise sqlite3.DatabaseError(f"body {part_id} of {self._host} is not what it was")


class _Sums:
    """The number and the size of the messages of some queues, by the ids of the queues."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._messages = dict.fromkeys(names, 0)
        self._bytes = dict.fromkeys(names, 0)

    def add(self, queue_id: int, packet: bytes) -> None:
        self._messages[queue_id] += 1
        self._bytes[queue_id] += len(packet)

    def totals(self) -> dict[str, Totals]:
        return {
            name: Totals(self._messages[id_], self._bytes[id_]) for id_, name in self._names.items()
        }


def _is_acknowledgment(packet: bytes) -> bool:
    """Return whether a packet is for an administration queue, which gets nothing else."""
    size = int.from_bytes(packet[64:66], "little")
    return _ACKNOWLEDGED_TO in packet[66 : 66 + size]


@lru_cache(4096)  # the same dead letters are examined again and again
def _class_of(packet: bytes) -> int | None:
    """Return the message class of a packet; None if it cannot be parsed."""
    try:
        message = wire.parse(packet)
    except wire.Violation:
        return None
    assert isinstance(message, wire.Message)
    return message.message_class


def _kind(queue: str) -> str:
    return _KINDS.get(queue) or ("kept" if queue.endswith(";journal") else "queue")


def compare(name: str, reported: dict[str, Totals], found: dict[str, Totals]) -> Iterator[str]:
    """Return the differences between a queue manager's figures and its database."""
    for queue in sorted(reported.keys() | found.keys()):
        if reported.get(queue) != found.get(queue):
            yield f"{name} says of {queue} {reported.get(queue)}, and there is {found.get(queue)}"
