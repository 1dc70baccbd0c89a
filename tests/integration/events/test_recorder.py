"""The recorder: the events of messages, their order, and their cost.

Every test of queue managers checks at its end that the log agrees with the tables.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from contextlib import closing

from protocol.identifiers import correlation_bytes, guid_text, message_id_text
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, TRANSACTIONAL, NewMessage
from qmd.events import recorder
from qmd.events.header import EventHeader, Kind
from qmd.history.event_query import flat
from qmd.queues.local_queue import Reader
from storage.tables import event_search, events
from storage.tables.events import Event
from tests.integration.disk import held_disk
from tests.integration.managers import Host, Hosts, hosted, until
from tests.integration.remote import dial, guid, listening, packet
from tests.ledger import disagreements


async def reported(host: Host) -> list[Event]:
    """Return all events, the oldest first."""
    await host.settled()
    blocks = await host.storage.read(lambda db: events.page(db, 0, 10_000))
    return [event for block in blocks for event in block.events]


async def newest_block(host: Host) -> int:
    """Return the id of the newest block of events."""
    blocks = await host.storage.read(lambda db: events.page(db, 0, 10_000))
    return max(block.id for block in blocks)


async def life(host: Host, message_id: str) -> list[str]:
    """Return the kinds of the events of one of the host's messages."""
    await host.settled()
    number = int(message_id.rpartition("\\")[2])
    return [
        event.kind
        for event in await host.storage.read(lambda db: events.of_message(db, host.id, number))
    ]


@hosted
async def test_an_event_is_durable_with_its_batch(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"x", delivery=RECOVERABLE)
    (message,) = await a.peek("orders")
    a.recorder.record(
        EventHeader(Kind.REPORTED, queue="here", to_queue="there"),
        [message.packet],
        places=[message.lookup_id],
    )

    (event,) = [event for event in await reported(a) if event.kind == "reported"]
    assert (event.source, event.queue, event.to_queue) == (a.id, "here", "there")
    assert event.places == [message.lookup_id]


