"""Purging and deleting queues: acknowledgments for senders, and exact totals."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from protocol import final_ack_body, is_order_queue, parse_user_message
from protocol.message_class import MessageClass
from qmd.client import connect, new_message
from qmd.client.choice import chosen
from qmd.control_protocol.messages import EVERY_MESSAGE, EXPRESS, NewMessage, Piece
from qmd.errors import Refusal
from qmd.events.header import Kind
from qmd.operations import purge
from qmd.outcomes import unreceived_ends
from qmd.queues.local_queue import LocalQueue, Reader
from storage.tables import events
from tests.integration.disk import fail_read, held_disk
from tests.integration.managers import (
    DEAD_LETTERS,
    PATIENCE_S,
    TRANSACTIONAL_DEAD_LETTERS,
    Host,
    Hosts,
    bodies,
    hosted,
    until,
)
from tests.integration.remote import Remote, dial, guid, packet

SEQUENCE = 1 << 32 | 1
ADMIN = "DIRECT=TCP:127.0.0.1\\private$\\admin"
NR = 8


async def filled(hosts: Hosts, count: int = 3) -> tuple[Host, Remote]:
    """Fill `orders` with transactional messages of a remote source that requests final acks."""
    a = await hosts.start()
    await a.create("orders", transactional=True)
    remote = await dial(a, guid(7))
    remote.send(
        *(
            packet(
                b"%d" % number,
                source=remote.guid,
                number=number,
                position=(SEQUENCE, number, number - 1),
                dead_letter=True,
            )
            for number in range(1, count + 1)
        )
    )
    await until(lambda: a.queue("orders").messages == count)
    await a.settled()
    return a, remote


def final_acks(remote: Remote) -> list[tuple[int, int]]:
    """Return the class and sequence number of each received final ack."""
    return [
        (each.message.properties.message_class, final_ack_body(each.message).sequence_number)
        for each in remote.messages
        if each.message.properties.message_class >= 0x4000
        and is_order_queue(each.message.user, remote.guid)
    ]


async def reported(host: Host, kind: Kind) -> int:
    """Return the number of messages with a recorded event of this kind."""
    blocks = await host.storage.read(lambda db: events.page(db, 0, 100_000))
    return sum(
        len(event.numbers) for block in blocks for event in block.events if event.kind == kind
    )


@hosted
async def test_a_source_gets_final_acks_for_its_purged_messages(hosts: Hosts) -> None:
    a, remote = await filled(hosts)

    assert (await a.purger.purge(a.queue("orders"))).messages == 3

    purged = MessageClass.NACK_QUEUE_PURGED
    await until(lambda: final_acks(remote) == [(purged, 1), (purged, 2), (purged, 3)])
    assert await reported(a, Kind.PURGED) == 3
    assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 0


@hosted
async def test_a_source_gets_final_acks_for_the_messages_of_a_deleted_queue(hosts: Hosts) -> None:
    a, remote = await filled(hosts)

    assert (await a.queue_deletion.delete(a.queue("orders"))).messages == 3

    deleted = MessageClass.NACK_QUEUE_DELETED
    await until(lambda: final_acks(remote) == [(deleted, 1), (deleted, 2), (deleted, 3)])
    assert await reported(a, Kind.QUEUE_DELETED) == 3


@hosted
async def test_a_taken_message_ends_with_its_queue(hosts: Hosts) -> None:
    a, remote = await filled(hosts)
    reader = Reader()
    await a.take(reader, "orders", 2)

    assert (await a.queue_deletion.delete(a.queue("orders"))).messages == 3

    await until(lambda: len(final_acks(remote)) == 3)
    assert {message_class for message_class, _ in final_acks(remote)} == {
        MessageClass.NACK_QUEUE_DELETED
    }
    a.message_receiver.leave(reader)


@hosted
async def test_messages_in_subqueues_end_with_the_queue_as_well(hosts: Hosts) -> None:
    a, remote = await filled(hosts)
    await a.mover.move(a.queue("orders"), "orders;retry", EVERY_MESSAGE, Piece(2))

    assert (await a.queue_deletion.delete(a.queue("orders"))).messages == 3

    await until(lambda: len(final_acks(remote)) == 3)


@hosted
async def test_an_application_gets_a_requested_acknowledgment_of_a_purge(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("admin")
    for delivery in ({}, {"delivery": EXPRESS}):
        await a.send("orders", b"1", admin_queue="admin", acknowledge=NR, **delivery)

    await a.purger.purge(a.queue("orders"))

    await until(lambda: a.queue("admin").messages == 2)
    await a.settled()
    classes = {
        parse_user_message(message.packet).properties.message_class
        for message in await a.peek("admin")
    }
    assert classes == {MessageClass.NACK_QUEUE_PURGED}


@hosted
async def test_a_purge_of_non_transactional_messages_makes_no_dead_letters(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2")

    await a.purger.purge(a.queue("orders"))

    assert a.queue(DEAD_LETTERS).messages == 0


@hosted
async def test_a_long_queue_is_purged_in_pieces_and_new_messages_stay(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *[b"%d" % number for number in range(5000)])
    await a.send("orders", *[b"%d" % number for number in range(100)], delivery=EXPRESS)

    purging = asyncio.ensure_future(a.purger.purge(a.queue("orders")))
    await until(lambda: a.queue("orders").messages < 5100)
    assert not purging.done()
    await a.send("orders", b"late")
    purged = await purging

    assert purged.messages == 5100
    assert await a.receive("orders") == [b"late"]


@hosted
async def test_many_express_messages_are_purged_in_pieces(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    messages = [new_message("orders", b"%d" % number, delivery="express") for number in range(50)]
    async with connect(a.socket) as qm:
        await qm.send_many([*messages, new_message("orders", b"on disk"), *messages])
    pieces: list[int] = []
    end = a.dead_letters.end

    def watched(queue: LocalQueue, ended: Sequence[tuple[int, bytes]], *rest: Any) -> None:
        pieces.append(len(ended))
        end(queue, ended, *rest, detail="")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(purge, "PIECE_MESSAGES", 20)
        patch.setattr(a.dead_letters.unreceived, "_end", lambda *all_, detail: watched(*all_))
        purged = await a.purger.purge(a.queue("orders"))

    assert purged.messages == sum(pieces) == 101
    assert max(pieces) == 20
    assert a.queue("orders").messages == a.queue("orders").bytes == 0


@hosted
async def test_a_piece_with_acknowledgments_is_purged_in_parts(hosts: Hosts) -> None:
    a = await hosts.start()
    for name in ("orders", "acks"):
        await a.create(name)
    asking = {"admin_queue": "acks", "acknowledge": NR}
    kinds: list[dict[str, Any]] = [asking, asking | {"delivery": "express"}]
    count = 3 * unreceived_ends.ACKNOWLEDGED_AT_ONCE
    async with connect(a.socket) as qm:
        await qm.send_many(
            [new_message("orders", b"%d" % each, **kinds[each % 2]) for each in range(count)]
        )
    acks, orders = a.queue("acks"), a.queue("orders")
    purging = asyncio.ensure_future(a.purger.purge(orders))
    most = before = 0
    while not purging.done():
        await asyncio.sleep(0)
        most, before = max(most, acks.messages - before), acks.messages
    purged = await purging

    assert purged.messages == acks.messages == count
    assert (orders.messages, orders.bytes, a.dead_letters.under_way) == (0, 0, 0)
    assert most == unreceived_ends.ACKNOWLEDGED_AT_ONCE


@hosted
async def test_a_stop_waits_for_all_parts_of_a_purge(hosts: Hosts) -> None:
    a = await hosts.start()
    for name in ("orders", "acks"):
        await a.create(name)
    count = 5 * unreceived_ends.ACKNOWLEDGED_AT_ONCE
    message = new_message("orders", b"", admin_queue="acks", acknowledge=NR)
    async with connect(a.socket) as qm:
        await qm.send_many([message] * count)
    acks = a.queue("acks")
    purging = asyncio.ensure_future(a.purger.purge(a.queue("orders")))
    for _ in range(100_000):
        await asyncio.sleep(0)
        if acks.messages:
            break
    assert 0 < acks.messages < count
    b = await hosts.restart(a)

    assert (b.queue("orders").messages, b.queue("acks").messages) == (0, count)
    assert (await purging).messages == count


@hosted
async def test_taken_messages_stay_and_are_counted(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2", b"3")
    reader = Reader()
    taken = await a.take(reader, "orders")

    purged = await a.purger.purge(a.queue("orders"))

    assert (purged.messages, purged.taken) == (2, 1)
    a.give_back(reader, "orders", taken)
    assert await a.receive("orders") == [b"1"]


@hosted
async def test_messages_are_purged_by_their_properties(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", label="old")
    await a.send("orders", b"2", label="new")

    would = await a.purger.purge(a.queue("orders"), chosen(label="old"), dry_run=True)
    assert (would.messages, a.queue("orders").messages) == (1, 2)
    await a.purger.purge(a.queue("orders"), chosen(label="old"))

    assert await a.receive("orders") == [b"2"]


@hosted
async def test_dead_letters_and_journal_copies_are_purged_without_acknowledgments(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.create("admin")
    await a.send("orders", b"1", admin_queue="admin", acknowledge=NR, time_to_be_received_s=1)
    a.world.ahead_s = 10
    await hosts.reap(a)
    await until(lambda: a.queue("admin").messages == 1)

    assert (await a.purger.purge(a.queue(DEAD_LETTERS))).messages == 1

    await a.settled()
    assert a.queue("admin").messages == 1
    assert await reported(a, Kind.PURGED) == 1


@hosted
async def test_a_queue_that_is_being_deleted_accepts_no_messages(hosts: Hosts) -> None:
    a, remote = await filled(hosts, 1)
    with held_disk(a):
        deleting = asyncio.ensure_future(a.queue_deletion.delete(a.queue("orders")))
        await asyncio.sleep(0)
        with pytest.raises(Refusal, match="no queue"):
            a.queue("orders")
        remote.send(
            packet(b"2", source=remote.guid, number=2, position=(SEQUENCE, 2, 1), dead_letter=True)
        )
        await asyncio.sleep(0.05)
    await deleting

    await until(lambda: len(final_acks(remote)) == 2)
    assert {each for each, _ in final_acks(remote)} == {
        MessageClass.NACK_QUEUE_DELETED,
        MessageClass.NACK_BAD_DESTINATION_QUEUE,
    }


@hosted
async def test_a_receipt_that_is_being_committed_counts_although_its_queue_is_deleted(
    hosts: Hosts,
) -> None:
    a, remote = await filled(hosts, 2)
    reader = Reader()
    taken = await a.take(reader, "orders")
    with held_disk(a):
        removed = a.removing(reader, "orders", taken)
        await until(lambda: a.storage.pressure)
        deleting = asyncio.ensure_future(a.queue_deletion.delete(a.queue("orders")))
        await asyncio.sleep(0.05)
    assert await removed == 1
    assert (await deleting).messages == 1

    await until(lambda: len(final_acks(remote)) == 2)
    assert final_acks(remote) == [
        (MessageClass.ACK_RECEIVE, 1),
        (MessageClass.NACK_QUEUE_DELETED, 2),
    ]


@hosted
async def test_a_message_that_is_given_back_while_its_queue_is_deleted_ends_with_the_queue(
    hosts: Hosts,
) -> None:
    """The message was taken while the ready messages were ended, and it is ready while the taken
    ones are ended."""
    a, remote = await filled(hosts, 3)
    reader = Reader()
    await a.take(reader, "orders")
    queue = a.queue("orders")

    deleting = asyncio.ensure_future(a.queue_deletion.delete(queue))
    while all(message.packet for message in queue.taken.values()):  # noqa: ASYNC110
        await asyncio.sleep(0)  # poll until the end of the others begins: no event exists
    a.message_receiver.leave(reader)

    assert (await deleting).messages == 3
    await until(lambda: len(final_acks(remote)) == 3)
    assert {each for each, _ in final_acks(remote)} == {MessageClass.NACK_QUEUE_DELETED}
    assert await reported(a, Kind.QUEUE_DELETED) == 3


@hosted
async def test_a_reader_that_waits_for_a_deleted_queue_gets_an_error(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    waiting = a.taking(Reader(), "orders", 1, PATIENCE_S)
    looking: asyncio.Future[Any] = asyncio.ensure_future(
        a.message_browser.peek(a.queue("orders"), 0, 1, PATIENCE_S)
    )
    await asyncio.sleep(0.01)

    await a.queue_deletion.delete(a.queue("orders"))

    assert await waiting == []
    assert bodies(await looking) == []


@hosted
async def test_messages_that_wait_for_the_disk_are_recorded_as_ended_with_their_queue(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    with held_disk(a):
        sent = a.handed_over([NewMessage("orders", b"1")])
        await until(lambda: a.storage.pressure)
        sent_then = a.handed_over([NewMessage("orders", b"2")])
        deleting = asyncio.ensure_future(a.queue_deletion.delete(a.queue("orders")))
        await asyncio.sleep(0.05)

    assert (await deleting).messages == 2
    assert sent.done()
    assert sent_then.done()
    assert await reported(a, Kind.QUEUE_DELETED) == 2


@hosted
async def test_a_message_that_is_expiring_expires_although_its_queue_is_deleted(
    hosts: Hosts,
) -> None:
    a, remote = await filled(hosts, 1)
    (first,) = await a.peek("orders")

    expiring = a.dead_letters.end_unreceived(
        a.queue("orders"), [first.lookup_id], MessageClass.NACK_RECEIVE_TIMEOUT
    )
    await a.queue_deletion.delete(a.queue("orders"))

    assert expiring.result().messages == 1
    await until(lambda: final_acks(remote) == [(MessageClass.NACK_RECEIVE_TIMEOUT, 1)])


@hosted
async def test_a_queue_that_is_deleted_twice_at_once_is_deleted_once(hosts: Hosts) -> None:
    a = await hosts.start()
    queue = await a.create("orders")
    await a.send("orders", b"1", b"2")

    deletions = (a.queue_deletion.delete(queue) for _ in range(3))
    first, *others = await asyncio.gather(*deletions, return_exceptions=True)

    assert getattr(first, "messages", None) == 2
    assert [getattr(each, "code", None) for each in others] == ["no_such_queue"] * 2
    await a.create("orders")


@hosted
async def test_a_queue_can_be_recreated_while_the_old_one_is_being_deleted(hosts: Hosts) -> None:
    a = await hosts.start()
    queue = await a.create("orders")
    await a.send("orders", b"1", b"2")

    deleting = asyncio.ensure_future(a.queue_deletion.delete(queue))
    await asyncio.sleep(0)
    new = await a.create("ORDERS")

    assert deleting.done()
    assert (new.messages, new.deleted) == (0, False)


@hosted
async def test_a_deletion_goes_on_after_a_failed_read(hosts: Hosts) -> None:
    """The queue is out of memory by then, and must not stay on disk."""
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"1", b"2")
    await fail_read(a, "length(packet) + part_bytes FROM message")
    assert (await a.queue_deletion.delete(a.queue("orders"))).messages == 2
    await a.create("orders")
    assert a.queue("orders").messages == 0
    a = await hosts.restart(a)
    assert a.queue("orders").messages == 0
