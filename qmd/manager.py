"""The queue manager: queues, what is sent, what is received.  Core and storage meet here.

    application ──send──► rows ──(commit)──► answer; readers or links are woken
    peer ──session──► incoming.py ──(commit)──► acknowledgment; readers are woken
    application ──take──► a copy ──remove──► (commit) ──► answer; the message is gone

Nothing here waits for the disk on the hot path: rows go into the open batch,
and what follows from their being durable is a callback of its commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec
import structlog

from protocol import DirectQueueName, UserMessage, parse_user_message, patch_class
from protocol.direct_name import DirectName, parse_wire_name, queue_key
from protocol.errors import InvalidName, ProtocolError
from protocol.format_name import FormatName, PrivateName, parse_destination
from protocol.identifiers import guid_text
from protocol.message_class import MessageClass
from qmd import frames
from qmd.compose import (
    LABEL_CHARACTERS_MAX,
    NO_ADDRESS,
    PRIORITY_MAX,
    QueueAddress,
    check,
    compose,
    packet_size,
    queue_address,
    reply_address,
)
from qmd.core.fate import consequences, reason_text
from qmd.core.stored_packet import is_transactional, receive_deadline_s, wants_dead_letter
from qmd.environment import Environment
from qmd.frames import AUTOMATIC, EXPRESS, RECOVERABLE, TRANSACTIONAL, NewMessage, StoredMessage
from qmd.incoming import Incoming
from qmd.local_queue import LocalQueue, Reader, Waiter
from qmd.log import LimitedLog
from qmd.numbers import Numbers
from qmd.outgoing import Outgoing
from qmd.outgoing_queue import OutgoingQueue
from qmd.peers import Peers
from qmd.refusal import Refusal
from qmd.settings import Settings
from qmd.timers import Timers
from qmd.usage import Usage
from storage import Storage, StorageOptions
from storage import history as history_rows
from storage import messages as message_rows
from storage import outcomes as outcome_rows
from storage import outgoing as outgoing_rows
from storage import queues as queue_rows
from storage import sequences as sequence_rows
from storage.batch import Batch
from storage.errors import QueueExists, StoredError
from storage.keys import (
    ARRIVAL_MAX,
    LOOKUP_BITS,
    LOOKUP_MASK,
    OUTGOING_TRANSACTIONAL_LEVEL,
)
from storage.messages import MessageRow
from storage.pages import Totals

log = structlog.get_logger()

ARRIVALS_BLOCK = 1_000_000  # numbers reserved at once: one row written for so many messages
MESSAGE_NUMBERS_BLOCK = 100_000
ROUTES_MAX = 10_000  # spellings of destinations, remembered with what they lead to
REFILL_ROWS = 512
REFILL_BYTES = 4 * 1024 * 1024
PEEK_ROWS_MAX = 1000
OUTCOME_AGE_S = 86_400
PURGE_ROWS = 4096  # deleted in one commit
LEVEL_SHIFT = 44
TRANSACTIONAL_LEVEL = 7
MESSAGE_NUMBER_MASK = 0xFFFFFFFF

Route = LocalQueue | OutgoingQueue


class QueueManager:
    """One queue manager.  `await QueueManager.open(...)`, then `start` its peers and readers."""

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        storage: Storage,
        name: str,
    ) -> None:
        self.settings = settings
        self.environment = environment
        self.storage = storage
        self.name = name
        self.id = storage.identity.queue_manager_id
        self.loop = asyncio.get_running_loop()
        self.started_at = self.loop.time()
        self.stopping = False
        self.listening: list[tuple[str, int]] = []
        self.timers = Timers(self.loop)
        self.usage = Usage()
        self.express_usage = 0
        self._limited_log = LimitedLog(log)
        self.message_numbers = Numbers(storage, "message", MESSAGE_NUMBERS_BLOCK)
        self._arrivals = Numbers(storage, "arrival", ARRIVALS_BLOCK)
        self._transaction_index = 0
        self._routes: dict[str, Route] = {}
        self._reply_addresses: dict[str, QueueAddress] = {"": NO_ADDRESS}
        self.queues: dict[str, LocalQueue] = {}
        self.queues_by_id: dict[int, LocalQueue] = {}
        self.peers = Peers(self)
        self.incoming = Incoming(self)
        self.outgoing = Outgoing(self)
        self.sent_count = 0
        self.taken_count = 0

    # Start and stop.

    @classmethod
    async def open(cls, settings: Settings, environment: Environment, name: str) -> QueueManager:
        """Open the data folder and take up what it holds.  Raises storage.errors.CannotStart."""
        storage = await Storage.open(
            settings.queue_manager.data,
            StorageOptions(
                commit_rows_max=settings.storage.commit_rows_max,
                wal_autocheckpoint_pages=settings.storage.checkpoint_pages,
                message_id_history_entries=settings.delivery.message_id_history_entries,
                disk_reserve_bytes=settings.quotas.disk_reserve_bytes,
                disk_watermark_bytes=settings.quotas.disk_reserve_bytes,
            ),
            now_ms=int(environment.time() * 1000),
            new_id=environment.urandom(16),
        )
        try:
            manager = cls(settings, environment, storage, name)
            await manager._restore()
        except BaseException:
            await storage.close()
            raise
        return manager

    async def _restore(self) -> None:
        await self.message_numbers.start()
        await self._arrivals.start()
        state = await self.storage.read(_read_state)
        for row in state.queues:
            self._adopt(row, *state.messages.get(row.id, (0, 0)))
        for outgoing in state.outgoing_queues:
            totals = state.outgoing.get(outgoing.id)
            self.outgoing.restore(
                outgoing, *(totals or (0, 0)), state.transactional.get(outgoing.id, 0)
            )
        for stream in state.streams:
            queue = self.queues_by_id.get(stream.queue_id)
            if queue is not None:
                self.incoming.restore_stream(
                    stream.id, stream.source, queue, stream.sequence_id, stream.number
                )
            else:
                self.incoming.reserve_stream_id(stream.id)
        wall, now = self.environment.time(), self.loop.time()
        for entry in state.history:
            age_s = max(0.0, wall - entry.at_s)
            self.incoming.restore_history(entry.source, entry.number, now - age_s)

    async def stop(self) -> None:
        """End the sessions and let the disk finish; what was not acknowledged stays to be sent."""
        self.stopping = True
        self.peers.stop()
        await asyncio.sleep(0)  # what the sessions still say is written
        self.timers.cancel_all()
        await self.storage.close()

    # Names.

    def find_queue(self, text: str) -> LocalQueue:
        """Our queue by any spelling.  Raises Refusal."""
        route = self._route(text)
        if isinstance(route, LocalQueue):
            return route
        raise Refusal(
            "no_such_queue",
            f"{route.destination} is a queue of another computer",
            "Read it there: this queue manager only reads its own queues.",
        )

    def find_outgoing(self, text: str) -> OutgoingQueue:
        """The outgoing queue to a destination by any spelling.  Raises Refusal."""
        try:
            name = parse_destination(text, local_host=".")
        except InvalidName as error:
            raise Refusal("bad_name", f"{text!r} is no queue's name: {error}") from error
        queue = self.outgoing.find(name.key)
        if queue is None:
            raise Refusal(
                "no_such_queue",
                f"there is no outgoing queue to {name}",
                "See `qmd outgoing list`; a queue appears with its first message.",
            )
        return queue

    def queue_by_wire_name(self, wire_name: bytes) -> LocalQueue | None:
        """Our queue by its name in a packet; whatever way to us the name's host part says."""
        try:
            key = queue_key(parse_wire_name(wire_name))
        except ProtocolError:
            return None
        return None if key is None else self.queues.get(key)

    def describe(self, message: UserMessage) -> str:
        """The destination of a packet, for people."""
        user = message.user
        destination = user.destination_queue
        if isinstance(destination, DirectQueueName):
            with contextlib.suppress(ProtocolError):
                return str(parse_wire_name(destination.name))
        if isinstance(destination, int):
            return str(PrivateName(user.queue_manager_address, destination))
        return "a queue that this queue manager does not know"

    def is_local(self, name: DirectName) -> bool:
        """Whether a direct name stands for this queue manager."""
        host, port = name.host.casefold(), name.port or 1801
        if host == ".":
            return True
        if name.transport == "OS":
            own = {self.name.casefold(), "localhost", *self.settings.queue_manager.aliases}
            if host not in own and host.partition(".")[0] != self.name.casefold():
                return False
            return name.port is None or self._listens_at_port(port)
        return any(
            port == own_port and _is_own_address(host, own_host)
            for own_host, own_port in self.listening
        )

    def _listens_at_port(self, port: int) -> bool:
        return any(port == own for _, own in self.listening)

    def _route(self, text: str) -> Route:
        route = self._routes.get(text)
        if route is not None:
            return route
        try:
            name = parse_destination(text, local_host=".")
        except InvalidName as error:
            raise Refusal("bad_name", f"{text!r} is no queue's name: {error}") from error
        route = self._route_name(name)
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        self._routes[text] = route
        return route

    def _route_name(self, name: FormatName) -> Route:
        if isinstance(name, DirectName) and self.is_local(name):
            key = queue_key(name)
            queue = None if key is None else self.queues.get(key)
            if queue is None:
                raise Refusal(
                    "no_such_queue",
                    f"this queue manager has no queue {key or name}",
                    f"Create it: qmd queue create '{key or name}'",
                )
            return queue
        if isinstance(name, PrivateName) and name.queue_manager == self.id:
            queue = self.queues_by_id.get(name.number)
            if queue is None:
                raise Refusal("no_such_queue", f"this queue manager has no queue {name}")
            return queue
        if isinstance(name, DirectName | PrivateName):
            if isinstance(name, DirectName) and (name.suffix or name.system):
                raise Refusal(
                    "read_only",
                    f"{name} is a journal or dead-letter queue of another computer",
                    "Such queues can be read on their own computer, and not be sent to.",
                )
            return self.outgoing.queue_for(name)
        raise Refusal(
            "bad_name",
            f"{name} needs a directory, and this queue manager has none",
            "Use a direct name, for example DIRECT=OS:host\\private$\\orders.",
        )

    # Sending.

    def send(
        self, messages: list[NewMessage], token: bytes, done: Callable[[list[str]], None]
    ) -> None:
        """Take over all of the messages or none; `done(ids)` once they are durable.

        Raises Refusal when none was taken over.
        """
        if self.stopping:
            raise Refusal("stopping", "this queue manager is stopping", "Try again in a moment.")
        routes = self._check(messages)
        batch = self.storage.batch
        wall = self.environment.time()
        wall_s, wall_ms = int(wall), int(wall * 1000)
        own_guid = guid_text(self.id)
        ids: list[str] = []
        to_queues: dict[LocalQueue, list[StoredMessage]] = {}
        to_send: dict[OutgoingQueue, list[tuple[int, bytes]]] = {}
        express: dict[OutgoingQueue, list[tuple[int, bytes]]] = {}
        for new, (route, delivery) in zip(messages, routes, strict=True):
            number = self.message_numbers.next() & MESSAGE_NUMBER_MASK
            ids.append(f"{own_guid}\\{number}")
            if isinstance(route, OutgoingQueue):
                if delivery == TRANSACTIONAL:
                    sequence_number, key = route.next_key()
                    position = self._position(route.sequence.sequence_id, sequence_number)
                else:
                    key, position = self.next_lookup_id(PRIORITY_MAX - new.priority), None
                packet = self._compose(new, route.address, number, wall_s, delivery, position)
                self.outgoing.append(route, key, packet, batch)
                kind = express if delivery == EXPRESS else to_send
                kind.setdefault(route, []).append((key, packet))
            else:
                level = PRIORITY_MAX - (0 if delivery == TRANSACTIONAL else new.priority)
                position = self._position(0, 0) if delivery == TRANSACTIONAL else None
                packet = self._compose(new, route.address, number, wall_s, delivery, position)
                stored = StoredMessage(self.next_lookup_id(level), wall_ms, packet)
                self._enter(route, stored, batch)
                if delivery != EXPRESS:
                    to_queues.setdefault(route, []).append(stored)
        self.sent_count += len(messages)
        for queue in to_send:
            if any(key >> LEVEL_SHIFT == OUTGOING_TRANSACTIONAL_LEVEL for key, _ in to_send[queue]):
                self.outgoing.save(queue, batch)
        for queue, packets in express.items():
            self.outgoing.appended(queue, packets)
        if token:
            batch.record_outcome(token, msgspec.msgpack.encode(ids), wall_s)
        if to_queues or to_send or token:
            batch.when_durable(partial(self._sent, to_queues, to_send, ids, done))
        else:
            done(ids)

    def _sent(
        self,
        to_queues: dict[LocalQueue, list[StoredMessage]],
        to_send: dict[OutgoingQueue, list[tuple[int, bytes]]],
        ids: list[str],
        done: Callable[[list[str]], None],
    ) -> None:
        """The commit has returned: tell the application, and move the messages on."""
        done(ids)
        for queue, messages in to_queues.items():
            queue.arrived(messages)
            self.serve(queue)
        for outgoing, packets in to_send.items():
            self.outgoing.appended(outgoing, packets)

    def _check(self, messages: list[NewMessage]) -> list[tuple[Route, int]]:
        """Where each message goes, and how; raises Refusal before anything is done."""
        routes: list[tuple[Route, int]] = []
        added: dict[Route, int] = {}
        total = 0
        for new in messages:
            check(new)
            route = self._route(new.destination)
            delivery = new.delivery
            if isinstance(route, LocalQueue):
                delivery = self._local_delivery(route, delivery)
            elif delivery == AUTOMATIC:
                delivery = RECOVERABLE
            self._reply_address(new.admin_queue)
            self._reply_address(new.response_queue)
            size = packet_size(
                new,
                route.address,
                self._reply_address(new.admin_queue),
                self._reply_address(new.response_queue),
                delivery,
            )
            if len(new.body) > self.settings.quotas.message_bytes_max:
                raise Refusal(
                    "too_large",
                    f"the body has {len(new.body)} bytes;"
                    f" {self.settings.quotas.message_bytes_max} are allowed",
                    "See message_bytes_max in the section [quotas] of the configuration.",
                )
            total += size
            before = added.get(route, 0)
            added[route] = before + size
            if isinstance(route, LocalQueue) and not route.has_room(before + size):
                raise Refusal(
                    "over_quota",
                    f"queue {route.name} is over its quota: {route.bytes} of"
                    f" {route.quota_bytes} bytes are used, the message needs {size}",
                    "Receive or purge messages, or create the queue with a larger quota.",
                )
            routes.append((route, delivery))
        if (full := self.is_full(total)) is not None:
            code = "disk_full" if self.storage.full else "over_quota"
            raise Refusal(code, full, "Receive messages, or make room.")
        return routes

    def _local_delivery(self, queue: LocalQueue, delivery: int) -> int:
        if queue.is_read_only:
            raise Refusal(
                "read_only",
                f"{queue.name} is a queue of the queue manager itself",
                "Journals and dead-letter queues can be read, and not be sent to.",
            )
        if delivery == AUTOMATIC:
            return TRANSACTIONAL if queue.transactional else RECOVERABLE
        if queue.transactional and delivery != TRANSACTIONAL:
            raise Refusal(
                "wrong_delivery",
                f"queue {queue.name} is transactional and takes transactional messages only",
                "Send it with --transactional.",
            )
        if not queue.transactional and delivery == TRANSACTIONAL:
            raise Refusal(
                "wrong_delivery",
                f"queue {queue.name} is not transactional and takes no transactional messages",
                "Send it with --recoverable or --express, or create a transactional queue.",
            )
        return delivery

    def _compose(
        self,
        new: NewMessage,
        destination: QueueAddress,
        number: int,
        wall_s: int,
        delivery: int,
        position: tuple[int, int, int] | None,
    ) -> bytes:
        return compose(
            new,
            source=self.id,
            destination=destination,
            admin=self._reply_addresses[new.admin_queue],
            response=self._reply_addresses[new.response_queue],
            message_number=number,
            sent_time_s=wall_s,
            delivery=delivery,
            position=position,
            time_to_reach_queue_s=int(self.settings.delivery.time_to_reach_queue_s),
        )

    def _position(self, sequence_id: int, number: int) -> tuple[int, int, int]:
        self._transaction_index = self._transaction_index + 1 & 0xFFFFF
        return sequence_id, number, self._transaction_index

    def _reply_address(self, text: str) -> QueueAddress:
        """An administration or response queue as a packet names it; ours get our name."""
        address = self._reply_addresses.get(text)
        if address is None:
            try:
                name = parse_destination(text, local_host=self.name)
            except InvalidName as error:
                raise Refusal("bad_name", f"{text!r} is no queue's name: {error}") from error
            address = reply_address(name)
            if len(self._reply_addresses) >= ROUTES_MAX:
                self._reply_addresses = {"": NO_ADDRESS}
            self._reply_addresses[text] = address
        return address

    def send_packet(self, name: FormatName, packet: bytes, batch: Batch) -> None:
        """A packet of our own making: an acknowledgment, to a queue here or elsewhere."""
        try:
            route = self._route_name(name)
        except Refusal as refusal:
            self.log_limited("acknowledgment_not_sent", str(name), reason=refusal.text)
            return
        priority = packet[2] & 7
        key = self.next_lookup_id(PRIORITY_MAX - priority)
        if isinstance(route, OutgoingQueue):
            self.outgoing.append(route, key, packet, batch)
            if key in route.express:
                self.outgoing.appended(route, [(key, packet)])
            else:
                batch.when_durable(partial(self.outgoing.appended, route, [(key, packet)]))
            return
        if route.transactional or route.is_read_only:
            self.log_limited(
                "acknowledgment_not_sent", str(name), reason="the queue takes no such messages"
            )
            return
        stored = StoredMessage(key, int(self.environment.time() * 1000), packet)
        if not self._enter(route, stored, batch):
            batch.when_durable(partial(self._arrived, route, [stored]))

    def _enter(self, queue: LocalQueue, stored: StoredMessage, batch: Batch) -> bool:
        """A message for our own queue; True when it is express, and there already."""
        packet = stored.packet
        queue.messages += 1
        queue.grow(len(packet))
        if not packet[60] & 0x60:
            queue.express_arrived(stored)
            self.serve(queue)
            return True
        batch.insert_message(
            queue.id << LOOKUP_BITS | stored.lookup_id,
            packet,
            stored.arrived_at_ms,
            receive_deadline_s(packet),
            stored.reason,
        )
        return False

    def _arrived(self, queue: LocalQueue, messages: list[StoredMessage]) -> None:
        queue.arrived(messages)
        self.serve(queue)

    def next_lookup_id(self, level: int) -> int:
        return level << LEVEL_SHIFT | self._arrivals.next()

    def is_full(self, size: int) -> str | None:
        """Why no more can be stored now, or None."""
        quota = self.settings.quotas.computer_bytes
        if self.usage.bytes + size > quota:
            return (
                f"the computer quota is reached: {self.usage.bytes} of {quota} bytes are used"
                " ([quotas] computer)"
            )
        if not self.storage.room(self.loop.time()):
            return "the disk of the data folder is nearly full"
        return None

    # Dead letters and journals.

    def dead_letter_queue(self, packet: bytes) -> LocalQueue:
        """[MS-MQDMPR] 3.1.1.1: transactional messages have a dead-letter queue of their own."""
        if is_transactional(packet):
            return self.queues_by_id[queue_rows.TRANSACTIONAL_DEAD_LETTER_ID]
        return self.queues_by_id[queue_rows.DEAD_LETTER_ID]

    def dead_letter(self, packet: bytes, reason: str, wall_ms: int) -> None:
        """Keep a message that ends here, with its reason, in the open batch."""
        self._keep(self.dead_letter_queue(packet), packet, reason, wall_ms)

    def journal(self, packet: bytes) -> None:
        """Keep a copy of a message that was delivered."""
        queue = self.queues_by_id[queue_rows.JOURNAL_ID]
        if queue.bytes + len(packet) > self.settings.quotas.journal_bytes:
            self.log_limited("journal_full", "journal", reason="[quotas] journal is reached")
            return
        self._keep(queue, packet, None, int(self.environment.time() * 1000))

    def _keep(self, queue: LocalQueue, packet: bytes, reason: str | None, wall_ms: int) -> None:
        stored = StoredMessage(self.next_lookup_id(TRANSACTIONAL_LEVEL), wall_ms, packet, reason)
        queue.messages += 1
        queue.grow(len(packet))
        batch = self.storage.batch
        batch.insert_message(
            queue.id << LOOKUP_BITS | stored.lookup_id, packet, wall_ms, None, reason
        )
        batch.when_durable(partial(self._arrived, queue, [stored]))

    # Receiving.

    def take(
        self,
        reader: Reader,
        queue: LocalQueue,
        limit: int,
        wait_s: float,
        answer: Callable[[list[StoredMessage]], None],
    ) -> None:
        """`answer` gets up to `limit` messages, at once or when there are some."""
        waiter = Waiter(reader, limit, wait_s != frames.NO_WAIT, answer)
        queue.waiters.append(waiter)
        self.serve(queue)
        if wait_s > 0 and waiter in queue.waiters:
            self.timers.at(self.loop.time() + wait_s, waiter, partial(self._waited_enough, queue))

    def _waited_enough(self, queue: LocalQueue, waiter: Waiter) -> None:
        if waiter in queue.waiters:
            queue.waiters.remove(waiter)
            waiter.answer([])

    def serve(self, queue: LocalQueue) -> None:
        """Give what is ready to those who wait, in the order of their asking."""
        watchers, queue.watchers = queue.watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)
        wall_s = int(self.environment.time())
        while queue.waiters:
            waiter = queue.waiters[0]
            messages = queue.take(waiter.reader, waiter.limit, wall_s)
            if queue.expired:
                self.expire_received(queue)
            if not messages:
                break
            queue.waiters.popleft()
            self.timers.cancel(waiter)
            self.taken_count += len(messages)
            waiter.answer(messages)
        if queue.window.wants_refill or queue.window.needs_refill:
            self._refill(queue)
        elif queue.waiters and queue.window.horizon is None:
            self._answer_impatient(queue)

    def _answer_impatient(self, queue: LocalQueue) -> None:
        """There is nothing, and those who do not want to wait are told so."""
        impatient = [waiter for waiter in queue.waiters if not waiter.wait]
        for waiter in impatient:
            queue.waiters.remove(waiter)
            waiter.answer([])

    def _refill(self, queue: LocalQueue) -> None:
        start = queue.window.begin_refill()
        self.storage.batch.read_after(
            lambda db: message_rows.page(db, queue.id, start, REFILL_ROWS, REFILL_BYTES),
            partial(self._refilled, queue),
        )

    def _refilled(self, queue: LocalQueue, rows: list[MessageRow]) -> None:
        entries = [(row.key & LOOKUP_MASK, _stored_message(row), len(row.packet)) for row in rows]
        size = sum(entry[2] for entry in entries)
        queue.window.refill(entries, complete=len(rows) < REFILL_ROWS and size < REFILL_BYTES)
        self.serve(queue)

    def remove(
        self,
        reader: Reader,
        queue: LocalQueue,
        lookup_ids: list[int],
        token: bytes,
        done: Callable[[int], None],
    ) -> None:
        """Messages that `reader` took go for good; `done(count)` once that is durable."""
        mine = reader.taken.get(queue, set())
        missing = [lookup_id for lookup_id in lookup_ids if lookup_id not in mine]
        if missing:
            raise Refusal(
                "not_taken",
                f"message {missing[0]} of {queue.name} was not taken on this connection",
                "Take messages first; they go back when their connection ends.",
            )
        mine.difference_update(lookup_ids)
        batch = self.storage.batch
        batch.delete_messages([queue.id << LOOKUP_BITS | lookup_id for lookup_id in lookup_ids])
        if token:
            batch.record_outcome(
                token, msgspec.msgpack.encode(len(lookup_ids)), int(self.environment.time())
            )
        batch.when_durable(partial(self._removed, queue, lookup_ids, done))

    def _removed(
        self, queue: LocalQueue, lookup_ids: list[int], done: Callable[[int], None]
    ) -> None:
        queue.forget(lookup_ids)
        done(len(lookup_ids))

    def give_back(self, reader: Reader, queue: LocalQueue, lookup_ids: list[int]) -> int:
        """Messages that `reader` took return to their old place; how many did."""
        count = queue.put_back(reader, lookup_ids)
        if count:
            self.serve(queue)
        return count

    def leave(self, reader: Reader) -> None:
        """A reader's connection has ended: what it took, and did not remove, is ready again."""
        for queue, mine in list(reader.taken.items()):
            if mine:
                self.give_back(reader, queue, sorted(mine))
        for queue in self.queues.values():
            for waiter in [waiter for waiter in queue.waiters if waiter.reader is reader]:
                queue.waiters.remove(waiter)
                self.timers.cancel(waiter)

    async def peek(
        self, queue: LocalQueue, start: int, limit: int, wait_s: float
    ) -> list[StoredMessage]:
        """Ready messages from lookup id `start` on; nothing is taken."""
        deadline = None if wait_s < 0 else self.loop.time() + wait_s
        while True:
            watcher: asyncio.Future[None] = self.loop.create_future()
            queue.watchers.append(watcher)
            messages = await self._look(queue, start, min(limit, PEEK_ROWS_MAX))
            if messages or wait_s == frames.NO_WAIT or queue.deleted:
                return messages
            try:
                async with asyncio.timeout_at(deadline):
                    await watcher
            except TimeoutError:
                return []

    async def _look(self, queue: LocalQueue, start: int, limit: int) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        first = start
        while len(found) < limit:
            rows = await self.storage.read(
                partial(_page, queue_id=queue.id, start=start, rows_max=limit - len(found))
            )
            found += [
                _stored_message(row) for row in rows if row.key & LOOKUP_MASK not in queue.taken
            ]
            if not rows:
                break
            start = (rows[-1].key & LOOKUP_MASK) + 1
            if len(rows) < limit and sum(len(row.packet) for row in rows) < REFILL_BYTES:
                break
        # Express messages are nowhere on disk: they belong among those that were read.
        limit_id = found[-1].lookup_id if len(found) >= limit else LOOKUP_MASK
        express = [
            message
            for lookup_id, message in queue.express.items()
            if first <= lookup_id <= limit_id and lookup_id not in queue.taken
        ]
        return sorted(found + express, key=lambda message: message.lookup_id)[:limit]

    # The queues themselves.

    async def create_queue(
        self,
        name: str,
        *,
        transactional: bool,
        label: str,
        journal: bool,
        quota_bytes: int | None,
    ) -> LocalQueue:
        """A new queue of ours.  Raises Refusal."""
        path = self._own_path(name)
        quota = self.settings.quotas.queue_bytes if quota_bytes is None else quota_bytes
        if quota < 0:
            raise Refusal("bad_request", f"a quota of {quota} bytes is none", "Give 0 or more.")
        if len(label) > LABEL_CHARACTERS_MAX:
            raise Refusal(
                "bad_request",
                f"the label has {len(label)} characters; {LABEL_CHARACTERS_MAX} are allowed",
            )
        try:
            row = await self.storage.batch.run(
                partial(
                    queue_rows.create,
                    name=path,
                    transactional=transactional,
                    now_s=int(self.environment.time()),
                    label=label,
                    journal=journal,
                    quota_bytes=quota,
                )
            )
        except QueueExists as error:
            raise Refusal(
                "queue_exists", str(error), "Choose another name, or delete it first."
            ) from error
        except StoredError as error:
            raise Refusal("bad_request", str(error)) from error
        log.info("queue_created", queue=path, transactional=transactional)
        return self._adopt(row, 0, 0)

    async def delete_queue(self, queue: LocalQueue) -> int:
        """The queue and what is in it; how many messages that were.  Raises Refusal."""
        if queue.is_system:
            raise Refusal(
                "read_only",
                f"{queue.name} belongs to the queue manager and cannot be deleted",
                "Purge it instead.",
            )
        count = await self.purge_queue(queue)
        del self.queues[queue.key]
        del self.queues_by_id[queue.id]
        queue.deleted = True
        self._names_changed()
        self.incoming.forget_queue(queue)
        rest = await self.storage.batch.run(partial(queue_rows.delete, queue_id=queue.id))
        queue.shrink(queue.bytes)
        waiters, queue.waiters = queue.waiters, type(queue.waiters)()
        for waiter in waiters:
            self.timers.cancel(waiter)
            waiter.answer([])
        self.serve(queue)
        log.info("queue_deleted", queue=queue.name, messages=count + rest.messages)
        return count + rest.messages

    async def purge_queue(self, queue: LocalQueue) -> int:
        """Delete every message that is there now and not taken; how many those were."""
        last = self.next_lookup_id(TRANSACTIONAL_LEVEL)
        count = 0
        while True:
            keys = await self.storage.read(
                partial(message_rows.keys, queue_id=queue.id, rows_max=PURGE_ROWS)
            )
            doomed = [
                key
                for key in keys
                if key & ARRIVAL_MAX < last & ARRIVAL_MAX and key & LOOKUP_MASK not in queue.taken
            ]
            express = [lookup_id for lookup_id in queue.express if lookup_id not in queue.taken]
            if not doomed and not express:
                return count
            purger = Reader()
            for key in doomed:
                queue.hold(purger, key & LOOKUP_MASK)
            for lookup_id in express:
                queue.hold(purger, lookup_id)
            purged = await self.storage.batch.run(partial(message_rows.remove, keys=doomed))
            queue.forget(sorted(purger.taken[queue]))
            queue.shrink(purged.bytes)
            count += purged.messages + len(express)

    def _own_path(self, name: str) -> str:
        """The path of a queue of ours, as it is to be created.  Raises Refusal."""
        try:
            parsed = parse_destination(name, local_host=".")
        except InvalidName as error:
            raise Refusal("bad_name", f"{name!r} is no queue's name: {error}") from error
        if not isinstance(parsed, DirectName) or not self.is_local(parsed):
            raise Refusal(
                "bad_name",
                f"{parsed} is not on this computer",
                "Create a queue where it shall be, for example private$\\orders.",
            )
        path = parsed.local_path
        if path.suffix or path.system or path.subqueue or not path.private:
            raise Refusal(
                "bad_name",
                f"{path} cannot be created: only private queues can",
                "Use a name such as private$\\orders.",
            )
        return str(path)

    def _adopt(self, row: queue_rows.QueueRow, messages: int, size: int) -> LocalQueue:
        path = parse_destination(row.name, local_host=self.name)
        assert isinstance(path, DirectName)
        key = queue_key(path)
        assert key is not None
        queue = LocalQueue(
            id=row.id,
            name=row.name,
            key=key,
            label=row.label,
            transactional=row.transactional,
            journal=row.journal,
            quota_bytes=row.quota_bytes,
            is_system=row.system,
            created_at_s=row.created_at_s,
            address=queue_address(path),
            usage=self.usage,
            messages=messages,
            size=size,
        )
        self.queues[key] = queue
        self.queues_by_id[row.id] = queue
        self._names_changed()
        return queue

    def _names_changed(self) -> None:
        """What names stand for has to be found out anew."""
        self._routes.clear()
        self.incoming.queues_changed()

    # What became of a request.

    async def outcome(self, token: bytes) -> object:
        """The answer to an earlier request with this token; None when it was not done."""
        found: asyncio.Future[bytes | None] = self.loop.create_future()
        # After the open batch, which may hold the very request.
        self.storage.batch.read_after(partial(outcome_rows.find, token=token), found.set_result)
        result = await found
        return None if result is None else msgspec.msgpack.decode(result)

    # Time.

    def expire_received(self, queue: LocalQueue) -> None:
        """Messages that nobody received in time.  [MS-MQDMPR] 3.1.7.2.7"""
        messages, queue.expired = queue.expired, []
        self.end_unreceived(
            queue, [message.lookup_id for message in messages], MessageClass.NACK_RECEIVE_TIMEOUT
        )

    def end_unreceived(
        self, queue: LocalQueue, lookup_ids: list[int], message_class: MessageClass
    ) -> int:
        """Messages leave a queue without having been received, and their senders are told.

        Returns how many; what somebody has taken stays.
        """
        wall_ms = int(self.environment.time() * 1000)
        reason = reason_text(message_class, queue=queue.format_name)
        expirer = Reader()
        held = [lookup_id for lookup_id in lookup_ids if queue.hold(expirer, lookup_id)]
        if not held:
            return 0
        batch = self.storage.batch
        places = {lookup_id: self.next_lookup_id(TRANSACTIONAL_LEVEL) for lookup_id in held}
        express = {
            lookup_id: queue.express[lookup_id].packet
            for lookup_id in held
            if lookup_id in queue.express
        }

        def bury(db: sqlite3.Connection) -> list[tuple[int, bytes]]:
            """(lookup id, packet) of those that were stored, off the queue and kept as dead."""
            buried = []
            for lookup_id in held:
                row = message_rows.find(db, queue.id << LOOKUP_BITS | lookup_id)
                if row is not None:
                    buried.append((lookup_id, row.packet))
            message_rows.delete(
                db, [queue.id << LOOKUP_BITS | lookup_id for lookup_id, _ in buried]
            )
            message_rows.insert(
                db,
                [
                    (
                        self.dead_letter_queue(packet).id << LOOKUP_BITS | places[lookup_id],
                        wall_ms,
                        None,
                        reason,
                        patch_class(packet, message_class),
                    )
                    for lookup_id, packet in [*buried, *express.items()]
                    if wants_dead_letter(packet)
                ],
            )
            return buried

        def buried(done: asyncio.Future[list[tuple[int, bytes]]]) -> None:
            if done.cancelled() or done.exception() is not None:
                return  # the storage failed, and the daemon stops
            ended = [*done.result(), *express.items()]
            queue.forget(held)
            queue.shrink(sum(len(packet) for _, packet in done.result()))
            for lookup_id, packet in ended:
                if wants_dead_letter(packet):
                    dead = self.dead_letter_queue(packet)
                    dead.messages += 1
                    dead.grow(len(packet))
                    copy = patch_class(packet, message_class)
                    self._arrived(dead, [StoredMessage(places[lookup_id], wall_ms, copy, reason)])
                original = parse_user_message(packet)
                result = consequences(
                    original,
                    message_class,
                    at_source=False,
                    insecure_nacks=self.settings.delivery.insecure_nacks,
                )
                if result.acknowledgment is not None:
                    self.outgoing.acknowledge_to_application(
                        original, result.acknowledgment, self.storage.batch
                    )
                if result.final_ack is not None:
                    self.outgoing.send_final_ack(
                        original, result.final_ack, self.storage.batch, address=None
                    )
            log.info("messages_expired", queue=queue.name, count=len(ended))

        batch.run(bury).add_done_callback(buried)
        return len(held)

    def forget_old(self) -> None:
        """Drop what is kept for a while only: message ids, outcomes."""
        wall_s = int(self.environment.time())
        age_s = int(self.settings.delivery.message_id_history_age_s)
        self.incoming.forget_old(self.loop.time())
        self.storage.batch.run(partial(history_rows.forget, before_s=wall_s - age_s))
        self.storage.batch.run(
            partial(outcome_rows.forget, before_s=wall_s - OUTCOME_AGE_S, rows_max=PURGE_ROWS)
        )

    def log_limited(self, event: str, about: str, **values: object) -> None:
        """For what a peer can provoke at will: some lines a minute, then a count."""
        self._limited_log.log("info", event, key=about, now=self.loop.time(), **values)


