"""Consumption by notes of a read has the effects of a consumption that reads again."""

from __future__ import annotations

import random
import sqlite3
from array import array
from typing import Any

import pytest

from qmd.bulk import consume, read_notes
from qmd.bulk.consume import Consumer
from qmd.bulk.read_notes import Note, ReadNotes
from qmd.events.header import IDENTITY, IDENTITY_OFFSET
from storage.tables import events
from storage.tables.keys import LOOKUP_BITS
from storage.tables.ranges import QuickPage
from tests.integration.agreement import check_agreement
from tests.integration.bulk.reader import numbered, opened
from tests.integration.managers import Host, Hosts, bodies, hosted

Received = list[tuple[bytes, int, int, int]]


@pytest.fixture(autouse=True)
def _no_note_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_notes, "_FEW", 1)


def received(db: sqlite3.Connection) -> Received:
    """Return source, number, size and place of all messages that were received."""
    found = [
        (event.source, *each)
        for block in events.page(db, 0, 1 << 20)
        for event in block.events
        if event.kind == "received"
        for each in zip(event.numbers, event.sizes, event.places, strict=True)
    ]
    return sorted(found)


async def was_received(host: Host) -> Received:
    await host.storage.batch.barrier()
    return await host.storage.read(received)


def is_noted(run: Any) -> bool:
    return bool(run.host.readers.get(run.name).queues[run.queue].notes._notes)


@hosted
async def test_events_are_the_same_whether_messages_were_read_before_or_not(hosts: Hosts) -> None:
    chance = random.Random(7)
    a = await hosts.start()
    recorded = []
    for reads_before in (False, True):
        name = f"orders-{reads_before}"
        await a.create(name)
        before = await was_received(a)
        for _ in range(6):
            await a.send(name, *[bytes(chance.choice((3, 3, 900))) for _ in range(9)])
        run = await opened(a, name, name)
        await run.reserve(0, 50)
        if reads_before:
            assert len(await run.read(0, 50)) == 50
            assert is_noted(run)
        assert (await run.consume(33))["messages"] == 33  # ends within a note
        assert (await run.consume(50))["messages"] == 50 - 33
        assert not is_noted(run)
        assert len(await a.receive(name)) == 4
        recorded.append([each for each in await was_received(a) if each not in before])
        chance = random.Random(7)
    plain, noted = recorded
    assert len(plain) == len(noted) == 54
    assert [size for *_, size, _ in plain] == [size for *_, size, _ in noted]
    assert [number - plain[0][1] for _, number, *_ in plain] == [
        number - noted[0][1] for _, number, *_ in noted
    ]
    await check_agreement(a)


class Undone(Exception):
    """Ends a unit of work, whose changes are undone."""


@hosted
async def test_notes_about_a_message_that_vanished_are_not_used(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *numbered(9))
    run = await opened(a)
    await run.reserve(0, 9)
    await run.read(0, 9)
    held = a.readers.get(run.name).queues[run.queue]
    base, notes = held.queue.id << LOOKUP_BITS, held.notes.take(0, 9)

    def remove(db: sqlite3.Connection) -> None:
        noted = consume._noted_page(db, base, notes)
        assert noted is not None
        assert len(noted.lookup_ids) == 9
        db.execute("DELETE FROM message WHERE key = (SELECT min(key) + 4 FROM message)")
        assert consume._noted_page(db, base, notes) is None
        raise Undone

    with pytest.raises(Undone):
        await a.storage.batch.run(remove)
    assert (await run.consume(9))["messages"] == 9


@hosted
async def test_a_journal_that_is_set_meanwhile_gets_its_copies(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *numbered(9))
    run = await opened(a)
    await run.reserve(0, 9)
    await run.read(0, 9)
    assert is_noted(run)
    # It is set between the look at the messages and their removal.
    whole_page = Consumer._page

    async def page(consumer: Consumer, *given: Any, **named: Any) -> Any:
        found = await whole_page(consumer, *given, **named)
        if not named:
            await a.administration.change(a.queue("orders"), journal=True)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Consumer, "_page", page)
        assert (await run.consume(9))["messages"] == 9
    assert bodies(await a.peek("orders;journal")) == numbered(9)


@hosted
async def test_messages_that_request_acknowledgments_get_them_after_a_read(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("answers")
    await a.send("orders", *numbered(5))
    await a.send("orders", *numbered(4, 5), admin_queue="answers", acknowledge=2)
    run = await opened(a)
    await run.reserve(0, 9)
    assert await run.read(0, 9) == numbered(9)
    assert (await run.consume(9))["messages"] == 9
    assert len(await a.peek("answers")) == 4


@hosted
async def test_the_notes_of_released_messages_are_dropped(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *numbered(9))
    run = await opened(a)
    await run.reserve(0, 9)
    await run.read(0, 9)
    assert is_noted(run)
    await a.reservations.release(run.name, "", dry_run=False, forget=False)
    assert not is_noted(run)


def test_pages_with_exceptions_are_not_noted() -> None:
    def page(sources: bytes, positions: list[int]) -> QuickPage:
        packets = [bytearray(100) for _ in sources]
        for number, (packet, source) in enumerate(zip(packets, sources, strict=True)):
            IDENTITY.pack_into(packet, IDENTITY_OFFSET, bytes([source]) * 16, number)
        offsets = array("i", range(0, 100 * len(packets) + 1, 100))
        places = array("q", positions)
        return QuickPage(places, places, places, offsets, b"".join(packets), may_be_more=False)

    (noted,) = read_notes.notes_of(page(b"aaa", [5, 6, 7]), 10, 1000)
    assert (noted.after, noted.end, noted.source) == (4, 7, b"a" * 16)
    assert list(noted.numbers) == [0, 1, 2]
    assert read_notes.notes_of(page(b"aba", [5, 6, 7]), 10, 1000) == []  # two sources
    assert read_notes.notes_of(page(b"aaa", [5, 6, 8]), 10, 1000) == []  # one is missing
    parts = read_notes.notes_of(page(b"aaaaa", [5, 6, 7, 8, 9]), 2, 1000)
    assert [(each.after, each.end) for each in parts] == [(4, 6), (6, 8), (8, 9)]
    parts = read_notes.notes_of(page(b"aaaaa", [5, 6, 7, 8, 9]), 10, 250)
    assert [each.size for each in parts] == [200, 100, 200]


def note(after: int, end: int) -> Note:
    messages = end - after
    return Note(after, end, [(after, end)], b"", range(messages), [10] * messages, 10 * messages)


def test_notes_are_taken_together_up_to_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_notes, "PIECE_MESSAGES", 10)
    notes = ReadNotes()
    notes.add([note(0, 4), note(4, 8), note(8, 12), note(20, 24)])
    assert [each.end for each in notes.take(0, 100)] == [4, 8]
    assert notes.take(4, 100) == []
    assert notes.take(8, 11) == []  # it ends behind the range
    assert [each.end for each in notes.take(8, 100)] == [12]
    assert [each.end for each in notes.take(20, 24)] == [24]


def test_a_few_messages_are_read_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_notes, "_FEW", 5)
    notes = ReadNotes()
    notes.add([note(0, 4), note(4, 8)])
    assert notes.take(4, 100) == []
    assert [each.end for each in notes.take(0, 4)] == [4]


def test_the_oldest_notes_go_if_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_notes, "NOTED_MAX", 10)
    notes = ReadNotes()
    notes.add([note(0, 4), note(4, 8), note(4, 8), note(8, 12)])
    assert notes.take(0, 4) == []
    assert [each.end for each in notes.take(4, 100)] == [8, 12]
