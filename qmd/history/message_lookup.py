"""What happened to a message, and where it is: asked by an operator or by another queue manager.

The history tells where it was last; memory and disk say whether it is there.  Only when they do
not, the tables are searched, in small pages and for a limited time.  `account.py` makes sentences
of what is found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from protocol.errors import InvalidName
from protocol.identifiers import guid_text, message_id_text, parse_message_id
from qmd.access.rights import ALL_RIGHTS, Rights
from qmd.control_protocol.messages import StoredMessage
from qmd.core.packet_fields import is_transactional, message_number, sent_time_s, source_of
from qmd.errors import Refusal
from qmd.history.event_query import flat, time_text
from qmd.history.explanation import tell
from qmd.message.shared_packet import head_of, whole_message
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import TRANSACTIONAL_FIRST, OutgoingQueue
from qmd.transfer import sequence_renewal
from storage.tables import event_search, whereabouts
from storage.tables import events as event_rows
from storage.tables.keys import LOOKUP_BITS, LOOKUP_MASK, queue_range

if TYPE_CHECKING:
    import sqlite3

    from qmd.access.things import ThingFinder
    from qmd.history.remote_lookup import RemoteLookup
    from qmd.naming.destinations import Destinations
    from qmd.operations.transactions import Transactions
    from qmd.peers.identity_conflicts import IdentityConflicts
    from qmd.peers.sessions import Peers
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.queues.registry import LocalQueues
    from qmd.queues.way import Way
    from qmd.runtime.services import Services
    from qmd.transfer.release import OutgoingRelease
    from storage import Storage
    from storage.tables.event_search import Told

EVENTS_MAX = 1000  # of one message
BLOCKS_MAX = 20_000  # of the history, looked at for one message
BLOCKS_FEW = 100
AHEAD_MAX = 100_000  # messages in front of one that are counted
AHEAD_FEW = 1000
SEARCH_ROWS = 500  # read in one go: other readers wait for so long
SEARCH_ROWS_MAX = 10_000_000
SEARCH_S_MAX = 10.0
LAST_EVENTS = 4  # among which one says that a message is gone; others may follow it
CATCH_UP_S = 1.0
EXPRESS_AT_ONCE = 10_000  # looked at before others have their turn

T = TypeVar("T")
Value = dict[str, Any]
MessageId = tuple[bytes, int]  # GUID of its source, number


class Finding(NamedTuple):
    """What this queue manager knows of a message."""

    places: list[Value]
    history: list[Told]
    has_gap: bool  # the history is longer, and its middle is left out
    searched_all: bool
    is_up_to_date: bool  # False: the disk did not keep up, and some of the last events are missing


class MessageLookup:
    """Answers `qmd why` and `qmd trace`."""

    def __init__(
        self,
        services: Services,
        remote_lookup: RemoteLookup,
        identities: IdentityConflicts,
        outgoing: OutgoingQueues,
        peers: Peers,
        queues: LocalQueues,
        destinations: Destinations,
        transactions: Transactions,
        outgoing_release: OutgoingRelease,
        things: ThingFinder,
    ) -> None:
        self._services = services
        self._remote_lookup = remote_lookup
        self._identities = identities
        self._outgoing = outgoing
        self._peers = peers
        self._queues = queues
        self._destinations = destinations
        self._transactions = transactions
        self._outgoing_release = outgoing_release
        self._things = things

    async def why(
        self, text: str, queue_text: str, *, ask: bool, rights: Rights = ALL_RIGHTS
    ) -> Value:
        """The account of a message, by its id or lookup id.  Raises Refusal.

        With `ask` the queue manager that it came from, or went to, is asked as well, for a client
        with all rights: what is there is not for the tokens that are made here to grant.
        """
        queue = self._destinations.find_queue(queue_text) if queue_text else None
        source, number = await self._identify(text, queue)
        finding = await self.find(source, number)
        names = {place["queue"] for place in finding.places}
        for told in finding.history:
            names |= {told.event.queue, told.event.to_queue}
        self._things.require_story(rights, message_id_text(source, number), names - {""})
        ask = ask and rights.are_all
        result = self.account(source, number, finding)
        link, guid = self._other_side(source, finding)
        peers = []
        if ask and (guid is not None or link is not None):
            peers.append(await self._remote_lookup.ask(link, guid, source, number))
        result["peers"] = peers
        result["sides"] = _sides(self._services.name, ask=ask, peers=peers)
        return result

    def account(self, source: bytes, number: int, finding: Finding) -> Value:
        """What is found, as plain values with sentences."""
        now_ms = int(self._services.environment.time() * 1000)
        events = [flat(self._services, told) for told in finding.history]
        account = tell(
            finding.places,
            events,
            now_ms=now_ms,
            known_host=self._services.name,
            names=self._peer_names(),
            searched_all=finding.searched_all,
        )
        sentences = list(account.sentences)
        if not finding.is_up_to_date:
            sentences.append(
                "The disk does not keep up: what happened last is not told here, because it is not"
                " durable yet."
            )
        return {
            "message_id": message_id_text(source, number),
            "host": self._services.name,
            "queue_manager": guid_text(self._services.id),
            "state": account.state,
            "sentences": sentences,
            "remedies": account.remedies,
            "places": [_shown(place) for place in finding.places],
            "events": events,
            "events_left_out": finding.has_gap,
        }

    async def find(self, source: bytes, number: int, *, thorough: bool = True) -> Finding:
        """Where it is and what happened.

        Without `thorough` only where the history leads to, and only a part of a long history: a
        stranger who asks must not cost more than a message does.
        """
        is_up_to_date = await catch_up(self._services.storage, self._outgoing_release)
        history, has_gap = await self._read(
            partial(
                event_search.of_message,
                source=source,
                number=number,
                events_max=EVENTS_MAX,
                blocks_max=BLOCKS_MAX if thorough else BLOCKS_FEW,
            )
        )
        ahead_max = AHEAD_MAX if thorough else AHEAD_FEW
        places: list[Value] = []
        for queue_id, lookup_id, is_outgoing in self._likely_keys(history):
            key = queue_id << LOOKUP_BITS | lookup_id
            found = await (
                self._outgoing_at(key, ahead_max) if is_outgoing else self._queue_at(key, ahead_max)
            )
            if found is not None and found[0] == (source, number):
                places.append(found[1])
        places += await self._elsewhere(source, number)
        searched_all = True
        is_over = any(told.event.kind in _TERMINAL for told in history[-LAST_EVENTS:])
        if not places and not is_over and thorough:
            places = await self._express(source, number)
        if not places and not is_over:
            # Who searches for somebody else looks where the message probably is.
            rows_max = SEARCH_ROWS_MAX if thorough else SEARCH_ROWS
            places, searched_all = await self._search(source, number, history, rows_max)
        return Finding(places, history, has_gap, searched_all, is_up_to_date)

    # What is meant.

    async def _identify(self, text: str, queue: LocalQueue | None) -> MessageId:
        if not text.isascii() or not text.isdigit():
            try:
                return parse_message_id(text)
            except InvalidName as error:
                raise Refusal(
                    "not_a_message_id",
                    f"'{text}' is neither the id of a message nor a lookup id: {error}",
                    "An id is what `qmd send` prints; a lookup id stands in `qmd peek`.",
                ) from error
        lookup_id = int(text) if len(text) < 20 else LOOKUP_MASK + 1
        if lookup_id > LOOKUP_MASK:
            raise Refusal("bad_lookup_id", f"no message can have the lookup id {text}")
        found = await self._at_lookup_id(lookup_id, queue)
        if not found:
            name = None if queue is None else queue.name
            known = await self._read(partial(event_rows.of_place, queue=name, lookup_id=lookup_id))
            found = set() if known is None else {(known.source, known.number)}
        if not found:
            where = "any queue" if queue is None else queue.name
            raise Refusal(
                "no_such_message",
                f"no message with the lookup id {lookup_id} is in {where}, and the history tells"
                " of none",
                "Ask by the message's id instead.",
            )
        if len(found) > 1:
            ids = ", ".join(sorted(message_id_text(*each) for each in found))
            raise Refusal(
                "lookup_id_ambiguous",
                f"several messages have the lookup id {lookup_id}: {ids}",
                "Say which queue is meant (--queue), or ask by the message's id.",
            )
        return found.pop()

    async def _at_lookup_id(self, lookup_id: int, queue: LocalQueue | None) -> set[MessageId]:
        found: set[MessageId] = set()
        for each in [queue] if queue is not None else list(self._queues.by_key.values()):
            express = each.express.get(lookup_id)
            if express is not None:
                head = head_of(express.packet)
                found.add((source_of(head), message_number(head)))
        keys = [
            each.id << LOOKUP_BITS | lookup_id
            for each in ([queue] if queue is not None else self._queues.by_key.values())
        ]
        outgoing = [
            each.id << LOOKUP_BITS | lookup_id
            for each in (self._outgoing.queues if queue is None else ())
        ]

        def look(db: sqlite3.Connection) -> list[bytes]:
            rows = [whereabouts.in_queue(db, key, 0) for key in keys]
            others = [whereabouts.in_outgoing(db, key, 0) for key in outgoing]
            return [each.row.packet for each in (*rows, *others) if each is not None]

        for packet in await self._read(look):
            found.add((source_of(packet), message_number(packet)))
        return found

    # Where it is.

    def _likely_keys(self, history: Iterable[Told]) -> list[tuple[int, int, bool]]:
        """Queue id, lookup id, whether it is an outgoing queue: wherever it ever was."""
        queues = {queue.name.casefold(): queue.id for queue in self._queues.by_key.values()}
        keys: dict[tuple[int, int, bool], None] = {}
        for told in history:
            event = told.event
            queue_id = queues.get((event.to_queue or event.queue).casefold())
            if queue_id is not None and event.places:
                keys[queue_id, event.places[0], False] = None
            outgoing = self._outgoing.find(event.queue.casefold())
            if outgoing is None:
                continue
            sequence = outgoing.sequence
            if event.positions and event.sequence_id == sequence.sequence_id:
                key = TRANSACTIONAL_FIRST | (sequence.base + event.positions[0])
                keys[outgoing.id, key, True] = None
            for key, packet in outgoing.in_flight.items():
                if message_number(head_of(packet)) == event.numbers[0]:
                    keys[outgoing.id, key, True] = None
        return list(keys)

    async def _queue_at(
        self, key: int, ahead_max: int = AHEAD_MAX
    ) -> tuple[MessageId, Value] | None:
        queue = self._queues.by_id.get(key >> LOOKUP_BITS)
        if queue is None:
            return None
        express = queue.express.get(key & LOOKUP_MASK)
        if express is not None:
            head = head_of(express.packet)
            of = source_of(head), message_number(head)
            return of, self._express_place(queue, whole_message(express))
        found = await self._read(partial(whereabouts.in_queue, key=key, ahead_max=ahead_max))
        if found is None:
            return None
        row, packet = found.row, found.row.packet
        place = self._queue_place(
            queue,
            key & LOOKUP_MASK,
            packet,
            row.arrived_at_ms if row.last_move_at_ms is None else row.last_move_at_ms,
            row.reason,
            found.ahead,
            row.expires_at_s,
        )
        return (source_of(packet), message_number(packet)), place

    def _queue_place(
        self,
        queue: LocalQueue,
        lookup_id: int,
        packet: bytes,
        since_ms: int,
        reason: str | None,
        ahead: int | None,
        expires_at_s: int | None,
    ) -> Value:
        taker = next((each for each in queue.takers if each.has(queue, lookup_id)), None)
        return {
            "kind": _queue_kind(queue, reason),
            "queue": queue.name,
            "lookup_id": lookup_id,
            "position": None if ahead is None else ahead + 1,
            "since_ms": since_ms,
            "taken": lookup_id in queue.taken,
            "taken_by": None
            if taker is None
            else {"client": taker.who, "at_ms": self._wall_ms(taker.took_at_s)},
            "readers_waiting": len(queue.waiters),
            "transactional": is_transactional(packet),
            "reason": reason,
            "expires_at_ms": self._end_ms(None if queue.is_system else expires_at_s),
        }

    def _express_place(self, queue: LocalQueue, message: StoredMessage) -> Value:
        return self._queue_place(
            queue,
            message.lookup_id,
            message.packet,
            message.arrived_at_ms,
            None,
            None,
            message.expires_at_s,
        )

    async def _outgoing_at(
        self, key: int, ahead_max: int = AHEAD_MAX
    ) -> tuple[MessageId, Value] | None:
        found = await self._read(partial(whereabouts.in_outgoing, key=key, ahead_max=ahead_max))
        queue = self._outgoing_by_id(key >> LOOKUP_BITS)
        if found is None or queue is None:
            return None
        packet = found.row.packet
        expires_at_s = found.row.expires_at_s
        place = self._outgoing_place(queue, key & LOOKUP_MASK, packet, found.ahead, expires_at_s)
        return (source_of(packet), message_number(packet)), place

    def _outgoing_place(
        self,
        queue: OutgoingQueue,
        key: int,
        packet: bytes,
        ahead: int | None,
        expires_at_s: int | None,
    ) -> Value:
        link, now = queue.link, self._services.loop.time()
        transactional = key >= TRANSACTIONAL_FIRST
        if transactional:
            transmitted = queue.find_transmitted(key) is not None
            number = queue.number_of(key)
        else:
            transmitted, number = key in queue.in_flight, None
        timer = queue.sequence.next_timer()
        last = link.retry.history[-1] if link.retry.history else None
        connection = link.connection
        return {
            "kind": "outgoing",
            "queue": queue.destination,
            "lookup_id": key,
            "position": None if ahead is None else ahead + 1,
            "since_ms": sent_time_s(packet) * 1000,
            "address": link.name if connection is None else f"{connection.host}:{connection.port}",
            "paused": queue.paused,
            "connected": connection is not None,
            "transmitted": transmitted and connection is not None,
            "transactional": transactional,
            "doubt": queue.doubt if transactional else "",
            "unanswered": sequence_renewal.unanswered(queue) if transactional else "",
            "sequence_number": number,
            "resend_in_s": None
            if timer is None or not transactional
            else round(max(0.0, timer - now), 1),
            "address_known": link.is_reachable,
            "failures": link.retry.failures,
            "last_result": last.result if last is not None else "",
            "refusal_remedy": self._identities.remedy_of_refusal(link.retry.history),
            "next_attempt_in_s": round(max(0.0, link.retry.next_attempt - now), 1),
            "expires_at_ms": self._end_ms(expires_at_s),
        }

    async def _express(self, source: bytes, number: int) -> list[Value]:
        """Messages that live in memory only."""
        places: list[Value] = []
        for queue in list(self._queues.by_key.values()):
            async for lookup_id, _ in _matching(
                queue.express, lambda message: head_of(message.packet), source, number
            ):
                if lookup_id in queue.express:
                    message = whole_message(queue.express[lookup_id])
                    places.append(self._express_place(queue, message))
        for outgoing in self._outgoing.queues:
            async for key, packet in _matching(
                outgoing.express, lambda each: head_of(each[0]), source, number
            ):
                if key in outgoing.express:
                    expires_at_s = outgoing.express[key][1]
                    places.append(self._outgoing_place(outgoing, key, packet, None, expires_at_s))
        return places

    async def _search(
        self, source: bytes, number: int, history: list[Told], rows_max: int
    ) -> tuple[list[Value], bool]:
        """Look through the tables, and first where it was last; until there is a place.

        False: there was more to look at than `rows_max`, or than there was time for.
        """
        places: list[Value] = []
        deadline = self._services.loop.time() + SEARCH_S_MAX
        looked_at = 0
        ranges = [
            (True, *queue_range(queue.id))
            for name in dict.fromkeys(told.event.queue.casefold() for told in reversed(history))
            if (queue := self._outgoing.find(name)) is not None
        ]
        everywhere = (0, (1 << 63) - 1)
        for is_outgoing, first, last in (*ranges, (True, *everywhere), (False, *everywhere)):
            start: int | None = first
            while start is not None and not places:
                if looked_at >= rows_max or self._services.loop.time() > deadline:
                    return places, False
                page = await self._read(
                    partial(
                        whereabouts.search,
                        table="outgoing" if is_outgoing else "message",
                        source=source,
                        number=number,
                        from_key=start,
                        to_key=last,
                        rows_max=SEARCH_ROWS,
                    )
                )
                for key in page.keys:
                    found = await (self._outgoing_at(key) if is_outgoing else self._queue_at(key))
                    if found is not None:
                        places.append(found[1])
                looked_at += page.rows
                start = page.next_key
        return places, True

    async def _elsewhere(self, source: bytes, number: int) -> list[Value]:
        """What is in no queue and kept all the same."""
        places: list[Value] = []
        for each in await self._read(partial(whereabouts.damaged, source=source, number=number)):
            places.append({"kind": "damaged", "queue": "", "since_ms": each.at_s * 1000})
        if source == self._services.id:
            places += self._uncommitted(number)
            waiting = await self._read(partial(whereabouts.awaiting, number=number))
            if waiting is not None:
                queue = self._outgoing_by_id(waiting.queue_id)
                places.append(
                    {
                        "kind": "awaiting",
                        "queue": "" if queue is None else queue.destination,
                        "address": "" if queue is None else queue.link.name,
                        "since_ms": self._wall_ms(waiting.since_s),
                        "until_ms": self._end_ms(waiting.expires_at_s),
                        "sequence_number": waiting.position,
                    }
                )
        return places

    def _uncommitted(self, number: int) -> list[Value]:
        """A message of a transaction that has not ended, which is nowhere but in memory."""
        return [
            {
                "kind": "transaction",
                "queue": transaction.messages[transaction.numbers.index(number)].destination,
                "transaction": transaction.id.hex(),
                "since_ms": int(
                    (
                        self._services.environment.time()
                        - self._services.loop.time()
                        + transaction.began_at
                    )
                    * 1000
                ),
            }
            for transaction in self._transactions.live
            if number in transaction.numbers
        ]

    # Who else knows.

    def _other_side(self, source: bytes, finding: Finding) -> tuple[Way | None, bytes | None]:
        """Where the message came from, or where it went: a way there, and a GUID."""
        if source != self._services.id:
            return None, source
        names = [place["queue"] for place in finding.places]
        for event in (told.event for told in finding.history):
            names += [event.queue, event.to_queue]
        for name in names:
            queue = self._outgoing.find(name.casefold())
            if queue is not None:
                is_unsent = any(
                    place["kind"] == "outgoing" and not place["connected"]
                    for place in finding.places
                ) and not any(told.event.kind in _TRAVELLED for told in finding.history)
                return (None, None) if is_unsent else (queue.link, queue.link.remote_id)
        return None, None

    def _wall_ms(self, at_s: float) -> int:
        """A time of the queue manager's own clock, by the wall clock as it goes now."""
        return int((self._services.environment.time() + at_s - self._services.clock.now) * 1000)

    def _end_ms(self, last_s: int | None) -> int | None:
        """When a life with that last second is over."""
        return None if last_s is None else self._wall_ms(last_s + 1)

    def _peer_names(self) -> dict[str, str]:
        """What people call the queue managers whose GUIDs the history has."""
        names = {
            guid_text(connection.session.remote_id): connection.host
            for connection in self._peers.connections
            if connection.session is not None and connection.session.remote_id is not None
        }
        for link in self._peers.links:
            if link.remote_id is not None and link.guid is None:
                names[guid_text(link.remote_id)] = link.name
        return names

    def _outgoing_by_id(self, outgoing_id: int) -> OutgoingQueue | None:
        queues = self._outgoing.queues
        return next((queue for queue in queues if queue.id == outgoing_id), None)

    async def _read(self, look: Callable[[sqlite3.Connection], T]) -> T:
        return await self._services.storage.read(look)


