"""Acknowledgments for the ends of messages in local queues: final acks, and acknowledgments for
administration queues, in the commit that removes the message."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from protocol import DirectQueueName, final_ack_body, is_order_queue, parse_user_message
from protocol.identifiers import correlation_text
from protocol.message_class import MessageClass
from protocol.names.direct_name import parse_wire_name
from qmd.control_protocol.messages import (
    EVERY_MESSAGE,
    EXPRESS,
    RECOVERABLE,
    TRANSACTIONAL,
    Piece,
    StoredMessage,
)
from qmd.core.session import MessageReceived
from qmd.errors import Refusal
from qmd.operations.restore_message import Changes
from qmd.queues.local_queue import Reader
from storage.tables import owed
from storage.tables.owed import Owed
from tests.integration.disk import held_disk
from tests.integration.managers import (
    DEAD_LETTERS,
    JOURNAL,
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
PA, PR, NA, NR = 1, 2, 4, 8


async def rejecting(
    host: Host, reader: Reader, queue: str, messages: list[StoredMessage], detail: str = ""
) -> int:
    done = host.loop.create_future()
    lookup_ids = [message.lookup_id for message in messages]
    host.message_receiver.reject(
        reader, host.queue(queue), lookup_ids, detail, b"", done.set_result
    )
    return int(await done)


def final_acks(remote: Remote) -> list[tuple[int, int, int]]:
    """Return the class, sequence number and message number of each received final ack."""
    found = []
    for each in remote.messages:
        message_class = each.message.properties.message_class
        if message_class >= 0x4000 and is_order_queue(each.message.user, remote.guid):
            body = final_ack_body(each.message)
            assert body.source_queue_manager == remote.guid
            assert body.sequence_id == SEQUENCE
            found.append((message_class, body.sequence_number, body.message_number))
    return found


def acknowledgments(remote: Remote) -> list[MessageReceived]:
    """Return the received messages for the administration queue."""
    return [each for each in remote.messages if not is_order_queue(each.message.user, remote.guid)]


async def given(remote: Remote, host: Host, count: int, **properties: Any) -> None:
    """Send transactional messages of this source to `orders`, and wait for their arrival."""
    before = host.queue("orders").messages
    remote.send(
        *(
            packet(
                b"%d" % number,
                source=remote.guid,
                number=100 + number,
                position=(SEQUENCE, number, number - 1),
                **properties,
            )
            for number in range(before + 1, before + count + 1)
        )
    )
    await until(lambda: host.queue("orders").messages == before + count)
    await host.settled()


ASKING = [{"dead_letter": True}, {"dead_letter": False, "journal": True}]


@pytest.mark.parametrize("asking", ASKING)
def test_a_source_that_requests_it_gets_a_final_ack_for_each_receipt(
    tmp_path: Any, asking: Any
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        await a.create("orders", transactional=True)
        remote = await dial(a, guid(7))
        await given(remote, a, 3, **asking)

        await a.receive("orders", limit=2)

        await until(lambda: len(final_acks(remote)) == 2)
        received = MessageClass.ACK_RECEIVE
        assert final_acks(remote) == [(received, 1, 101), (received, 2, 102)]

    scenario(tmp_path)


@hosted
async def test_the_flag_for_final_acks_works_without_journaling(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    remote = await dial(a, guid(7))
    plain = packet(
        b"1", source=remote.guid, number=101, position=(SEQUENCE, 1, 0), dead_letter=False
    )
    built = parse_user_message(plain)
    assert built.transaction is not None
    at = plain.index(SEQUENCE.to_bytes(8, "little")) - 4
    asking = plain[:at] + bytes([plain[at] | 2]) + plain[at + 1 :]
    remote.send(asking)
    await until(lambda: a.queue("orders").messages == 1)
    await a.settled()

    await a.receive("orders")

    await until(lambda: final_acks(remote) == [(MessageClass.ACK_RECEIVE, 1, 101)])


@hosted
async def test_a_source_without_a_request_gets_no_final_ack(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    await a.create("plain")
    remote = await dial(a, guid(7))
    await given(remote, a, 2, dead_letter=False)
    remote.send(packet(b"3", source=remote.guid, number=9, queue="plain", journal=True))
    await until(lambda: a.queue("plain").messages == 1)
    await a.settled()

    await a.receive("orders")
    await a.receive("plain")
    await a.settled()

    assert a.usage.bytes == 0
    assert final_acks(remote) == []


@hosted
async def test_the_final_ack_is_in_the_commit_of_the_removal_and_survives_a_restart(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    remote = await dial(a, guid(7))
    await given(remote, a, 2)
    remote.close()
    await until(lambda: not a.peers.connections)
    reader = Reader()
    taken = await a.take(reader, "orders", 2)

    with held_disk(a):
        removed = a.removing(reader, "orders", taken)
        assert not removed.done()
    await removed

    database = a.services.settings.queue_manager.data / "queues.db"
    with closing(sqlite3.connect(database)) as db:
        assert db.execute("SELECT count(*) FROM message").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM outgoing").fetchone() == (2,)
    a = await hosts.restart(a)
    remote = await dial(a, guid(7))
    await until(lambda: len(final_acks(remote)) == 2)
    remote.acknowledge()
    await until(lambda: not any(queue.messages for queue in a.outgoing.queues))


@hosted
async def test_a_refusal_is_sent_only_when_it_is_on_disk(hosts: Hosts) -> None:
    """The source would keep a dead letter and resend the message.  After a crash, this queue
    manager would not know of its refusal, and could accept the message."""
    a = await hosts.start()
    remote = await dial(a, guid(7))
    refused = packet(
        b"1", source=remote.guid, number=1, queue="nowhere", position=(SEQUENCE, 1, 0), **ASKING[0]
    )

    with held_disk(a):
        remote.send(refused)
        await until(lambda: a.storage.pressure)
        await asyncio.sleep(0.3)  # time in which a premature final ack would come
        assert remote.messages == []
        assert remote.acknowledged == []

    await until(lambda: len(final_acks(remote)) == 1)
    await until(lambda: remote.acknowledged == [refused])


@hosted
async def test_a_final_ack_is_resent_until_it_is_acknowledged(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    remote = await dial(a, guid(7))
    await given(remote, a, 1)
    await a.receive("orders")
    await until(lambda: len(final_acks(remote)) == 1)
    remote.close()

    again = await dial(a, guid(7))

    await until(lambda: final_acks(again) == final_acks(remote))


@hosted
async def test_a_source_that_can_be_reached_is_dialled(hosts: Hosts) -> None:
    """The port is the one of the specification, since no packet names another."""
    a = await hosts.start()
    await a.create("orders", transactional=True)
    remote = await dial(a, guid(7))
    await given(remote, a, 1)
    remote.close()
    a = await hosts.restart(a)

    await a.receive("orders")

    (sender,) = (queue for queue in a.outgoing.queues if queue.messages)
    assert sender.link.guid == guid(7)
    assert sender.link.address == ("127.0.0.1", 1801)


@hosted
async def test_a_message_that_expires_in_its_queue_is_reported_to_its_source_which_keeps_it(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    remote = await dial(a, guid(7))
    await given(remote, a, 2, time_to_be_received_s=10)
    a.world.ahead_s = 12

    await hosts.reap(a)

    await until(lambda: len(final_acks(remote)) == 2)
    over = MessageClass.NACK_RECEIVE_TIMEOUT
    assert final_acks(remote) == [(over, 1, 101), (over, 2, 102)]
    assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 0


@hosted
async def test_a_rejected_message_is_reported_to_its_source_which_keeps_it(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    remote = await dial(a, guid(7))
    await given(remote, a, 2)
    reader = Reader()
    (first,) = await a.take(reader, "orders", 1)

    assert await rejecting(a, reader, "orders", [first]) == 1

    await until(lambda: final_acks(remote) == [(MessageClass.NACK_RECEIVE_REJECTED, 1, 101)])
    assert bodies(await a.peek("orders")) == [b"2"]
    assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 0


@hosted
async def test_a_rejected_message_without_another_copy_becomes_a_dead_letter_with_the_reason(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    await a.create("plain")
    remote = await dial(a, guid(7))
    await given(remote, a, 1, dead_letter=False)
    remote.send(packet(b"plain", source=remote.guid, number=9, queue="plain"))
    await a.send("plain", b"express", delivery=EXPRESS)
    await until(lambda: a.queue("plain").messages == 2)
    await a.settled()
    reader = Reader()
    for queue, count in (("orders", 1), ("plain", 2)):
        taken = await a.take(reader, queue, 2)
        assert await rejecting(a, reader, queue, taken, "no such customer") == count

    dead = await a.peek(TRANSACTIONAL_DEAD_LETTERS) + await a.peek(DEAD_LETTERS)
    assert sorted(bodies(dead)) == [b"1", b"express", b"plain"]
    for message in dead:
        rejected = MessageClass.NACK_RECEIVE_REJECTED
        assert parse_user_message(message.packet).properties.message_class == rejected
        assert "no such customer" in (message.reason or "")
    assert a.queue("orders").messages == a.queue("plain").messages == 0
    assert final_acks(remote) == []


@hosted
async def test_dead_letters_and_journal_copies_are_not_acknowledged_and_cannot_be_rejected(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    remote = await dial(a, guid(7))
    await given(remote, a, 1, dead_letter=False)
    reader = Reader()
    await rejecting(a, reader, "orders", await a.take(reader, "orders"))
    dead = await a.take(reader, TRANSACTIONAL_DEAD_LETTERS)

    with pytest.raises(Refusal) as caught:
        await rejecting(a, reader, TRANSACTIONAL_DEAD_LETTERS, dead)
    await a.removing(reader, TRANSACTIONAL_DEAD_LETTERS, dead)
    await a.settled()

    assert caught.value.code == "ended_before"
    assert a.usage.bytes == 0


@hosted
async def test_a_local_source_keeps_its_own_copies(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    reader = Reader()
    await a.send("orders", b"received", journal=True, dead_letter=True)
    await a.receive("orders")
    await a.send("orders", b"rejected", dead_letter=True)
    await rejecting(a, reader, "orders", await a.take(reader, "orders"))
    await a.send("orders", b"over", dead_letter=True, time_to_be_received_s=10)
    a.world.ahead_s = 12
    await hosts.reap(a)

    assert bodies(await a.peek(JOURNAL)) == [b"received"]
    assert bodies(await a.peek(TRANSACTIONAL_DEAD_LETTERS)) == [b"rejected", b"over"]
    assert a.outgoing.queues == []
    # The receipt of a copy is not acknowledged.
    assert await a.receive(JOURNAL) == [b"received"]
    assert a.queue(JOURNAL).messages == 0


@hosted
async def test_an_owed_acknowledgment_is_sent_once_after_a_restart(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("admin")
    ended = packet(
        b"1",
        source=a.id,
        number=7,
        queue="far",
        admin=r"DIRECT=OS:.\private$\admin",
        acknowledge=NA,
    )
    timeout = MessageClass.NACK_REACH_QUEUE_TIMEOUT
    row = Owed(1, timeout, for_others=False, packet=ended)
    await a.storage.batch.run(partial(owed.add, rows=[row]))
    for _ in range(2):
        a = await hosts.restart(a)

    reported = [parse_user_message(each.packet).properties for each in await a.peek("admin")]
    assert [(each.message_class, each.body) for each in reported] == [(timeout, b"1")]
    assert await a.storage.read(owed.list_all) == []


@pytest.mark.parametrize("delivery", [EXPRESS, RECOVERABLE, TRANSACTIONAL])
def test_the_administration_queue_gets_each_requested_acknowledgment(
    tmp_path: Any, delivery: int
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        await a.create("orders", transactional=delivery == TRANSACTIONAL)
        await a.create("admin")
        send = dict(delivery=delivery, admin_queue="admin", dead_letter=False)
        reader = Reader()
        await a.send("orders", b"both", acknowledge=PR | NR, **send)
        await a.send("orders", b"positive", acknowledge=PR, **send)
        await a.send("orders", b"negative", acknowledge=NR, **send)
        await a.send("orders", b"both", acknowledge=PR | NR, **send)
        await a.send("orders", b"late", acknowledge=NR, time_to_be_received_s=10, **send)
        await a.receive("orders", limit=3)
        await rejecting(a, reader, "orders", await a.take(reader, "orders"))
        a.world.ahead_s = 12
        await hosts.reap(a)

        reported = [parse_user_message(each.packet).properties for each in await a.peek("admin")]
        assert Counter((each.message_class, each.body) for each in reported) == {
            (MessageClass.ACK_RECEIVE, b""): 2,
            (MessageClass.NACK_RECEIVE_REJECTED, b"both"): 1,
            (MessageClass.NACK_RECEIVE_TIMEOUT, b"late"): 1,
        }

    scenario(tmp_path)


@pytest.mark.parametrize("delivery", [EXPRESS, RECOVERABLE, TRANSACTIONAL])
def test_a_message_for_a_local_queue_has_arrived_with_its_commit(
    tmp_path: Any, delivery: int
) -> None:
    @hosted
    async def scenario(hosts: Hosts) -> None:
        a = await hosts.start()
        await a.create("orders", transactional=delivery == TRANSACTIONAL)
        await a.create("admin")
        send = dict(delivery=delivery, admin_queue="admin")
        sent = await a.send("orders", b"1", acknowledge=PA, **send)
        await a.send("orders", b"2", acknowledge=NA, **send)

        (reported,) = [parse_user_message(each.packet) for each in await a.peek("admin")]

        assert reported.properties.message_class == MessageClass.ACK_REACH_QUEUE
        assert correlation_text(reported.properties.correlation_id) == sent[0]
        events = await a.message_lookup.why(sent[0], "", ask=False)
        assert [event["kind"] for event in events["events"]] == ["sent", "acknowledged"]

    scenario(tmp_path)


@hosted
async def test_a_resent_message_with_changes_gets_a_negative_final_ack(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    await a.create("corrected", transactional=True)
    remote = await dial(a, guid(7))
    await given(remote, a, 1)
    await a.send("orders", b"ours", dead_letter=True)

    changes = Changes(to="corrected")
    await a.resender.resend(a.queue("orders"), EVERY_MESSAGE, Piece(10), changes)

    await until(lambda: final_acks(remote) == [(MessageClass.NACK_QUEUE_PURGED, 1, 101)])
    assert bodies(await a.peek("corrected")) == [b"1", b"ours"]
    assert a.queue(TRANSACTIONAL_DEAD_LETTERS).messages == 0


@hosted
async def test_both_the_final_ack_and_the_acknowledgment_of_a_message_are_sent(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    remote = await dial(a, guid(7))
    await given(remote, a, 1, admin=ADMIN, acknowledge=PR)

    await a.receive("orders")

    await until(lambda: final_acks(remote) and acknowledgments(remote))
    (reported,) = acknowledgments(remote)
    assert reported.message.properties.message_class == MessageClass.ACK_RECEIVE
    assert reported.message.properties.correlation_id == remote.guid + (101).to_bytes(4, "little")
    assert reported.recoverable_number


@hosted
async def test_an_administration_queue_may_be_at_a_computer_with_a_name_beyond_ascii(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    remote = await dial(a, guid(7))
    admin = "DIRECT=OS:büro-ñ\\private$\\Quittungen-é"
    await given(remote, a, 1, admin=admin, acknowledge=PR)

    await a.receive("orders")

    await until(lambda: acknowledgments(remote))
    destination = acknowledgments(remote)[0].message.user.destination_queue
    assert isinstance(destination, DirectQueueName)
    assert str(parse_wire_name(destination.name)) == admin


@hosted
async def test_too_many_removals_at_once_are_refused_without_doubled_message_numbers(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    remote = await dial(a, guid(7))
    await given(remote, a, 1)
    reader = Reader()
    (taken,) = await a.take(reader, "orders")
    queue = a.queue("orders")
    a.message_receiver.check_numbers(reader, queue, [taken.lookup_id])

    with pytest.raises(Refusal) as caught:
        a.message_receiver.check_numbers(reader, queue, [taken.lookup_id] * 200_000)

    assert caught.value.code == "busy"
