"""Large messages of peers: their ends are stored in pieces before they are accepted."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing

import pytest

from qmd.control_protocol.messages import RECOVERABLE, TRANSACTIONAL
from qmd.queues.parts_ahead import PIECE_BYTES_MAX
from tests.integration.agreement import check_agreement
from tests.integration.managers import (
    DEAD_LETTERS,
    TRANSACTIONAL_DEAD_LETTERS,
    Host,
    Hosts,
    hosted,
    until,
)
from tests.integration.remote import Remote, dial, guid, packet
from tests.stored_packets import unshared_parts

LARGE = random.Random(1).randbytes(3_000_000)
OTHER = random.Random(2).randbytes(3_000_000)


def stored(host: Host, query: str) -> list[int]:
    """Return a column of a query to the host's database."""
    with closing(sqlite3.connect(host.services.settings.queue_manager.data / "queues.db")) as db:
        db.execute("BEGIN")
        assert unshared_parts(db) == []
        return [value for (value,) in db.execute(query)]


def pieces(host: Host) -> list[int]:
    return stored(host, "SELECT length(packet) FROM shared_part")


def in_row(host: Host) -> list[int]:
    return stored(host, "SELECT length(packet) FROM message")


async def receive_all(host: Host, queue: str) -> list[bytes]:
    """Receive all messages of a queue; one receive returns a limited number of bytes."""
    received: list[bytes] = []
    while more := await host.receive(queue):
        received += more
    await host.settled()
    return received


async def arrived(remote: Remote, *packets: bytes) -> None:
    """Send packets, and wait until each of them is acknowledged."""
    before = len(remote.acknowledged)
    remote.send(*packets)
    await until(lambda: len(remote.acknowledged) == before + len(packets), "acknowledgments")


@pytest.mark.parametrize("delivery", [RECOVERABLE, TRANSACTIONAL])
def test_a_large_message_is_stored_in_pieces(tmp_path: object, delivery: int) -> None:
    @hosted
    async def test(hosts: Hosts) -> None:
        a, b = await hosts.start("a"), await hosts.start("b")
        await b.create("orders", transactional=delivery == TRANSACTIONAL)
        there = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"

        await a.send(there, LARGE, b"small", OTHER, delivery=delivery)
        await until(lambda: b.queue("orders").messages == 3)
        await b.settled()

        assert max(in_row(b)) < 1000
        assert len(pieces(b)) > 2 * 2
        assert max(pieces(b)) <= PIECE_BYTES_MAX
        assert stored(b, "SELECT count(*) FROM part_ahead") == [0]
        await check_agreement(b)
        b = await hosts.restart(b)
        assert await receive_all(b, "orders") == [LARGE, b"small", OTHER]
        await b.settled()
        assert pieces(b) == []

    test(tmp_path)  # type: ignore[arg-type]


@hosted
async def test_messages_keep_the_order_in_which_they_came(hosts: Hosts) -> None:
    b = await hosts.start("b")
    await b.create("orders")
    remote = await dial(b, guid(7))
    sent = [b"%d" % number + (LARGE if number % 3 == 1 else b"") for number in range(9)]

    await arrived(
        remote,
        *(packet(body, source=guid(7), number=number) for number, body in enumerate(sent, 1)),
    )

    assert await receive_all(b, "orders") == sent


@hosted
async def test_the_pieces_of_a_message_that_came_twice_are_deleted(hosts: Hosts) -> None:
    b = await hosts.start("b")
    await b.create("orders")
    remote = await dial(b, guid(7))
    large = packet(LARGE, source=guid(7), number=1)

    await arrived(remote, large)
    once = len(pieces(b))
    await arrived(remote, large)
    await b.settled()

    assert b.incoming.duplicate_count == 1
    assert len(pieces(b)) == once > 0
    assert stored(b, "SELECT count(*) FROM part_ahead") == [0]
    assert await receive_all(b, "orders") == [LARGE]


@hosted
async def test_a_message_without_a_queue_is_kept_in_pieces(hosts: Hosts) -> None:
    b = await hosts.start("b")
    remote = await dial(b, guid(7))

    await arrived(remote, packet(LARGE, source=guid(7), number=1, queue="none"))

    assert len(pieces(b)) > 2
    assert max(in_row(b)) < 1000
    assert await receive_all(b, DEAD_LETTERS) == [LARGE]
    assert pieces(b) == []


@hosted
async def test_a_message_that_its_sender_keeps_leaves_no_piece(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders", transactional=True, quota_bytes=4_000_000)
    there = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"

    await a.send(there, LARGE, OTHER, delivery=TRANSACTIONAL)
    await until(lambda: a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 1)
    await b.settled()

    assert sum(pieces(b)) < 4_000_000
    assert stored(b, "SELECT count(*) FROM part_ahead") == [0]
    assert await receive_all(b, "orders") == [LARGE]
    assert pieces(b) == []
    assert await receive_all(a, TRANSACTIONAL_DEAD_LETTERS) == [OTHER]


@hosted
async def test_a_session_that_ends_leaves_no_piece(hosts: Hosts) -> None:
    b = await hosts.start("b")
    await b.create("orders")
    for number in range(1, 6):
        remote = await dial(b, guid(7))
        remote.send(*(packet(LARGE, source=guid(7), number=3 * number + n) for n in range(3)))
        await until(lambda: stored(b, "SELECT count(*) FROM part_ahead") != [0], "a first piece")
        remote.close()
        await remote.closed.wait()
    await until(lambda: stored(b, "SELECT count(*) FROM part_ahead") == [0], "deletion")

    received = await receive_all(b, "orders")
    assert received == [LARGE] * len(received)
    await b.settled()
    assert pieces(b) == []
    await check_agreement(b)


@hosted
async def test_the_owners_of_large_packets_take_turns(hosts: Hosts) -> None:
    b = await hosts.start("b")
    ended: list[str] = []
    parts = b.incoming.large._parts
    large = packet(LARGE, source=guid(7), number=1)
    made = [
        parts.store(large, len(large), owner, lambda name=name: ended.append(name))
        for owner, name in [("x", "x1"), ("x", "x2"), ("y", "y1"), ("x", "x3"), ("z", "z1")]
    ]
    parts.forget(made[3])

    await until(lambda: len(ended) == 4, "the end of each")
    assert (
        ended == ["x1", "x2", "y1", "z1"]
        or ended == ["x1", "y1", "z1", "x2"]
        or ended
        == [
            "x1",
            "y1",
            "x2",
            "z1",
        ]
    )
    for part in made:
        parts.forget(part)
    await b.settled()
    assert pieces(b) == []