# After these a message is in none of our queues.
_TERMINAL = frozenset(
    {
        *("received", "purged", "queue_deleted", "discarded", "session_acknowledged"),
        *("order_acknowledged", "confirmed", "lost", "refused"),
    }
)
_TRAVELLED = frozenset(
    {"transmitted", "retransmitted", "session_acknowledged", "order_acknowledged"}
)


async def catch_up(storage: Storage, outgoing_release: OutgoingRelease) -> bool:
    """What waits for company, to be told or to be taken off the disk, has it now.

    Not for longer than CATCH_UP_S: one asks what happened when a disk hangs, too.  False then.
    Raises StorageError.
    """
    outgoing_release.release()
    done = storage.batch.barrier()
    await asyncio.wait((done,), timeout=CATCH_UP_S)
    if done.done():
        done.result()
        return True
    done.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen
    return False


def _queue_kind(queue: LocalQueue, reason: str | None) -> str:
    if queue.key.endswith(";journal"):
        return "journal"
    # Only dead letters have a reason, in the system's queues and in those of applications.
    is_dead = queue.key in ("system$;deadletter", "system$;deadxact") or reason is not None
    return "dead_letter" if is_dead else "queue"


async def _matching(
    express: dict[int, T], packet_of: Callable[[T], bytes], source: bytes, number: int
) -> Any:
    """Keys and packets of a message, a few thousand at a time."""
    entries = list(express.items())
    for at, (key, item) in enumerate(entries):
        if at and not at % EXPRESS_AT_ONCE:
            await asyncio.sleep(0)
        packet = packet_of(item)
        if message_number(packet) == number and source_of(packet) == source:
            yield key, packet


def _shown(place: Value) -> Value:
    """With times as text, as everywhere in JSON."""
    shown: Value = {}
    for name, value in place.items():
        if name.endswith("_ms"):
            shown[name.removesuffix("_ms")] = None if value is None else time_text(value)
        elif isinstance(value, dict):
            shown[name] = _shown(value)
        else:
            shown[name] = value
    return shown


def _sides(own: str, *, ask: bool, peers: list[Value]) -> str:
    """Whose view this is, in one sentence; nothing where the other side has answered."""
    if any(peer["answered"] for peer in peers):
        return ""
    if not ask:
        return f"This is what {own} knows; nobody else was asked."
    if not peers:
        return ""
    return f"This is what {own} knows; {peers[0]['explanation']}"
