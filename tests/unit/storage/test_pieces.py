"""Pieces of large packets: stored ahead, joined when read, deleted with the row or by a start."""

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest

from protocol.names.format_name import parse_format_name
from qmd.control_protocol.messages import RECOVERABLE, NewMessage
from qmd.message.addresses import NO_ADDRESS, queue_address
from qmd.message.build import compose
from qmd.message.shared_packet import cut
from storage import Storage
from storage.rescue import check
from storage.rescue.repair import Rescue
from storage.tables import messages, sealing, shared_parts
from storage.tables.keys import message_key
from storage.vault import Vault, VaultConnection, vault_of
from tests.stored_packets import packets
from tests.unit.storage.support import (
    KEY,
    OTHER_KEY,
    OWN_ID,
    durable,
    key,
    opened,
    other_connection,
)

Q = 16
HEAD = b"head of a packet" * 10
PIECES = [random.Random(n).randbytes(size) for n, size in enumerate((9000, 9000, 70))]
IDS = [11, 15, 12]
WHOLE = b"".join(PIECES)


def insert_pieces(db: sqlite3.Connection) -> None:
    before = [None, *IDS]
    for id_, packet, follows in zip(IDS, PIECES, before, strict=False):
        shared_parts.insert(db, [(id_, packet, follows)])
        shared_parts.list_ahead(db, [id_])


def insert_row(db: sqlite3.Connection, arrival: int = 1) -> None:
    part = IDS[-1], len(WHOLE)
    messages.insert_copies(db, [(message_key(Q, 7, arrival), 1, None, None, HEAD, part)])
    shared_parts.take_from_list(db, IDS)


@pytest.fixture
def message(db: sqlite3.Connection) -> sqlite3.Connection:
    """Insert a message with a part in three pieces."""
    insert_pieces(db)
    insert_row(db)
    return db


def piece_ids(db: sqlite3.Connection) -> list[int]:
    return [id_ for (id_,) in db.execute("SELECT id FROM shared_part ORDER BY id")]


def test_a_read_joins_the_pieces(message: sqlite3.Connection) -> None:
    row = messages.find(message, key(1))

    assert row is not None
    assert row.packet == HEAD + WHOLE
    assert row.is_whole
    assert row.checksum == crc32(row.packet)
    assert messages.totals(message, Q) == (1, len(HEAD + WHOLE))


def test_all_pieces_are_deleted_with_the_last_row(message: sqlite3.Connection) -> None:
    part = IDS[-1], len(WHOLE)
    messages.insert_copies(message, [(key(2), 1, None, None, HEAD, part)])

    messages.delete(message, [key(1)])
    assert piece_ids(message) == sorted(IDS)

    messages.delete(message, [key(2)])
    assert piece_ids(message) == []


def test_pieces_in_use_are_no_leftovers(message: sqlite3.Connection) -> None:
    shared_parts.insert(message, [(20, b"in progress", None)])
    shared_parts.list_ahead(message, [20])

    assert shared_parts.any_ahead(message)
    shared_parts.delete_all_ahead(message)

    assert piece_ids(message) == sorted(IDS)
    assert not shared_parts.any_ahead(message)


def test_parts_without_a_row_are_deleted_with_their_pieces(db: sqlite3.Connection) -> None:
    insert_pieces(db)
    shared_parts.insert(db, [(30, b"another", None)])

    assert shared_parts.delete_unnamed(db) == 4

    assert piece_ids(db) == []


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE shared_part SET packet = zeroblob(length(packet)) WHERE id = 15",
        "DELETE FROM shared_part WHERE id = 15",
        "DELETE FROM shared_part WHERE id = 11",
        "UPDATE shared_part SET follows = NULL WHERE id = 12",
        "UPDATE shared_part SET follows = 11 WHERE id = 12",
        "UPDATE shared_part SET follows = 12 WHERE id = 11",
        "UPDATE shared_part SET follows = 99 WHERE id = 11",
    ],
)
def test_damage_of_a_piece_is_detected(message: sqlite3.Connection, damage: str) -> None:
    message.execute(damage)

    row = messages.find(message, key(1))

    assert row is not None
    assert not row.is_whole or row.packet != HEAD + WHOLE
    if "zeroblob" in damage or "DELETE" in damage or "99" in damage:
        assert not row.is_whole


def test_a_sealed_piece_follows_only_its_own(message: sqlite3.Connection) -> None:
    vault = vault_of(message)
    if vault is None:
        pytest.skip("packets are plain")
    packet, seal = message.execute("SELECT packet, seal FROM shared_part WHERE id = 15").fetchone()

    assert vault.opened("shared_part", 15, packet, seal, 11) == (PIECES[1], crc32(PIECES[1]))
    assert vault.opened("shared_part", 15, packet, seal, 12)[1] != crc32(PIECES[1])


