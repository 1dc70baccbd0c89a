"""The agreement of memory, disk and event log of a queue manager."""

from __future__ import annotations

import sqlite3
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from qmd.events.header import identity_of
from qmd.message.shared_packet import Packet, head_of
from storage.tables import awaiting
from storage.tables.keys import lookup_id_of, queue_id_of
from tests.ledger import Message, disagreements
from tests.stored_packets import memory_bytes, unshared_parts

if TYPE_CHECKING:
    from tests.integration.managers import Host


async def check_agreement(host: Host) -> None:
    """Assert that memory, disk and the log of events agree about every message.

    No operation may be outstanding.
    """
    host.outgoing_release.release()  # instead of waiting for its timer
    await host.settled()
    failed = host.services.lifecycle.failed
    assert not failed.done(), failed.exception()
    state = await host.storage.read(_stored)
    express_packets: list[Packet] = []
    total = 0
    for queue in host.queues.by_key.values():
        express = [len(each.packet) for each in queue.express.values()]
        count, size = state.messages.get(queue.id, (0, 0))
        assert (queue.messages, queue.own_bytes) == (
            count + len(express),
            size + sum(express),
        ), queue.name
        express_packets += [each.packet for each in queue.express.values()]
        total += queue.own_bytes
    for sender in host.outgoing.queues:
        express = [len(packet) for packet, _ in sender.express.values()]
        count, size = state.outgoing.get(sender.id, (0, 0))
        assert (sender.messages, sender.bytes) == (count + len(express), size + sum(express)), (
            sender.destination
        )
        express_packets += [packet for packet, _ in sender.express.values()]
        total += sender.bytes
        waiting = state.awaiting.get(sender.id, (0, 0))
        assert (sender.awaiting.messages, sender.awaiting.bytes) == waiting, sender.destination
        total += sender.awaiting.bytes
    total += state.staged
    assert host.delayed.totals == state.delayed
    total += state.delayed[1]
    assert host.stage_store.bytes == state.staged
    assert host.usage.bytes == total
    assert host.usage.express_bytes == memory_bytes(express_packets)
    for queue in host.queues.by_key.values():
        reserved = state.reserved.get(queue.id, Counter())
        held = {each: queue.reserved.holders(each) for each in queue.reserved}
        assert held == reserved, queue.name
        assert queue.taken.keys().isdisjoint(held), queue.name
    in_memory: set[tuple[str, int | Message]] = {
        (queue.name, lookup_id)
        for queue in host.queues.by_key.values()
        for lookup_id in queue.express
    }
    for sender in host.outgoing.queues:
        for packet, _ in sender.express.values():
            in_memory.add((sender.destination, Message(*identity_of(head_of(packet)))))
    problems = await host.storage.read(partial(disagreements, in_memory=in_memory))
    assert not problems, "\n".join(problems)


class _Stored:
    """The stored messages and bytes of packets by queue."""

    def __init__(self) -> None:
        self.messages: dict[int, tuple[int, int]] = {}
        self.outgoing: dict[int, tuple[int, int]] = {}
        self.awaiting: dict[int, tuple[int, int]] = {}
        self.reserved: dict[int, Counter[int]] = {}  # queue id -> lookup id -> number of readers
        self.staged = 0
        self.delayed = 0, 0


def _stored(db: sqlite3.Connection) -> _Stored:
    stored = _Stored()
    for table, totals in (("message", stored.messages), ("outgoing", stored.outgoing)):
        for key, size in db.execute(f"SELECT key, length(packet) + part_bytes FROM {table}"):
            count, before = totals.get(queue_id_of(key), (0, 0))
            totals[queue_id_of(key)] = count + 1, before + size
    stored.awaiting.update(awaiting.totals_by_queue(db))
    for last, messages in db.execute("SELECT key, messages FROM reservation"):
        of_queue = stored.reserved.setdefault(queue_id_of(last), Counter())
        for key in range(last - messages + 1, last + 1):
            of_queue[lookup_id_of(key)] += 1
    (stored.staged,) = db.execute("SELECT coalesce(sum(length(data)), 0) FROM stage").fetchone()
    (stored.delayed,) = db.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM delayed")
    assert not unshared_parts(db), "parts that no message needs"
    return stored
