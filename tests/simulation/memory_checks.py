"""Checks of the memory of a running queue manager: its counters, windows and waiting readers.

The counters must agree with each other whenever the queue manager does nothing, and with its
database whenever nothing waits for the disk.  Each check yields a sentence for each difference.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from protocol import ORDER_QUEUE_NUMBER
from protocol.names.format_name import PrivateName
from qmd.core.ready_window import ReadyWindow
from qmd.queues.outgoing_names import parse_queue_name
from qmd.queues.transmission import TRANSACTIONAL_FIRST
from storage.tables import message_id_history as history
from tests.simulation.message_records import Found, Totals
from tests.stored_packets import memory_bytes

if TYPE_CHECKING:
    from qmd.assembly.components import Assembly
    from qmd.message.shared_packet import Packet
    from qmd.queues.outgoing_queue import OutgoingQueue

_LOOKUP_BITS = 48
_LATEST = 3
_PASSED_BACK_BYTES = 20_000


def check_sums(name: str, manager: Assembly) -> Iterator[str]:
    """Compare the totals with the sums of the queues."""
    usage = manager.usage
    waiting = [queue.awaiting for queue in manager.outgoing.queues]
    parts = [*manager.queues.by_key.values(), *manager.outgoing.queues, *waiting]
    total = sum(queue.own_bytes for queue in manager.queues.by_key.values()) + sum(
        part.bytes for part in (*manager.outgoing.queues, *waiting)
    )
    total += manager.delayed.totals[1]
    # A queue that is being deleted is not listed any more, but its last messages are counted.
    is_deleting = bool(manager.queue_deletion.under_way)
    if usage.bytes != total and not (is_deleting and usage.bytes > total):
        yield f"{name} has counted {usage.bytes} bytes in all, and {total} in its queues"
    others = sum(queue.bytes for queue in manager.outgoing.queues if queue.for_others)
    if manager.relay_store.usage.bytes != others:
        held = manager.relay_store.usage.bytes
        yield f"{name} has counted {held} bytes that it holds for others, and has {others}"
    for (queue, source, sequence_id), numbers in manager.relay_store._held.items():
        if numbers and not queue.messages:
            yield f"{name} believes that it holds sequence {sequence_id:#x} of {source.hex()[:8]}"
    limit = manager.services.settings.routing.relay_bytes_max
    acknowledgments = sum(
        queue.bytes for queue in manager.outgoing.queues if _is_for_an_order_queue(queue)
    )
    if others - acknowledgments > limit:
        held = others - acknowledgments
        yield f"{name} holds {held} bytes of messages for others, where {limit} are the most"
    # Acknowledgments may use as much again; those that are passed back exceed that by little.
    if others > 2 * limit + _PASSED_BACK_BYTES:
        yield f"{name} holds {others} bytes for others, where {limit} twice are the most"
    express = memory_bytes(
        [packet for queue in manager.outgoing.queues for packet, _ in queue.express.values()]
        + [
            message.packet
            for queue in manager.queues.by_key.values()
            for message in queue.express.values()
        ]
    )
    if usage.express_bytes != express and not (is_deleting and usage.express_bytes > express):
        yield f"{name} has counted {usage.express_bytes} bytes of express messages of {express}"
    for part in parts:
        if part.bytes < 0 or part.messages < 0:
            yield f"{name} has counted {part.messages} messages, {part.bytes} bytes in a queue"
        if part.quota_bytes is not None and part.bytes > part.quota_bytes:
            yield f"{name} has {part.bytes} bytes where {part.quota_bytes} are allowed"
    for queue in manager.queues.by_key.values():
        # An expired message has no packet here, and may not be counted any more.
        taken = sum(1 for message in queue.taken.values() if message.packet)
        if queue.messages < taken:
            yield f"{name} has {queue.messages} messages in {queue.key}, {taken} taken"


def check_against(name: str, manager: Assembly, found: Found) -> Iterator[str]:
    """Compare the counters with the database, which must be up to date."""
    for key, queue in manager.queues.by_key.items():
        size = queue.own_bytes - _bytes(message.packet for message in queue.express.values())
        counted = Totals(queue.messages - len(queue.express), size)
        if counted != found.queues.get(key):
            yield f"{name} has counted {counted} in {key}, and there is {found.queues.get(key)}"
    for outgoing in manager.outgoing.queues:
        size = outgoing.bytes - _bytes(packet for packet, _ in outgoing.express.values())
        counted = Totals(outgoing.messages - len(outgoing.express), size)
        stored = found.outgoing.get(outgoing.destination, Totals(0, 0))
        if counted != stored:
            yield f"{name} has counted {counted} for {outgoing.destination}, and there is {stored}"
        awaiting = Totals(outgoing.awaiting.messages, outgoing.awaiting.bytes)
        stored = found.awaiting.get(outgoing.destination, Totals(0, 0))
        if awaiting != stored:
            yield (
                f"{name} has counted {awaiting} that wait to be confirmed by"
                f" {outgoing.destination}, and there is {stored}"
            )


def check_durable(name: str, shown: Found, durable: Found) -> Iterator[str]:
    """Check that a loss of power would change nothing that the queue manager sees.

    Nothing may wait for the disk.
    """
    for seen, kept in (
        (shown.queues, durable.queues),
        (shown.outgoing, durable.outgoing),
        (shown.awaiting, durable.awaiting),
    ):
        for queue in seen:
            if seen[queue] != kept.get(queue):
                yield f"{name} sees {seen[queue]} in {queue}, and its disk has {kept.get(queue)}"


def check_waiters(name: str, manager: Assembly) -> Iterator[str]:
    """Check that no reader waits for a queue that has a ready message.

    A queue with messages that are about to end is left out.
    """
    for queue in manager.queues.by_key.values():
        if not queue.waiters or any(not message.packet for message in queue.taken.values()):
            continue
        first = queue.window.peek()
        if first is not None:
            yield f"{name} lets {len(queue.waiters)} wait for {queue.key}, which has {first[0]}"


def check_ready(name: str, manager: Assembly, database: sqlite3.Connection) -> Iterator[str]:
    """Check that messages that are ready or transmitted are on disk.

    It is called before a commit, and checks the latest messages of each queue.
    """
    here = [
        queue.id << _LOOKUP_BITS | key
        for queue in manager.queues.by_key.values()
        for key in _latest(queue.window)
    ]
    there: list[int] = []
    for outgoing in manager.outgoing.queues:
        sent = [each.key for each in islice(reversed(outgoing.transmitted), _LATEST)]
        keys = [*_latest(outgoing.window), *sent, *islice(reversed(outgoing.in_flight), _LATEST)]
        acknowledged = TRANSACTIONAL_FIRST | (
            outgoing.sequence.base + outgoing.sequence.acknowledged
        )
        there += [
            outgoing.id << _LOOKUP_BITS | key
            for key in keys
            if key not in outgoing.removing and not TRANSACTIONAL_FIRST <= key <= acknowledged
        ]
    for table, keys in (("message", here), ("outgoing", there)):
        if not keys:
            continue
        wanted = ", ".join(map(str, keys))
        found = database.execute(f"SELECT key FROM {table} WHERE key IN ({wanted})").fetchall()
        if missing := set(keys) - {key for (key,) in found}:
            places = [divmod(key, 1 << _LOOKUP_BITS) for key in sorted(missing)]
            yield f"{name} has messages ready that are not on disk: {table} {places[:3]}"
    stored = {
        stream_id: (bytes(sequence_id), number)
        for stream_id, sequence_id, number in database.execute(
            "SELECT id, sequence_id, number FROM incoming_sequence"
        )
    }
    for stream in manager.incoming_streams.all():
        durable = stream.sequence.durable
        if durable.number and (durable.sequence_id.to_bytes(8), durable.number) > stored.get(
            stream.id, (b"", 0)
        ):
            kept = stored.get(stream.id)
            yield f"{name} counts {durable} of {stream.queue.key} as durable: {kept}"


def check_memory(name: str, manager: Assembly) -> Iterator[str]:
    """Check that the messages that windows count as taken are in use.

    Nothing may wait for the disk, and no result may be on its way.
    """
    for queue in manager.queues.by_key.values():
        had = queue.taken.keys() | {message.lookup_id for message in queue.expired}
        if left := queue.window._taken - had:
            yield f"{name} counts {len(left)} messages of {queue.key} as taken: {min(left)}"
    for outgoing in manager.outgoing.queues:
        sent = {each.key for each in outgoing.transmitted} | outgoing.in_flight.keys()
        had = sent | outgoing.removing
        if left := outgoing.window._taken - had:
            yield f"{name} counts {len(left)} messages for {outgoing.destination} as sent"


def check_readers(name: str, manager: Assembly) -> Iterator[str]:
    """Check that departed readers do not wait, and that messages in use do not end."""
    for queue in manager.queues.by_key.values():
        if any(waiter.reader.has_left for waiter in queue.waiters):
            yield f"{name} lets a reader wait for {queue.key} that has left"
        for reader in queue.takers:
            mine = reader.taken.get(queue, set())
            if not mine:
                yield f"{name} lists a reader of {queue.key} that has no message"
            for each in mine:
                message = queue.taken.get(each)
                if message is None or not message.packet:
                    yield f"{name} ends a message of {queue.key} that a reader has taken"
    for each_queue in (*manager.queues.by_key.values(), *manager.outgoing.queues):
        ready = {key for lane in each_queue.window._express for key, *_ in lane}
        if left := ready - each_queue.express.keys():
            yield f"{name} has express messages ready that do not exist: {sorted(left)[:3]}"
    owners: set[Any] = set()
    for transaction in manager.transactions.live:
        owner: Any = transaction.owner
        if owner in owners:  # an application runs one transaction after the other
            yield f"{name} has two transactions of one application"
        owners.add(owner)
        if owner.reader.has_left and not transaction.is_committing:
            yield f"{name} goes on with the transaction of an application that has left"


def check_all_known(name: str, manager: Assembly, database: sqlite3.Connection) -> Iterator[str]:
    """Check that windows know all stored messages below their horizon, before a commit."""
    for queue in manager.queues.by_key.values():
        first = queue.id << _LOOKUP_BITS
        horizon = queue.window.horizon
        last = first + (1 << _LOOKUP_BITS if horizon is None else horizon)
        rows = database.execute(
            "SELECT key FROM message WHERE key >= ? AND key < ?", (first, last)
        ).fetchall()
        known = {key for lane in queue.window._stored for key, *_ in lane}
        known |= queue.window._taken | set(queue.reserved) | set(queue.reserved._leaving)
        if forgotten := [key for (key,) in rows if key - first not in known]:
            yield f"{name} has forgotten {len(forgotten)} messages of {queue.key}: {forgotten[:3]}"


def check_known(name: str, manager: Assembly, database: sqlite3.Connection) -> Iterator[str]:
    """Check that the queue manager knows the stored ids of received plain messages; likewise."""
    known = manager.known_messages
    if forgotten := [
        number
        for segment, runs in history.entries(database)
        for first, last in runs
        for number in range(first, last + 1)
        if not known.has(segment.source, number, segment.origin)
    ]:
        yield f"{name} has forgotten that {len(forgotten)} messages came: {forgotten[:3]}"


def _latest(window: ReadyWindow[Any]) -> list[int]:
    """Return the keys of the latest messages of each level."""
    return [key for lane in window._stored if lane for key, *_ in islice(reversed(lane), _LATEST)]


def is_up_to_date(manager: Assembly) -> bool:
    """Return whether nothing waits for the disk, and all its results are delivered."""
    loop: Any = manager.services.loop
    return (
        manager.services.storage._writer._idle.is_set()
        and manager.outgoing_release._release_timer is None  # a release waits for others
        and not loop._ready
    )


def _bytes(packets: Iterable[Packet]) -> int:
    return sum(map(len, packets))


def _is_for_an_order_queue(queue: OutgoingQueue) -> bool:
    """Return whether a queue has relayed acknowledgments."""
    name, _, for_others = parse_queue_name(queue.destination)
    return for_others and isinstance(name, PrivateName) and name.number == ORDER_QUEUE_NUMBER
