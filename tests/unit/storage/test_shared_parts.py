"""Shared parts of copies: stored once, joined when read, deleted with the last copy."""

import sqlite3
from zlib import crc32

import pytest

from storage.tables import awaiting, damaged, messages, outgoing, pages, shared_parts, tally
from storage.tables.keys import message_key
from storage.tables.messages import Move

PART = bytes(range(256)) * 8
HEAD = b"head of a packet" * 10
Q = 16


def key(arrival: int) -> int:
    return message_key(Q, 7, arrival)


@pytest.fixture
def copies(db: sqlite3.Connection) -> sqlite3.Connection:
    """Insert two incoming copies, two outgoing copies, and an ordinary message."""
    shared_parts.insert(db, [(1, PART, None)])
    of = 1, len(PART)
    messages.insert_copies(db, [(key(n), 1, None, None, HEAD, of) for n in (1, 2)])
    rows = [(key(n), HEAD) for n in (1, 2)]
    outgoing.insert_copies(db, [outgoing.NewCopies(rows, None, None, False, of)])
    messages.insert(db, [(key(3), 1, None, None, b"ordinary")])
    outgoing.insert(db, [(key(3), None, b"ordinary", None, False)])
    return db


def is_there(db: sqlite3.Connection) -> bool:
    return shared_parts.any_there(db)


def test_every_read_returns_complete_packets(copies: sqlite3.Connection) -> None:
    for row in (
        messages.find(copies, key(1)),
        messages.page(copies, Q)[1],
        messages.find_all(copies, [key(2)])[0],
        messages.beside(copies, Q, None, backwards=False, inclusive=False),
        outgoing.find(copies, key(1)),
        outgoing.page(copies, Q)[0],
    ):
        assert row is not None
        assert row.packet == HEAD + PART
        assert row.is_whole
        assert row.checksum == crc32(row.packet)


def test_sizes_are_those_of_complete_packets(copies: sqlite3.Connection) -> None:
    size = len(HEAD + PART)

    assert messages.totals(copies, Q) == (3, 2 * size + 8)
    assert outgoing.totals(copies, Q) == (3, 2 * size + 8)
    assert [each.size for each in pages.heads(copies, "outgoing", [key(1), key(3)])] == [size, 8]
    assert messages.sizes(copies, Q, rows_max=9) == [
        (key(1), size),
        (key(2), size),
        (key(3), 8),
    ]


def test_a_part_is_deleted_with_the_last_row_that_names_it(copies: sqlite3.Connection) -> None:
    messages.delete(copies, [key(1)])
    outgoing.delete_ranges(copies, [(key(1), key(1))])
    outgoing.delete(copies, [key(2)])
    assert is_there(copies)

    messages.purge(copies, Q, 10)

    assert not is_there(copies)


@pytest.mark.parametrize("way", ["one by one", "release", "delete_all", "move", "set aside"])
def test_every_way_to_delete_a_row_frees_its_part(copies: sqlite3.Connection, way: str) -> None:
    if way == "one by one":
        outgoing.release(copies, key(1), key(3))
        for n in (2, 1):
            assert is_there(copies)
            messages.delete(copies, [key(n)])
    elif way == "release":
        messages.delete_all(copies, Q)
        outgoing.release(copies, key(1), key(3))
    elif way == "delete_all":
        outgoing.release(copies, key(1), key(3))
        messages.delete_all(copies, Q)
    elif way == "move":
        outgoing.release(copies, key(1), key(3))
        messages.delete(copies, [key(2)])
        assert messages.move(copies, [Move(key(1), key(9), b"another packet")], 1) == {key(1)}
        moved = messages.find(copies, key(9))
        assert moved is not None
        assert moved.packet == b"another packet"
        assert moved.is_whole
    else:
        outgoing.release(copies, key(1), key(3))
        for n in (1, 2):
            assert damaged.set_aside(copies, "message", key(n), 5)
        assert [row.packet for row in damaged.list_all(copies)] == [HEAD + PART] * 2

    assert not is_there(copies)


def test_a_move_does_not_change_a_copy(copies: sqlite3.Connection) -> None:
    messages.move(copies, [Move(key(1), key(9))], 1)

    moved = messages.find(copies, key(9))

    assert moved is not None
    assert moved.packet == HEAD + PART


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE shared_part SET packet = zeroblob(length(packet))",
        "DELETE FROM shared_part",
        "UPDATE message SET packet = zeroblob(length(packet))",
    ],
)
def test_damage_of_either_half_is_detected(copies: sqlite3.Connection, damage: str) -> None:
    copies.execute(damage)

    for row in messages.page(copies, Q):
        assert row.is_whole == (row.key == key(3) and "message" not in damage)


def test_a_message_that_waits_for_its_receipt_keeps_the_part(db: sqlite3.Connection) -> None:
    shared_parts.insert(db, [(1, PART, None)])
    head = bytes(56) + (7).to_bytes(4, "little") + bytes(40)
    until = awaiting.confirm_by(None)
    copy = outgoing.NewCopies([(key(1), head)], None, until, False, (1, len(PART)))
    outgoing.insert_copies(db, [copy])

    arrived = awaiting.Arrived(Q, 1 << 32 | 1, 0, key(1), key(1), 5)
    (kept,) = awaiting.take_over(db, arrived)
    outgoing.delete_ranges(db, [(key(1), key(1))])

    assert kept.size == len(head + PART)
    ((row,), _) = awaiting.find_all(db, [7])
    assert row.packet == head + PART
    assert row.is_whole
    assert tally.counted(db)[tally.place_of("awaiting", Q)][:3] == (1, 7, len(head + PART))
    awaiting.delete(db, [7])
    assert not is_there(db)
