"""The messages of an outgoing queue, in pages, as plain values for JSON."""

from __future__ import annotations

import asyncio
from functools import partial
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

from protocol.identifiers import message_id_text
from qmd.core.packet_fields import is_express, label_of, message_number, sent_time_s, source_of
from qmd.history.message_search import EXPRESS_AT_ONCE, catch_up
from qmd.history.places import end_ms
from qmd.message.shared_packet import head_of, whole
from qmd.queues.transmission import TRANSACTIONAL_FIRST
from storage.tables import outgoing as outgoing_rows
from storage.tables.keys import LOOKUP_MASK

if TYPE_CHECKING:
    from qmd.control.components import Components
    from qmd.message.shared_packet import Packet
    from qmd.queues.outgoing_queue import OutgoingQueue

#: Examined for one answer: other requests wait for the read.
EXAMINED_ROWS = 1000
EXAMINED_BYTES = 4 * 1024 * 1024

Value = dict[str, Any]
Entry = tuple[int, "Packet", int | None]  # key without the queue id, packet, last second


async def page(
    components: Components, queue: OutgoingQueue, start: int, limit: int, text: str
) -> Value:
    """Return messages from the key `start` on, in the order of sending, as `messages` and `next`.

    `next` is the start of the next page, or None at the end.  With a text, only messages that have
    it in label or id are returned; the page may be empty before the end.  Raises StorageError.
    """
    if start == 0:
        # Otherwise acknowledged messages whose rows are not deleted yet are shown as waiting.
        await catch_up(components.services.storage, components.outgoing_release)
    entries, following = await _entries(components, queue, start)
    sent = queue.in_flight.keys() | {each.key for each in queue.transmitted}
    wanted = text.casefold()
    found: list[Value] = []
    async for some in components.work_parts.of(len(entries)):
        for key, packet, expires_at_s in entries[some]:
            if len(found) == limit:
                return {"messages": found, "next": key}
            if _is_over(queue, key):
                continue
            head = head_of(packet)
            label = label_of(whole(packet))
            id_ = ""
            if wanted not in label.casefold():
                id_ = message_id_text(source_of(head), message_number(head))
                if wanted not in id_.casefold():
                    continue
            transactional = key >= TRANSACTIONAL_FIRST
            found.append(
                {
                    "id": id_ or message_id_text(source_of(head), message_number(head)),
                    "label": label,
                    "state": "unacknowledged" if key in sent else "waiting",
                    "delivery": _delivery(head, transactional=transactional),
                    "sequence_number": queue.number_of(key) if transactional else None,
                    "bytes": len(packet),
                    "sent_at_ms": sent_time_s(head) * 1000,
                    "expires_at_ms": end_ms(components.services, expires_at_s),
                    "lookup_id": key,
                }
            )
    return {"messages": found, "next": following}


async def _entries(
    components: Components, queue: OutgoingQueue, start: int
) -> tuple[list[Entry], int | None]:
    """Return the next messages of memory and disk by their keys, and where others follow."""
    rows = await components.services.storage.read(
        partial(
            outgoing_rows.page,
            outgoing_id=queue.id,
            from_lookup=start,
            rows_max=EXAMINED_ROWS,
            bytes_max=EXAMINED_BYTES,
        )
    )
    last = LOOKUP_MASK
    if len(rows) == EXAMINED_ROWS or sum(len(row.packet) for row in rows) >= EXAMINED_BYTES:
        last = rows[-1].key & LOOKUP_MASK
    express = await _express_keys(queue, start, last)
    if len(express) == EXAMINED_ROWS:
        last = express[-1]
    entries: list[Entry] = [
        (row.key & LOOKUP_MASK, row.packet, row.expires_at_s)
        for row in rows
        if row.is_whole and row.key & LOOKUP_MASK <= last
    ]
    entries += [(key, *queue.express[key]) for key in express if key in queue.express]
    entries.sort(key=lambda entry: entry[0])
    return entries, None if last == LOOKUP_MASK else last + 1


async def _express_keys(queue: OutgoingQueue, first: int, last: int) -> list[int]:
    """Return the first keys of express messages in a range; other tasks run in between."""
    keys = list(queue.express)
    found: list[int] = []
    for at in range(0, len(keys), EXPRESS_AT_ONCE):
        if at:
            await asyncio.sleep(0)
        meant = (key for key in keys[at : at + EXPRESS_AT_ONCE] if first <= key <= last)
        found = nsmallest(EXAMINED_ROWS, [*found, *meant])
    return found


def _delivery(packet: bytes, *, transactional: bool) -> str:
    if transactional:
        return "transactional"
    return "express" if is_express(packet) else "recoverable"


def _is_over(queue: OutgoingQueue, key: int) -> bool:
    """Return whether a message was acknowledged or ended, and only its row is still there."""
    if key in queue.removing:
        return True
    return key >= TRANSACTIONAL_FIRST and queue.number_of(key) <= queue.sequence.acknowledged
