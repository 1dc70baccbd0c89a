"""Queries of the event log: clients get one flat event for each message.

docs/events.md has the schema.  All events are durable, so a crash cannot revoke an event that a
client has read.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from protocol.errors import InvalidName
from protocol.identifiers import correlation_text, guid_text, message_id_text
from protocol.message_class import MessageClass
from protocol.names.direct_name import DirectName, queue_key
from protocol.names.format_name import parse_destination
from qmd.errors import Refusal
from qmd.events.header import Kind
from qmd.properties.trace import text_of
from storage.tables import event_search, inventory
from storage.tables.event_search import Filter, FoundEvent, Page
from storage.tables.events import SCHEMA, Event

if TYPE_CHECKING:
    from qmd.naming.destinations import Destinations
    from qmd.runtime.services import Services

EVENTS_MAX = 4096  # in one answer
BLOCKS_MAX = 1024  # read for one answer
INVENTORY_MAX = 12_000_000  # messages in one answer, which is one frame
BARRIER_S = 5.0  # for pending events to be written, before an inventory
POLL_S = 0.2  # the interval in which new events are looked for while a client waits

Value = dict[str, Any]


def flat(services: Services, found: FoundEvent) -> Value:
    """Return one event of one message as a flat dictionary that has all fields."""
    event = found.event
    # The only field that few events have: those of messages with a trace context.
    traced = {"traceparent": text_of(event.traces[0])} if event.traces and event.traces[0] else {}
    return {
        "schema": SCHEMA,
        "host": services.name,
        "queue_manager": guid_text(services.id),
        "cursor": f"{found.block}.{found.at}",
        "block": found.block,
        "index": found.at,
        "time": time_text(event.at_ms),
        "at_ms": event.at_ms,
        "kind": event.kind,
        "message_id": message_id_text(event.source, event.numbers[0]) if event.numbers else "",
        "queue": event.queue,
        "peer": event.peer,
        "lookup_id": event.places[0] if event.places else None,
        "sequence_id": event.sequence_id if event.positions else None,
        "sequence_number": event.positions[0] if event.positions else None,
        "class": MessageClass.name_of(event.message_class) if event.message_class else None,
        "delivery": event.delivery,
        "bytes": event.bytes,
        "reason": event.reason,
        "to_queue": event.to_queue,
        "transaction": event.transaction,
        "label": event.labels[0] if event.labels else "",
        "correlation_id": _correlation(event.correlations[0]) if event.correlations else "",
        **traced,
    }


def _correlation(raw: bytes) -> str:
    return correlation_text(raw) if raw else ""


def time_text(at_ms: int) -> str:
    """Return a time in milliseconds since 1970 as text: ISO 8601, UTC."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds") + "Z"