def test_pieces_get_the_present_key(message: sqlite3.Connection) -> None:
    if vault_of(message) is None:
        pytest.skip("packets are plain")
    assert isinstance(message, VaultConnection)
    message.vault = Vault([OTHER_KEY, KEY])

    last, unreadable = sealing.rewrite(message, "shared_part", -1)
    sealing.rewrite(message, "message", -1)

    assert (last, unreadable) == (15, 0)
    message.vault = Vault([OTHER_KEY])
    row = messages.find(message, key(1))
    assert row is not None
    assert row.is_whole
    assert row.packet == HEAD + WHOLE


async def store_pieces(storage: Storage) -> None:
    before = [None, *IDS]
    for id_, packet, follows in zip(IDS, PIECES, before, strict=False):
        storage.batch.pieces.insert(id_, packet, follows)
        await durable(storage)


def test_a_start_deletes_pieces_without_a_row(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            await store_pieces(storage)
            storage.batch.insert_message(key(1), HEAD, 1, part=(IDS[-1], len(WHOLE)))
            storage.batch.pieces.use(IDS)
            storage.batch.pieces.insert(21, b"in progress", None)
            await durable(storage)
            with closing(other_connection(folder)) as db:
                assert piece_ids(db) == [*sorted(IDS), 21]

        async with opened(folder) as storage:
            assert await storage.read(piece_ids) == sorted(IDS)
            row = await storage.read(lambda db: messages.find(db, key(1)))
            assert row is not None
            assert row.packet == HEAD + WHOLE

    asyncio.run(scenario())


def test_pieces_that_are_not_used_are_deleted(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            await store_pieces(storage)
            storage.batch.pieces.delete(IDS)
            await durable(storage)

            assert await storage.read(piece_ids) == []
            assert not await storage.read(shared_parts.any_ahead)

    asyncio.run(scenario())


def test_pieces_of_one_batch_may_be_deleted_in_it(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            storage.batch.pieces.insert(21, b"in progress", None)
            storage.batch.pieces.delete([21])
            await durable(storage)

            assert await storage.read(piece_ids) == []

    asyncio.run(scenario())


def test_a_checkpoint_follows_a_megabyte_of_pieces(folder: Path) -> None:
    async def scenario() -> None:
        async with opened(folder) as storage:
            piece = bytes(256 * 1024)
            for id_ in range(1, 4):
                storage.batch.pieces.insert(id_, piece, None)
                await durable(storage)
            assert not sum(storage.figures.checkpoints.counts)
            storage.batch.pieces.insert(4, piece, None)
            await durable(storage)
            await storage.batch.barrier()
            assert sum(storage.figures.checkpoints.counts) == 1
            for id_ in range(5, 8):
                storage.batch.pieces.insert(id_, piece, None)
                await durable(storage)
            assert sum(storage.figures.checkpoints.counts) == 1
            assert not storage.bytes_waiting

    asyncio.run(scenario())


def test_a_rescue_saves_a_packet_in_pieces(folder: Path) -> None:
    packet = compose(
        NewMessage("", random.Random(5).randbytes(20_000), label="a label"),
        source=OWN_ID,
        destination=queue_address(parse_format_name("DIRECT=OS:a\\private$\\q")),
        admin=NO_ADDRESS,
        response=NO_ADDRESS,
        message_number=5,
        sent_time_s=1,
        delivery=RECOVERABLE,
        position=None,
    )
    head, part = cut(packet, 12)
    rest = packet[len(head) :]

    async def scenario() -> None:
        async with opened(folder) as storage:
            storage.batch.pieces.insert(11, rest[:9000], None)
            storage.batch.pieces.insert(12, rest[9000:], 11)
            storage.batch.insert_message(message_key(4, 7, 1), head, 1, part=part)
            storage.batch.pieces.use([11, 12])
            storage.batch.pieces.insert(21, b"in progress", None)
            await durable(storage)

    asyncio.run(scenario())
    assert check.check(folder).damaged == 0
    rescue = Rescue(folder)
    found = list(rescue.run(now_s=1, new_id=bytes(16)))

    assert [(each.packet, each.problem) for each in found] == [(packet, None)]
    with closing(sqlite3.connect(rescue.fresh / "queues.db")) as db:
        assert piece_ids(db) == [11, 12]
        assert list(packets(db, "message")) == [(message_key(4, 7, 1), packet)]
    with closing(sqlite3.connect(folder / "queues.db")) as db:
        db.execute("DELETE FROM shared_part WHERE id = 11")
        db.commit()
    assert check.check(folder).damaged == 1
