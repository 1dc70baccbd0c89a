"""Journals of queues: a copy of each received message, in the commit that removes it."""

from __future__ import annotations

import pytest

from qmd.control_protocol.messages import EXPRESS, Choice, Piece
from qmd.errors import Refusal
from qmd.events.header import Kind
from qmd.queues.local_queue import Reader
from storage.tables import events, queues
from tests.integration.managers import Host, Hosts, bodies, hosted


async def journaled(host: Host, name: str = "orders", **named: int | None) -> None:
    await host.administration.create(
        name, transactional=False, label="", journal=True, quota_bytes=None, **named
    )


@hosted
async def test_a_received_message_is_copied_to_the_journal(hosts: Hosts) -> None:
    a = await hosts.start()
    await journaled(a)
    await a.send("orders", b"1", b"2")
    await a.send("orders", b"3", delivery=EXPRESS)

    assert await a.receive("orders") == [b"1", b"2", b"3"]

    assert a.queue("orders").messages == 0
    assert bodies(await a.peek("ORDERS;Journal")) == [b"1", b"2", b"3"]
    a = await hosts.restart(a)
    assert bodies(await a.peek("orders;journal")) == [b"1", b"2", b"3"]


@hosted
async def test_messages_that_are_given_back_purged_or_moved_are_not_journaled(hosts: Hosts) -> None:
    a = await hosts.start()
    await journaled(a)
    await a.send("orders", b"1", b"2", b"3")
    reader = Reader()
    taken = await a.take(reader, "orders")
    a.give_back(reader, "orders", taken)

    await a.mover.move(a.queue("orders"), "orders;retry", Choice(), Piece(1))
    await a.purger.purge(a.queue("orders"))

    assert a.queue("orders;journal").messages == 0


@hosted
async def test_a_rejected_message_is_not_journaled(hosts: Hosts) -> None:
    a = await hosts.start()
    await journaled(a)
    await a.send("orders", b"1")
    reader = Reader()
    (taken,) = await a.take(reader, "orders")

    a.message_receiver.reject(
        reader, a.queue("orders"), [taken.lookup_id], "", b"", lambda count: None
    )
    await a.settled()

    assert a.queue("orders;journal").messages == 0


@hosted
async def test_a_message_received_from_a_subqueue_goes_to_the_journal_of_its_queue(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await journaled(a)
    await a.send("orders", b"1")
    await a.mover.move(a.queue("orders"), "orders;retry", Choice(), Piece())

    assert await a.receive("orders;retry") == [b"1"]

    assert bodies(await a.peek("orders;journal")) == [b"1"]


@hosted
async def test_a_full_journal_keeps_no_copy_and_does_not_block_receiving(hosts: Hosts) -> None:
    a = await hosts.start()
    await journaled(a, journal_quota_bytes=700)
    await a.send("orders", bytes(300), bytes(300), bytes(10))

    assert len(await a.receive("orders")) == 3

    assert [len(body) for body in bodies(await a.peek("orders;journal"))] == [300, 10]
    blocks = await a.storage.read(lambda db: events.page(db, 0, 100))
    reported = [event for block in blocks for event in block.events]
    assert [len(event.numbers) for event in reported if event.kind == Kind.JOURNALED] == [2]
    assert [len(event.numbers) for event in reported if event.kind == Kind.JOURNAL_FULL] == [1]


@hosted
async def test_the_journal_has_the_quota_of_its_queue_also_after_a_restart(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await journaled(a, journal_quota_bytes=700)
    await a.administration.change(a.queue("orders"), journal_quota_bytes=500)
    assert a.queue("orders;journal").quota_bytes == 500

    a = await hosts.restart(a)

    assert a.queue("orders;journal").quota_bytes == 500
    with pytest.raises(Refusal, match="no properties of its own"):
        await a.administration.change(a.queue("orders;journal"), quota_bytes=5)


@hosted
async def test_a_journal_is_created_when_journaling_is_turned_on(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    with pytest.raises(Refusal, match="journaling is off"):
        a.queue("orders;journal")
    await a.administration.change(a.queue("orders"), journal=True)
    await a.send("orders", b"1", b"2")
    await a.receive("orders", 1)

    await a.administration.change(a.queue("orders"), journal=False)
    await a.receive("orders", 1)

    assert bodies(await a.peek("orders;journal")) == [b"1"]


@hosted
async def test_a_data_folder_from_before_journals_gets_journals(hosts: Hosts) -> None:
    a = await hosts.start()
    await journaled(a)
    await a.storage.batch.run(lambda db: queues.delete(db, a.queue("orders;journal").id))

    a = await hosts.restart(a)

    await a.send("orders", b"1")
    await a.receive("orders")
    assert bodies(await a.peek("orders;journal")) == [b"1"]


@hosted
async def test_a_journal_can_be_purged_and_read_but_not_sent_to_or_deleted(hosts: Hosts) -> None:
    a = await hosts.start()
    await journaled(a)
    await a.send("orders", b"1", b"2")
    await a.receive("orders")

    with pytest.raises(Refusal) as refused:
        await a.send("orders;journal", b"3")
    assert refused.value.code == "queue_read_only"
    with pytest.raises(Refusal, match="cannot be deleted"):
        await a.queue_deletion.delete(a.queue("orders;journal"))
    assert await a.receive("orders;journal", 1) == [b"1"]
    assert (await a.purger.purge(a.queue("orders;journal"))).messages == 1
    assert (await a.queue_deletion.delete(a.queue("orders"))).messages == 0


@hosted
async def test_a_journal_copy_does_not_expire_until_it_is_moved_back(hosts: Hosts) -> None:
    a = await hosts.start()
    await journaled(a)
    await a.send("orders", b"1", time_to_be_received_s=60)
    await a.receive("orders")
    a.world.ahead_s = 100
    await hosts.reap(a)
    assert bodies(await a.peek("orders;journal")) == [b"1"]

    await a.mover.move(a.queue("orders;journal"), "orders", Choice(), Piece())

    await hosts.reap(a)
    assert await a.receive("orders") == [b"1"]