class EventLog:
    """The requests of `qmd events`."""

    def __init__(self, services: Services, destinations: Destinations) -> None:
        self._services = services
        self._destinations = destinations

    async def read(
        self,
        *,
        cursor: str,
        limit: int,
        last: int,
        queue: str,
        kinds: list[str],
        since_ms: int,
        until_ms: int,
        wait_s: float,
    ) -> Value:
        """Return events in order: those behind `cursor`, those since `since_ms`, or the last ones.

        `last` is the number of last events.  `queue` and `kinds` select events; "" and an empty
        list select all.  The method waits up to `wait_s` seconds (negative: without limit) for the
        first event.  The answer has a cursor for the next request.  Raises Refusal.
        """
        if limit < 1:
            raise Refusal("bad_limit", f"{limit} events cannot be requested", "Request 1 or more.")
        is_wanted = _filter(self._queue_names(queue), _kinds(kinds), since_ms)
        limit = min(limit, EVENTS_MAX)
        if last > 0 and not cursor:
            read_last = partial(
                event_search.last,
                events_max=min(last, EVENTS_MAX),
                blocks_max=BLOCKS_MAX,
                is_wanted=is_wanted,
            )
            page = await self._services.storage.read(read_last)
            return self._answer(page)
        block, index = parse_cursor(cursor) if cursor else (0, 0)
        if not cursor and since_ms:
            block = await self._services.storage.read(partial(event_search.since, at_ms=since_ms))
        loop = self._services.loop
        deadline = loop.time() + wait_s
        missing = 0
        while True:
            page = await self._services.storage.read(
                partial(
                    event_search.page,
                    block=block,
                    index=index,
                    events_max=limit,
                    blocks_max=BLOCKS_MAX,
                    is_wanted=is_wanted,
                    until_ms=until_ms or None,
                )
            )
            missing += page.missing_blocks
            if page.found or (page.is_end and wait_s >= 0 and loop.time() >= deadline):
                return self._answer(page._replace(missing_blocks=missing))
            block, index = page.block, page.at
            if page.is_end:
                await asyncio.sleep(POLL_S)
            elif wait_s == 0:
                return self._answer(page._replace(missing_blocks=missing))

    def _answer(self, page: Page) -> Value:
        return {
            "events": [flat(self._services, found) for found in page.found],
            "cursor": f"{page.block}.{page.at}",
            "end": page.is_end,
            "missing_blocks": page.missing_blocks,
        }

    async def inventory(self) -> Value:
        """Return the ids of all stored messages at the newest block of the log.  Raises Refusal.

        The log contains everything that happened before `taken_at_ms`; 0 if the disk hangs.
        """
        services = self._services
        taken_at_ms = int(services.environment.time() * 1000)
        try:
            async with asyncio.timeout(BARRIER_S):
                await services.storage.batch.barrier()
        except TimeoutError:
            taken_at_ms = 0
        read = partial(inventory.read, messages_max=INVENTORY_MAX)
        try:
            block, at_ms, present = await self._services.storage.read(read)
        except inventory.TooMany as error:
            raise Refusal(
                "inventory_too_large",
                f"{error} messages are stored, and an inventory names at most {INVENTORY_MAX}",
                "Receive or purge messages; events are shipped without an inventory.",
            ) from None
        return {
            "host": self._services.name,
            "queue_manager": guid_text(self._services.id),
            "block": block,
            "at_ms": at_ms,
            "taken_at_ms": taken_at_ms,
            "queues": [
                {
                    "table": each.table,
                    "queue": each.queue,
                    "source": guid_text(each.source),
                    "numbers": each.numbers,
                }
                for each in present
            ],
        }

    def _queue_names(self, text: str) -> frozenset[str]:
        """Return the names that events may have for a queue; an empty set means all queues."""
        if not text:
            return frozenset()
        try:
            name = parse_destination(text, local_host=".")
        except InvalidName as error:
            raise Refusal(
                "name_not_understood", f"'{text}' is not the name of a queue: {error}"
            ) from error
        names = {str(name).casefold()}
        if isinstance(name, DirectName) and self._destinations.is_local(name):
            key = queue_key(name)
            assert key is not None
            names |= {key, f"direct=os:.\\{key}"}
        return frozenset(names)


def parse_cursor(text: str) -> tuple[int, int]:
    """Return block and index of a cursor.  Raises Refusal."""
    block, dot, index = text.partition(".")
    if (
        not dot
        or not all(part.isascii() and part.isdigit() and len(part) < 16 for part in (block, index))
    ):  # fmt: skip
        raise Refusal(
            "bad_cursor",
            f"{text!r} is not a cursor",
            "A cursor is the field `cursor` of an earlier answer or event, such as 17.0.",
        )
    return int(block), int(index)


def _kinds(kinds: list[str]) -> frozenset[str]:
    for kind in kinds:
        if kind not in Kind.__members__.values():
            raise Refusal(
                "bad_event_kind",
                f"there is no kind of event {kind!r}",
                f"It is one of: {', '.join(sorted(Kind))}.",
            )
    return frozenset(kinds)


def _filter(queues: frozenset[str], kinds: frozenset[str], since_ms: int) -> Filter:
    def is_wanted(event: Event) -> bool:
        return (
            event.at_ms >= since_ms
            and (not kinds or event.kind in kinds)
            and (
                not queues
                or event.queue.casefold() in queues
                or (bool(event.to_queue) and event.to_queue.casefold() in queues)
            )
        )

    return is_wanted
