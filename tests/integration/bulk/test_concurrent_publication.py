"""Publications beside other work: remote sequences, sends, readers, and a discarded stage."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise

from qmd.bulk.prepared_publication import ROWS_A_TURN
from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import TRANSACTIONAL
from qmd.queues.local_queue import Reader
from tests.integration.bulk.refusals import refused
from tests.integration.bulk.stages import contents, publish, sent_events, stage
from tests.integration.disk import slow_read
from tests.integration.managers import Hosts, bodies, hosted, until
from tests.integration.remote import guid, listening


@hosted
async def test_discarding_a_stage_during_its_publication_refuses_the_publication(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders")
    attempts = [await stage(a, 0, part, "a", b"one", b"two") for part in range(20)]
    work = asyncio.ensure_future(a.publisher.publish("etl", 0, attempts))
    finish = await slow_read(a, of="FROM stage")
    await until(lambda: a.publisher._publishing, "the publication")
    discarded = await a.staging.discard("etl", 0, 19, "", 0)
    finish.set()
    assert discarded["rows"] == 2
    assert await refused(work) == "stage_incomplete"
    assert await a.receive("orders") == []


@hosted
async def test_rows_that_are_published_to_a_remote_queue_are_one_sequence(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(guid(1)) as listener:
        name = listener.name("orders")
        rows = [b"%d" % number for number in range(20)]
        attempt = await stage(a, 0, 0, "a", *rows, queue=name, delivery=TRANSACTIONAL)
        assert await publish(a, 0, attempt) == (True, 20)
        remote = await listener.session()
        await until(lambda: len(remote.ordinary) == 20, "all of them")
        assert remote.ordinary == rows
        numbers = [each.message.transaction.sequence_number for each in remote.messages]  # type: ignore[union-attr]
        assert numbers == list(range(1, 21))


@hosted
async def test_thousands_of_rows_for_a_remote_queue_share_one_sequence_with_concurrent_sends(
    hosts: Hosts,
) -> None:
    """There are more messages than memory keeps ready, and all survive a restart."""
    a = await hosts.start()
    async with listening(guid(1)) as listener:
        name = listener.name("orders")
        rows = [b"%d" % number for number in range(2500)]
        attempt = await stage(a, 0, 0, "a", *rows, queue=name, delivery=TRANSACTIONAL)
        publishing = asyncio.ensure_future(publish(a, 0, attempt))
        sent: list[bytes] = []
        while not publishing.done() or len(sent) < 5:
            sent.append(b"sent %d" % len(sent))
            await a.send(name, sent[-1], delivery=TRANSACTIONAL)
        assert await publishing == (True, 2500)
        last = await stage(a, 1, 0, "a", *[b"last"] * 600, queue=name, delivery=TRANSACTIONAL)
        assert await publish(a, 1, last) == (True, 600)
        rows += [b"last"] * 600
        queue = a.sending_to(name)
        assert queue.messages == queue.sequence.outstanding == len(rows) + len(sent)
        before = len(listener.remotes)
        a = await hosts.restart(a)
        sent.append(b"sent after a restart")
        await a.send(name, sent[-1], delivery=TRANSACTIONAL)

        await until(lambda: len(listener.remotes) > before, "another session")
        remote = await listener.session()
        # The folder may be a backup: what is sent since the start waits for an order ack.
        await until(lambda: len(remote.ordinary) == len(rows) + len(sent) - 1, "those before it")
        assert sent[-1] not in remote.ordinary
        remote.order_ack(remote.messages[-1])
        await until(lambda: len(remote.ordinary) == len(rows) + len(sent), "all of them")

        assert [each for each in remote.ordinary if each.startswith(b"sent")] == sent
        assert [each for each in remote.ordinary if not each.startswith(b"sent")] == rows
        headers = [each.message.transaction for each in remote.messages]
        assert [each.sequence_number for each in headers if each] == list(
            range(1, len(remote.ordinary) + 1)
        )
        assert len({each.sequence_id for each in headers if each}) == 1
        assert all(each.previous_number == each.sequence_number - 1 for each in headers if each)


@hosted
async def test_rows_for_local_and_remote_queues_are_published_in_one_transaction(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    async with listening(guid(1)) as listener:
        name = listener.name("orders")
        remote = None
        for epoch, count in enumerate((3, 700)):  # in memory, and on disk
            parts = [
                await stage(a, epoch, 0, "a", *[b"r"] * count, queue=name, priority=5),
                await stage(a, epoch, 1, "a", *[b"t"] * count, queue=name, delivery=TRANSACTIONAL),
                await stage(a, epoch, 2, "a", *[b"h"] * count),
            ]
            assert await publish(a, epoch, *parts) == (True, 3 * count)
            remote = remote or await listener.session()
        await until(lambda: len(remote.ordinary) == 2 * 703, "all of them")
        assert Counter(remote.ordinary) == {b"r": 703, b"t": 703}
        assert await contents(a) == [b"h"] * 703
    sent = [event for event in await sent_events(a) if event.queue == name]
    for delivery, positions in (("recoverable", 0), ("transactional", 703)):
        reported = [event for event in sent if event.delivery == delivery]
        assert sum(len(event.numbers) for event in reported) == 703
        assert sum(len(event.positions) for event in reported) == positions


@hosted
async def test_a_send_during_the_publication_to_a_remote_queue_is_delivered(
    hosts: Hosts,
) -> None:
    a = await hosts.start()
    async with listening(guid(1)) as listener:
        name = listener.name("orders")
        attempt = await stage(a, 0, 0, "a", *[b"r"] * 3000, queue=name, delivery=TRANSACTIONAL)
        left = [a.services.ids._messages.left]
        publishing = asyncio.ensure_future(publish(a, 0, attempt))
        while not publishing.done():
            await asyncio.sleep(0)  # a turn of the loop, in which others are served
            left.append(a.services.ids._messages.left)

        assert await publishing == (True, 3000)
        assert max(before - after for before, after in pairwise(left)) <= ROWS_A_TURN < 3000
        await listener.session()


@hosted
async def test_thousands_of_rows_are_ready_at_once_and_in_order_for_a_waiting_reader(
    hosts: Hosts,
) -> None:
    """There are more messages than memory keeps ready: the queue reads them from the disk."""
    a = await hosts.start()
    await a.create("orders", transactional=True)
    rows = [b"%d" % number for number in range(3000)]
    waiting = asyncio.ensure_future(a.take(Reader(), "orders", 1, wait_s=frames.FOREVER))
    await asyncio.sleep(0)

    assert await publish(a, 0, await stage(a, 0, 0, "a", *rows)) == (True, 3000)

    found = bodies(await waiting)
    while len(found) < 3000:
        found += await a.receive("orders")
    assert found == rows
    assert a.queue("orders").messages == 1  # the one that is taken


@hosted
async def test_a_send_during_a_publication_is_not_skipped_by_readers(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    attempt = await stage(a, 0, 0, "a", *[b"published"] * 3000)
    left = [a.services.ids._messages.left]
    publishing = asyncio.ensure_future(publish(a, 0, attempt))
    while not publishing.done():
        await asyncio.sleep(0)  # a turn of the loop, in which others are served
        left.append(a.services.ids._messages.left)

    assert await publishing == (True, 3000)
    assert max(before - after for before, after in pairwise(left)) <= ROWS_A_TURN < 3000


@hosted
async def test_messages_sent_during_a_publication_are_in_the_queue_as_well(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    attempt = await stage(a, 0, 0, "a", *[b"published"] * 3000)
    publishing = asyncio.ensure_future(publish(a, 0, attempt))
    sent = 0
    while not publishing.done() or sent < 5:
        await a.send("orders", b"sent")
        sent += 1

    found: list[bytes] = []
    while some := await a.receive("orders"):
        found += some
    assert Counter(found) == {b"published": 3000, b"sent": sent}
    assert a.queue("orders").messages == 0
