"""Selection of messages of a queue: by id, by content, by age, or all.

A queue may be long: it is read page by page, and the result is one piece, small enough for one
commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from protocol import UserMessage, parse_user_message
from protocol.identifiers import correlation_bytes, correlation_text
from protocol.message_class import MessageClass
from qmd.control_protocol.messages import Choice, Piece, StoredMessage
from qmd.core.packet_fields import message_number, source_of
from qmd.errors import Refusal
from qmd.message.shared_packet import whole_message
from qmd.operations.receive import Matches, stored_message
from qmd.queues.local_queue import LocalQueue
from qmd.queues.message_values import StoredValues, has_properties
from qmd.queues.selectors import selector_of
from storage.tables import messages as message_rows
from storage.tables.keys import ARRIVAL_MAX, LOOKUP_BITS, LOOKUP_MASK, TRANSACTIONAL_LEVEL
from storage.tables.messages import MessageRow

if TYPE_CHECKING:
    import sqlite3

    from qmd.queues.quarantine import Damage
    from qmd.runtime.services import Services

PIECE_MESSAGES = 1024  # in one commit, for which other requests wait
PIECE_BYTES = 16 * 1024 * 1024
PAGE_ROWS = 256  # read at once
FIRST_ROWS = 16
HEAD_BYTES = 4096  # of a packet: enough for its properties, mostly


class Chosen(NamedTuple):
    """One piece of messages; `next` is where the next piece starts, None after the last one."""

    messages: list[StoredMessage]
    taken: int  # messages that were skipped, because readers have taken them
    next: int | None
    until: int

    @property
    def bytes(self) -> int:
        return sum(len(message.packet) for message in self.messages)


class _Page(NamedTuple):
    rows: list[MessageRow]  # that match, or are damaged
    last: int | None  # the last lookup id that was read; None: the queue ends here


class Selection:
    """Search for messages, which takes none of them."""

    def __init__(self, services: Services, damage: Damage) -> None:
        self._services = services
        self._damage = damage

    async def choose(
        self,
        queue: LocalQueue,
        choice: Choice,
        piece: Piece,
        *,
        bytes_max: int = PIECE_BYTES,
        among: Sequence[int] = (),
        admits: Callable[[int, bytes], bool] | None = None,
    ) -> Chosen:
        """Return one piece of the messages of `choice`, in order.  Raises Refusal.

        Messages that are named one by one must all be there, and no reader must have taken them.
        `among`: look at these lookup ids only; `choice` must name none then.  `admits` is asked for
        each message, by its lookup id and packet, in order.
        """
        if piece.limit < 1:
            raise Refusal(
                "bad_limit", f"{piece.limit} messages cannot be requested", "Request 1 or more."
            )
        for lookup_id in (piece.start, *choice.lookup_ids):
            if not 0 <= lookup_id <= LOOKUP_MASK:
                raise Refusal("bad_lookup_id", f"no message can have the lookup id {lookup_id}")
        if self._services.storage.pressure:
            # Reading sees only durable changes: an abort may be on its way to the disk.
            await self._services.storage.batch.barrier()
        until = piece.until or self._services.ids.next_lookup_id(TRANSACTIONAL_LEVEL) & ARRIVAL_MAX
        limit = min(piece.limit, PIECE_MESSAGES)
        matches, now_s = filter_of(choice), self._services.clock.now_s
        named = sorted(each for each in {*choice.lookup_ids, *among} if each >= piece.start)
        is_listed = bool(named) or bool(choice.lookup_ids)
        found: list[StoredMessage] = []
        taken = size = 0
        start: int | None = piece.start
        # Without a condition the first rows are the right ones, but for those that are taken.
        rows_max = PAGE_ROWS if _has_filter(choice) else min(PAGE_ROWS, 2 * limit + FIRST_ROWS)
        while start is not None:
            page = await self._page(
                queue, named, start, matches, rows_max, by_heads=_needs_heads(choice)
            )
            rows_max = PAGE_ROWS
            beyond = LOOKUP_MASK + 1 if page.last is None else page.last + 1
            rows = self._damage.whole_messages(queue, page.rows)
            messages = [stored_message(row) for row in rows]
            express = named if is_listed else queue.express
            messages += [each for each in _whole(queue, express, start, beyond) if matches(each)]
            messages.sort(key=lambda each: each.lookup_id)
            for message in messages:
                if message.lookup_id & ARRIVAL_MAX >= until:
                    continue
                if queue.is_busy_with(message.lookup_id):
                    if choice.lookup_ids or choice.message_ids:
                        raise _is_taken(queue, message.lookup_id)
                    taken += 1
                    continue
                if message.expires_at_s is not None and message.expires_at_s < now_s:
                    continue  # it has expired, and will be ended
                if admits is not None and not admits(message.lookup_id, message.packet):
                    continue
                if found and (len(found) == limit or size + len(message.packet) > bytes_max):
                    chosen = Chosen(found, taken, message.lookup_id, until)
                    self._check(queue, choice, piece, chosen)
                    return chosen
                found.append(message)
                size += len(message.packet)
            start = None if page.last is None else beyond
        chosen = Chosen(found, taken, None, until)
        self._check(queue, choice, piece, chosen)
        return chosen

    async def _page(
        self,
        queue: LocalQueue,
        named: list[int],
        start: int,
        matches: Matches,
        rows_max: int,
        *,
        by_heads: bool,
    ) -> _Page:
        if named:
            ahead = [each for each in named if each >= start]
            now = ahead[:PAGE_ROWS]
            keys = [queue.id << LOOKUP_BITS | each for each in now]
            rows = await self._services.storage.read(partial(message_rows.find_all, keys=keys))
            rows = [row for row in rows if not row.is_whole or matches(stored_message(row))]
            return _Page(rows, now[-1] if len(ahead) > PAGE_ROWS else None)

        queue_id = queue.id
        if by_heads:
            return await self._services.storage.read(
                partial(page_by_heads, queue_id=queue_id, start=start, matches=matches)
            )

        def look(db: sqlite3.Connection) -> _Page:
            """Read and filter one page on the thread for reading."""
            rows = message_rows.page(db, queue_id, start, rows_max)
            last = rows[-1].key & LOOKUP_MASK if rows else None
            return _Page(
                [row for row in rows if not row.is_whole or matches(stored_message(row))], last
            )

        return await self._services.storage.read(look)

    def _check(self, queue: LocalQueue, choice: Choice, piece: Piece, chosen: Chosen) -> None:
        """Raise Refusal if a message is missing that was named one by one."""
        there = {each.lookup_id for each in chosen.messages}
        beyond = LOOKUP_MASK + 1 if chosen.next is None else chosen.next
        for lookup_id in choice.lookup_ids:
            if piece.start <= lookup_id < beyond and lookup_id not in there:
                raise Refusal(
                    "no_such_message",
                    f"{queue.name} has no message with the lookup id {lookup_id}"
                    + (" that fits" if _has_filter(choice) else ""),
                    "See `qmd peek`; it may have been received meanwhile.",
                )
        if piece.start or chosen.next is not None:
            return  # they may be in another piece
        ids = {id_of(each.packet) for each in chosen.messages}
        for message_id in choice.message_ids:
            if message_id not in ids:
                shown = correlation_text(message_id)
                raise Refusal(
                    "no_such_message",
                    f"{queue.name} has no message with the id {shown}",
                    f"`qmd why '{shown}'` shows where it is.",
                )


def _whole(
    queue: LocalQueue, lookup_ids: Iterable[int], start: int, beyond: int
) -> Iterator[StoredMessage]:
    """Yield the express messages among these, at the places from `start` to before `beyond`."""
    for lookup_id in lookup_ids:
        if start <= lookup_id < beyond and lookup_id in queue.express:
            yield whole_message(queue.express[lookup_id])


def id_of(packet: bytes) -> bytes:
    """Return the id of a message as 20 bytes."""
    return correlation_bytes(source_of(packet), message_number(packet))


def page_by_heads(db: sqlite3.Connection, *, queue_id: int, start: int, matches: Matches) -> _Page:
    """Read and filter one page on the thread for reading; only matching packets are read whole.

    Bodies may be much longer than all properties before them.
    """
    wanted: list[int] = []
    size, last = 0, None
    for row, row_bytes in message_rows.heads_page(db, queue_id, start, PAGE_ROWS, HEAD_BYTES):
        if wanted and size + row_bytes > PIECE_BYTES:
            break
        last = row.key & LOOKUP_MASK
        if not has_properties(row.packet) or matches(stored_message(row)):
            wanted.append(row.key)
            size += row_bytes
    rows = message_rows.find_all(db, wanted) if wanted else []
    return _Page([row for row in rows if not row.is_whole or matches(stored_message(row))], last)


def destination_of(message: UserMessage) -> str:
    """Return the destination of a packet as a format name; "" for none."""
    from protocol import DirectQueueName
    from protocol.errors import ProtocolError
    from protocol.names.format_name import PrivateName, PublicName, parse_wire_name
    from protocol.text import plain_text

    user = message.user
    destination = user.destination_queue
    if isinstance(destination, DirectQueueName):
        try:
            return str(parse_wire_name(destination.name))
        except ProtocolError:
            return f"DIRECT={plain_text(destination.name)}"
    if isinstance(destination, int):
        return str(PrivateName(user.queue_manager_address, destination))
    if isinstance(destination, bytes):
        return str(PublicName(destination))
    return ""


def _is_taken(queue: LocalQueue, lookup_id: int) -> Refusal:
    if lookup_id in queue.reserved:
        return Refusal(
            "message_reserved",
            f"message {lookup_id} of {queue.name} is reserved for a pipeline",
            "Let its pipeline finish, or release it: see `qmd reader list`.",
        )
    return Refusal(
        "message_taken",
        f"message {lookup_id} of {queue.name} has been taken by an application",
        "Try again when the application has finished with it, or end that application.",
    )


def _has_filter(choice: Choice) -> bool:
    return choice != Choice(lookup_ids=choice.lookup_ids)


def _needs_heads(choice: Choice) -> bool:
    """Return whether the beginnings of packets show if they match: the others are parsed whole."""
    parsed = choice.label or choice.destination or choice.message_class or choice.correlation_ids
    return bool(choice.where) and not parsed


def filter_of(choice: Choice) -> Matches:
    """Return the condition of `choice` on messages.

    Raises Refusal for a bad class, id or selector.
    """
    if any(len(each) != 20 for each in choice.message_ids):
        raise Refusal("bad_message_id", "a message id has 20 bytes")
    ids = set(choice.message_ids)
    correlations = set(choice.correlation_ids)
    wanted_class = _class_number(choice.message_class)
    selector = selector_of(choice.where) if choice.where else None
    label, reason = choice.label.casefold(), choice.reason.casefold()
    destination = choice.destination.casefold()
    before_ms, after_ms = choice.arrived_before_ms, choice.arrived_after_ms

    def matches(message: StoredMessage) -> bool:
        if ids and id_of(message.packet) not in ids:
            return False
        if correlations:
            about = parse_user_message(message.packet).properties.correlation_id
            if about not in correlations:
                return False
        if before_ms is not None and message.arrived_at_ms >= before_ms:
            return False
        if after_ms is not None and message.arrived_at_ms <= after_ms:
            return False
        if reason and reason not in (message.reason or "").casefold():
            return False
        if selector is not None and not selector.matches(StoredValues(message)):
            return False
        if not label and not destination and wanted_class is None:
            return True
        parsed = parse_user_message(message.packet)
        if wanted_class is not None and parsed.properties.message_class != wanted_class:
            return False
        if destination and destination not in destination_of(parsed).casefold():
            return False
        text = parsed.properties.label.decode("utf-16-le", "replace").rstrip("\0")
        return label in text.casefold()

    return matches


def _class_number(name: str) -> int | None:
    if not name:
        return None
    try:
        return MessageClass[name.upper()]
    except KeyError:
        pass
    try:
        return int(name, 16)
    except ValueError as error:
        raise Refusal(
            "bad_message_class",
            f"there is no message class {name!r}",
            "Name it as `qmd peek --json` shows it, for example nack_reach_queue_timeout.",
        ) from error