class _State(NamedTuple):
    """What a start reads from the disk."""

    queues: list[queue_rows.QueueRow]
    messages: dict[int, Totals]
    outgoing_queues: list[outgoing_rows.OutgoingQueueRow]
    outgoing: dict[int, Totals]
    transactional: dict[int, int]
    streams: list[sequence_rows.IncomingSequenceRow]
    history: list[history_rows.HistoryRow]


def _read_state(db: sqlite3.Connection) -> _State:
    return _State(
        queue_rows.list_all(db),
        message_rows.totals_by_queue(db),
        outgoing_rows.list_queues(db),
        outgoing_rows.totals_by_queue(db),
        outgoing_rows.transactional_by_queue(db),
        sequence_rows.list_all(db),
        history_rows.entries(db),
    )


def _page(db: sqlite3.Connection, *, queue_id: int, start: int, rows_max: int) -> list[MessageRow]:
    return message_rows.page(db, queue_id, start, rows_max, REFILL_BYTES)


def _stored_message(row: MessageRow) -> StoredMessage:
    return StoredMessage(
        row.key & LOOKUP_MASK,
        row.arrived_at_ms,
        row.packet,
        row.reason,
        row.abort_count,
        row.move_count,
    )


def _is_own_address(host: str, listening: str) -> bool:
    """Whether `host` leads to the address we listen at."""
    if host == listening:
        return True
    try:
        address, own = ipaddress.ip_address(host), ipaddress.ip_address(listening)
    except ValueError:
        return False
    return address == own or (own.is_unspecified and address.is_loopback)
