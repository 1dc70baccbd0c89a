"""Ids of queues: there are few, and they are reused."""

from __future__ import annotations

import asyncio

import pytest

from qmd.control_protocol.messages import Choice, Piece
from qmd.errors import Refusal
from qmd.queues.limits import Limits
from storage.tables import counters
from storage.tables.keys import QUEUE_ID_MAX
from tests.integration.managers import Host, Hosts, hosted, until
from tests.integration.remote import dial, packet

SOURCE = bytes([7]) * 16
FIRST = 1_700_000_000 << 32 | 1


async def refused(host: Host, name: str) -> str:
    with pytest.raises(Refusal) as caught:
        await host.create(name)
    return str(caught.value.code)


@hosted
async def test_at_the_limit_a_new_queue_is_refused_without_a_disk_access(hosts: Hosts) -> None:
    a = await hosts.start(limits=Limits(queues=3))
    for name in "abc":
        await a.create(name)
    batch = a.storage.batch

    assert await refused(a, "d") == "too_many_queues"
    assert await refused(a, "c") == "queue_exists"
    with pytest.raises(Refusal, match="there are 3 queues"):
        await a.administration.change(a.queue("a"), journal=True)
    assert a.storage.batch is batch
    assert batch.load.is_empty

    await a.queue_deletion.delete(a.queue("b"))
    await a.create("d")
    a = await hosts.restart(a, limits=Limits(queues=3))
    assert await refused(a, "e") == "too_many_queues"


@hosted
async def test_queues_that_are_being_created_count_towards_the_limit(hosts: Hosts) -> None:
    a = await hosts.start(limits=Limits(queues=4))

    results = await asyncio.gather(*(a.create(f"q{n}") for n in range(10)), return_exceptions=True)

    assert sum(isinstance(each, Refusal) for each in results) == 6
    assert sum(not isinstance(each, BaseException) for each in results) == 4
    await a.send("q0", b"x")
    with pytest.raises(Refusal, match="there are 4 queues"):
        await a.mover.move(a.queue("q0"), "q0;later", Choice(), Piece())


@hosted
async def test_temporary_queues_with_sequences_use_up_no_ids(hosts: Hosts) -> None:
    """The queues receive transactional messages, and the queue manager is restarted."""
    a = await hosts.start()
    for round_ in range(3):
        # The ids are nearly at their maximum: the next ones are those of earlier rounds.
        await a.storage.batch.run(
            lambda db: counters.set_following(db, "queue_id", QUEUE_ID_MAX - 4)
        )
        ids = []
        for number in range(10):
            name = f"temporary-{round_}-{number}"
            queue = await a.create(name, transactional=True)
            ids.append(queue.id)
            remote = await dial(a, SOURCE)
            message = len(ids) + 100 * round_
            remote.send(
                packet(b"x", source=SOURCE, number=message, queue=name, position=(FIRST, 1, 0))
            )
            await until(lambda: queue.messages == 1)  # noqa: B023
            remote.close()
            await a.queue_deletion.delete(queue)
        assert ids == [*range(QUEUE_ID_MAX - 4, QUEUE_ID_MAX + 1), *range(16, 21)]
        a = await hosts.restart(a)

    # The sequences are still known: a queue of the same name continues at the last number.
    again = await a.create("temporary-0-0", transactional=True)
    other = await a.create("another", transactional=True)
    remote = await dial(a, SOURCE)
    for number, name in ((1, "temporary-0-0"), (999, "another")):
        packets = packet(b"x", source=SOURCE, number=number, queue=name, position=(FIRST, 1, 0))
        remote.send(packets)
    await until(lambda: other.messages == 1)
    await a.settled()
    assert again.messages == 0