@hosted
async def test_messages_with_the_same_outcome_in_one_batch_share_an_event(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    with held_disk(a):  # a commit that waits: all messages come before the next one
        first = asyncio.ensure_future(a.storage.batch.run(lambda db: None))
        await asyncio.sleep(0)
        sends = [asyncio.create_task(a.send("orders", b"x")) for _ in range(20)]
        await until(lambda: len(a.storage.batch._messages) == 20, "rows of all messages")
    await asyncio.gather(first, *sends)
    await a.receive("orders")

    (sent,) = [event for event in await reported(a) if event.kind == "sent"]
    (received,) = [event for event in await reported(a) if event.kind == "received"]
    assert len(sent.numbers) == len(sent.places) == len(sent.sizes) == 20
    assert (sent.numbers, sent.places) == (received.numbers, received.places)
    assert sent.bytes == sum(sent.sizes)


@hosted
async def test_the_events_of_a_message_are_in_order_on_both_sides(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("orders", transactional=True)
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    (sent,) = await a.send(destination, b"x", delivery=TRANSACTIONAL)
    await until(lambda: not a.sending_to(destination).messages, "its release")
    await b.receive("orders")

    assert await life(a, sent) == ["sent", "transmitted", "order_acknowledged"]
    number = int(sent.rpartition("\\")[2])
    there = [each for each in await reported(b) if number in each.numbers and each.source == a.id]
    assert [each.kind for each in there] == ["accepted", "received"]
    assert there[0].peer == guid_text(a.id)
    assert (there[0].positions, there[0].delivery) == ([1], "transactional")


@hosted
async def test_messages_that_come_and_go_in_one_batch_have_events_in_order(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    sent = await a.send("orders", b"x", delivery=EXPRESS)
    await a.settled()
    with held_disk(a):
        first = a.storage.batch.run(lambda db: None)
        await asyncio.sleep(0)
        reader = Reader()
        a.removing(reader, "orders", await a.take(reader, "orders"))
        for _ in range(3):  # express messages: sent and received before the next commit
            sent += await a.send("orders", b"x", delivery=EXPRESS)
            reader = Reader()
            taken = await a.take(reader, "orders")
            a.give_back(reader, "orders", taken)
            taken = await a.take(reader, "orders")
            a.removing(reader, "orders", taken)
        assert not first.done()

    assert await life(a, sent[0]) == ["sent", "received"]
    for message_id in sent[1:]:
        assert await life(a, message_id) == ["sent", "aborted", "received"]


@hosted
async def test_the_event_of_a_transmission_waits_for_another_commit_or_a_second(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    async with listening(guid(7)) as there:
        (sent,) = await a.send(there.name("q"), b"x", delivery=RECOVERABLE)
        remote = await there.session()
        await until(lambda: remote.messages, "the message")
        await asyncio.sleep(0)

        batch = a.storage.batch
        assert batch.mentions
        assert batch.load.is_empty, "it caused a commit"
        await until(lambda: a.storage.batch is not batch, "the commit after a second")
        assert await life(a, sent) == ["sent", "transmitted"]
        remote.acknowledge()
        await until(lambda: not a.sending_to(there.name("q")).messages, "its release")
        a.outgoing_release.release()
    assert await life(a, sent) == ["sent", "transmitted", "session_acknowledged"]


@hosted
async def test_the_event_of_a_retransmission_has_a_reason(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(guid(7)) as there:
        (sent,) = await a.send(there.name("q"), b"x", delivery=TRANSACTIONAL)
        remote = await there.session()
        await until(lambda: remote.messages, "the message")
        a.outgoing.kick(a.sending_to(there.name("q")))
        await until(lambda: len(remote.messages) == 2, "the message again")

        assert await life(a, sent) == ["sent", "transmitted", "retransmitted"]
        again = (await reported(a))[-1]
        assert again.reason == "an operator asked for it"
        assert again.positions == [1]


@hosted
async def test_a_flood_of_duplicates_makes_a_bounded_number_of_events(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    remote = await dial(a, guid(9))
    message = packet(b"x", source=guid(9), number=1)
    count = 2 * recorder.FLOOD_MESSAGES + 50
    for _ in range(0, count, 50):
        remote.send(*[message] * 50)
        await until(lambda: remote.session.room() >= 50, "room")
    await until(lambda: a.incoming.duplicate_count == count - 1, "all of them")

    listed = [event for event in await reported(a) if event.kind == "duplicate"]
    seconds = 1 + max(event.at_ms for event in listed) // 1000 - listed[0].at_ms // 1000
    assert sum(len(event.numbers) for event in listed) <= recorder.FLOOD_MESSAGES * (seconds + 1)
    a.recorder._floods["duplicate"].until_s = 0  # as if a second had passed
    left_out = a.recorder._floods["duplicate"].left_out
    remote.send(message)
    await until(lambda: a.incoming.duplicate_count == count, "the last one")
    last = (await reported(a))[-1]
    assert last.reason == (f"({left_out} more before this one are not listed)" if left_out else "")


@hosted
async def test_early_and_duplicate_messages_are_recorded_with_their_queue(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    remote = await dial(a, guid(9))
    first, second, third = (
        packet(b"x", source=guid(9), number=number, position=(1 << 32, number, number - 1))
        for number in (1, 2, 3)
    )
    remote.send(first, third, second, first)
    await until(lambda: a.incoming.rejected_count == 2, "the rejections")

    found = [(each.kind, each.numbers, each.queue) for each in await reported(a) if each.queue]
    assert {queue for _, _, queue in found} == {"private$\\orders"}
    single = [(kind, number) for kind, numbers, _ in found for number in numbers]
    assert sorted(single) == [
        ("accepted", 1),
        ("accepted", 2),
        ("duplicate", 1),
        ("out_of_order", 3),
    ]


@hosted
async def test_a_refusal_by_the_destination_and_its_dead_letter_are_recorded(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(guid(7)) as there:
        (sent,) = await a.send(there.name("q"), b"x", delivery=TRANSACTIONAL)
        remote = await there.session()
        await until(lambda: remote.messages, "the message")
        remote.final_ack(remote.messages[0], MessageClass.NACK_BAD_DESTINATION_QUEUE)
        await until(lambda: not a.sending_to(there.name("q")).messages, "its end")

    assert await life(a, sent) == ["sent", "transmitted", "final_ack_received", "dead_lettered"]
    dead = (await reported(a))[-1]
    assert (dead.to_queue, dead.message_class) == (
        "system$;deadxact",
        MessageClass.NACK_BAD_DESTINATION_QUEUE,
    )
    (letter,) = await a.peek("DIRECT=OS:.\\SYSTEM$;DEADXACT")
    assert dead.places == [letter.lookup_id]
    assert dead.reason == letter.reason


@hosted
async def test_express_messages_that_a_stop_loses_are_named(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    elsewhere = "DIRECT=TCP:127.0.0.1:1\\private$\\x"
    (here,) = await a.send("orders", b"x", delivery=EXPRESS)
    (there,) = await a.send(elsewhere, b"x", delivery=EXPRESS)
    (kept,) = await a.send("orders", b"x", delivery=RECOVERABLE)
    a = await hosts.restart(a)

    assert await life(a, here) == ["sent", "lost"]
    assert await life(a, there) == ["sent", "lost"]
    assert await life(a, kept) == ["sent"]
    started = [event for event in await reported(a) if event.kind == "started"]
    assert [event.reason for event in started] == ["after a stop"] * 2
    assert started[1].bytes == a.queue("orders").bytes


@hosted
async def test_a_damaged_message_is_identified_by_the_log_and_not_by_its_damaged_packet(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    (sent,) = await a.send("orders", b"x", delivery=RECOVERABLE)
    (out,) = await a.send("DIRECT=TCP:127.0.0.1:1\\private$\\x", b"x", delivery=TRANSACTIONAL)
    await hosts.stop(a)
    with closing(sqlite3.connect(a.folder / "data" / "queues.db")) as db, db:
        for table in ("message", "outgoing"):
            db.execute(f"UPDATE {table} SET packet = zeroblob(length(packet))")
    a = await hosts.start("a")
    assert await a.receive("orders") == []
    a.outgoing.refill(a.sending_to("DIRECT=TCP:127.0.0.1:1\\private$\\x"))
    await until(lambda: not a.sending_to("DIRECT=TCP:127.0.0.1:1\\private$\\x").messages)

    assert await life(a, sent) == ["sent", "damaged"]
    assert await life(a, out) == ["sent", "damaged"]


@hosted
async def test_no_events_are_stored_if_they_are_disabled(hosts: Hosts) -> None:
    a, b = await hosts.start("a", events={"enabled": False}), await hosts.start("b")
    await b.create("orders", transactional=True)
    await a.create("mine")
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    await a.send(destination, b"x", delivery=TRANSACTIONAL)
    await a.send("mine", b"x", b"y")
    await until(lambda: not a.sending_to(destination).messages, "its release")
    await a.receive("mine", 1)
    await a.purger.purge(a.queue("mine"))

    assert await reported(a) == []
    assert [event.kind for event in await reported(b)] == ["started", "met", "accepted"]


@hosted
async def test_the_log_is_kept_by_size_and_age(hosts: Hosts) -> None:
    a = await hosts.start(events={"size_bytes": 20_000, "age_s": 3600.0})
    await a.create("orders")
    for _ in range(300):
        await a.send("orders", b"x")
    last = await newest_block(a)
    await a.event_log_limits.forget_old()

    assert 15_000 < await a.storage.read(events.size_bytes) <= 20_000
    assert await newest_block(a) == last
    a.world.ahead_s = 3601.0
    await a.event_log_limits.forget_old()
    assert [block.id for block in await a.storage.read(lambda db: events.page(db, 0, 9))] == [last]
    await a.send("orders", b"x")
    assert await newest_block(a) == last + 1
    a.world.ahead_s = 0.0


@hosted
async def test_a_lack_of_disk_space_deletes_the_oldest_events(hosts: Hosts) -> None:
    a = await hosts.start()
    a.event_log_limits.short_bytes = 1000
    await a.create("orders")
    for _ in range(200):
        await a.send("orders", b"x")
    before = await a.storage.read(events.size_bytes)
    await a.event_log_limits.make_room()

    after = await a.storage.read(events.size_bytes)
    assert before * 3 // 4 < after <= before * 7 // 8


@hosted
async def test_a_message_received_during_the_stop_is_not_recorded_as_lost(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("news")
    await a.send("news", b"1", b"2", delivery=EXPRESS)
    reader = Reader()
    taken = await a.take(reader, "news")

    with held_disk(a):
        removed = a.removing(reader, "news", taken)
        await until(lambda: a.storage.pressure)
        await asyncio.sleep(0)
        stopping = asyncio.create_task(hosts.stop(a))
        await asyncio.sleep(0.1)
    await stopping
    assert await removed == 1

    a = await hosts.start()
    assert await a.storage.read(disagreements) == []
    blocks = await a.storage.read(lambda db: events.page(db, 0, 100))
    lost = [event for block in blocks for event in block.events if event.kind == "lost"]
    assert [len(event.numbers) for event in lost] == [1], "the other one"


@hosted
async def test_a_message_that_ends_during_the_stop_is_not_also_recorded_as_lost(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("news")
    await a.send("news", b"1", b"2", delivery=EXPRESS)
    queue = a.queue("news")
    a.dead_letters.end_unreceived(queue, [min(queue.express)], MessageClass.NACK_RECEIVE_TIMEOUT)
    await hosts.stop(a)

    a = await hosts.start()
    assert await a.storage.read(disagreements) == []
    blocks = await a.storage.read(lambda db: events.page(db, 0, 100))
    ends = Counter[str]()
    for block in blocks:
        for event in block.events:
            ends[event.kind] += len(event.numbers) if event.kind in ("lost", "expired") else 0
    assert ends["lost"] == ends["expired"] == 1


@hosted
async def test_the_event_of_a_message_has_its_correlation_id(hosts: Hosts) -> None:
    a, b = await hosts.start("a"), await hosts.start("b")
    await b.create("answers")
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\answers"
    question = correlation_bytes(b.id, 7)
    with_and_without = [
        NewMessage(destination, b"x", delivery=RECOVERABLE, correlation_id=correlation)
        for correlation in (b"", question, b"")
    ]
    await a.handed_over(with_and_without)
    await until(lambda: not a.sending_to(destination).messages, "its release")

    for host, kind in ((a, "sent"), (b, "accepted")):
        await host.settled()
        page = await host.storage.read(
            lambda db: event_search.last(db, events_max=99, blocks_max=99, is_wanted=lambda _: True)
        )
        of_kind = [flat(host.services, each) for each in page.found if each.event.kind == kind]
        assert [each["correlation_id"] for each in of_kind] == ["", message_id_text(b.id, 7), ""]


@hosted
async def test_the_event_of_a_dead_letter_has_its_label(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", b"x", delivery=RECOVERABLE, label="order 7", dead_letter=True)
    await a.purger.purge(a.queue("orders"))

    ended = [event for event in await reported(a) if event.kind in ("dead_lettered", "discarded")]
    assert [event.labels for event in ended] == [["order 7"]]
