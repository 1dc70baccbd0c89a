"""Taking messages over from applications, and from ourselves.

check all ──► rows into the open batch ──► (commit) ──► answer, then move them on
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from protocol.format_name import FormatName
from protocol.headers import PACKET_BYTES_MAX
from protocol.identifiers import guid_text
from qmd.compose import (
    PRIORITY_MAX,
    QueueAddress,
    check,
    compose,
    packet_size,
)
from qmd.core.sequence import NUMBER_MAX
from qmd.core.stored_packet import is_express, message_number, receive_time_s
from qmd.frames import AUTOMATIC, EXPRESS, RECOVERABLE, TRANSACTIONAL, NewMessage, StoredMessage
from qmd.local_queue import LocalQueue
from qmd.outgoing import Appended
from qmd.outgoing_queue import TRANSACTIONAL_FIRST, OutgoingQueue
from qmd.quotas import queue_refusal
from qmd.recorder import DELIVERIES, Kind
from qmd.refusal import Refusal
from storage.batch import Batch
from storage.keys import LOOKUP_BITS

if TYPE_CHECKING:
    from qmd.manager import QueueManager
    from storage.events import Event


Route = LocalQueue | OutgoingQueue


class Sending:
    """All of the messages of a request, or none."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager
        self._transaction_index = 0

    def send(
        self, messages: list[NewMessage], token: bytes, done: Callable[[list[str]], None]
    ) -> None:
        """Take over all of the messages or none; `done(ids)` once they are durable.

        Raises Refusal when none was taken over.
        """
        routes = self.check(messages)
        self.take_over(messages, routes, token, done)

    def ids(self, numbers: Iterable[int]) -> list[str]:
        """The message ids, as text, of messages of ours."""
        own_guid = guid_text(self._manager.id)
        return [f"{own_guid}\\{number}" for number in numbers]

    def take_over(
        self,
        messages: list[NewMessage],
        routes: list[tuple[Route, int]],
        token: bytes,
        done: Callable[[list[str]], None],
        *,
        numbers: list[int] | None = None,
    ) -> None:
        """What `check` has let through; nothing is refused any more.

        With `numbers`, which they have been promised, the messages are those of one transaction.
        """
        self._manager.outgoing.release()  # where all is acknowledged, a new sequence begins
        batch = self._manager.storage.batch
        wall = self._manager.environment.time()
        wall_s, wall_ms = int(wall), int(wall * 1000)
        in_transaction = numbers is not None
        if numbers is None:
            numbers = [self._manager.next_message_number() for _ in messages]
        ids = self.ids(numbers)
        index = self._next_index()
        last = len(messages) - 1
        to_queues: dict[LocalQueue, list[StoredMessage]] = {}
        to_send: dict[OutgoingQueue, list[Appended]] = {}
        express: dict[OutgoingQueue, list[Appended]] = {}
        recording = self._manager.recorder.enabled
        told: Event | None = None
        told_of: tuple[Route, int] | None = None
        transaction = token.hex() if in_transaction else ""
        for place, (new, chosen) in enumerate(zip(messages, routes, strict=True)):
            number = numbers[place]
            route, delivery = chosen
            if not in_transaction:  # each is a transaction of its own
                bounds = self._next_index(), True, True
            else:
                bounds = index, place == 0, place == last
            if isinstance(route, OutgoingQueue):
                if delivery == TRANSACTIONAL:
                    sequence_number, key = route.next_key()
                    position = route.sequence.sequence_id, sequence_number
                else:
                    key, position = self._manager.next_lookup_id(PRIORITY_MAX - new.priority), None
                packet = self._compose(
                    new, route.address, number, wall_s, delivery, position, bounds
                )
                confirmations = self._manager.confirmations
                is_transactional = delivery == TRANSACTIONAL
                kind = express if delivery == EXPRESS else to_send
                appended = self._manager.outgoing.append(
                    route,
                    key,
                    packet,
                    batch,
                    confirm_by_s=confirmations.confirm_by_s(new) if is_transactional else None,
                    discard=is_transactional and confirmations.discards(new),
                )
                kind.setdefault(route, []).append(appended)
                if new.dead_letter_queue:
                    self._keep_dead_letter(
                        new, number, delivery, "outgoing", route.id << LOOKUP_BITS | key, batch
                    )
            else:
                level = PRIORITY_MAX - (0 if delivery == TRANSACTIONAL else new.priority)
                position = (0, 0) if delivery == TRANSACTIONAL else None
                packet = self._compose(
                    new, route.address, number, wall_s, delivery, position, bounds
                )
                stored = self._stored(self._manager.next_lookup_id(level), wall_ms, packet)
                self._enter(route, stored, batch)
                if delivery != EXPRESS:
                    to_queues.setdefault(route, []).append(stored)
                if new.dead_letter_queue:
                    key = route.id << LOOKUP_BITS | stored.lookup_id
                    self._keep_dead_letter(new, number, delivery, "message", key, batch)
            if recording:
                if told is None or chosen != told_of:
                    told, told_of = self._sent_to(route, delivery, transaction), chosen
                told.numbers.append(number)
                told.sizes.append(len(packet))
                if isinstance(route, LocalQueue):
                    told.places.append(stored.lookup_id)
                else:
                    told.places.append(key)
                    if delivery == TRANSACTIONAL:
                        told.positions.append(sequence_number)
        self._manager.sent_count += len(messages)
        for queue in to_send:
            if any(key >= TRANSACTIONAL_FIRST for key, *_ in to_send[queue]):
                self._manager.outgoing.save(queue, batch)
        for queue, packets in express.items():
            if token:
                # It will be asked for by its token: it must not leave before that is known.
                to_send.setdefault(queue, []).extend(packets)
            else:
                self._manager.outgoing.appended(queue, packets)
        if token:
            batch.record_outcome(token, msgspec.msgpack.encode(numbers), self._manager.clock.now_s)
        if to_queues or to_send or token:
            batch.when_durable(partial(self._sent, to_queues, to_send, ids, done))
        else:
            done(ids)

    def _sent_to(self, route: Route, delivery: int, transaction: str = "") -> Event:
        """What is told of messages of ours that go one way."""
        return self._manager.recorder.group(
            Kind.SENT,
            self._manager.id,
            queue=route.destination if isinstance(route, OutgoingQueue) else route.name,
            sequence_id=route.sequence.sequence_id
            if isinstance(route, OutgoingQueue) and delivery == TRANSACTIONAL
            else 0,
            transaction=transaction,
            delivery=DELIVERIES[delivery],
        )

    def _sent(
        self,
        to_queues: dict[LocalQueue, list[StoredMessage]],
        to_send: dict[OutgoingQueue, list[Appended]],
        ids: list[str],
        done: Callable[[list[str]], None],
    ) -> None:
        """The commit has returned: tell the application, and move the messages on."""
        done(ids)
        for queue, messages in to_queues.items():
            queue.arrived(messages)
            self._manager.reading.serve(queue)
        for outgoing, packets in to_send.items():
            self._manager.outgoing.appended(outgoing, packets)

    def check(
        self,
        messages: list[NewMessage],
        *,
        in_transaction: bool = False,
        is_part: bool = False,
    ) -> list[tuple[Route, int]]:
        """Where each message goes, and how; raises Refusal before anything is done.

        `is_part`: they are not taken over now, but with what comes later in their transaction.
        """
        if self._manager.stopping:
            raise Refusal("stopping", "this queue manager is stopping", "Try again in a moment.")
        routes: list[tuple[Route, int]] = []
        added: dict[Route, int] = {}
        total = 0
        express = False
        names = self._manager.routes
        body_bytes_max = self._manager.settings.quotas.message_bytes_max
        for new in messages:
            check(new)
            route = names.route(new.destination)
            delivery = new.delivery
            if isinstance(route, LocalQueue):
                if in_transaction and not route.transactional:
                    raise Refusal(
                        "not_transactional_queue",
                        f"queue {route.name} is not transactional, and the message is to be sent in"
                        " a transaction",
                        "Send it outside the transaction, or create a transactional queue.",
                    )
                delivery = self._local_delivery(route, delivery)
            elif delivery == AUTOMATIC:
                delivery = TRANSACTIONAL if in_transaction else RECOVERABLE
            size = packet_size(
                new,
                route.address,
                names.reply_address(new.admin_queue),
                names.reply_address(new.response_queue),
                delivery,
            )
            if new.report_queue:
                names.report_queue(new.report_queue)
            if new.dead_letter_queue:
                self._check_dead_letter_queue(new, delivery)
            if len(new.body) > body_bytes_max:
                raise Refusal(
                    "body_too_large",
                    f"the body has {len(new.body)} bytes; {body_bytes_max} are allowed",
                    "See message_bytes_max in the section [quotas] of the configuration.",
                )
            self._check_size(route, size)
            if (
                delivery == TRANSACTIONAL
                and isinstance(route, OutgoingQueue)
                and route.sequence.outstanding  # an empty queue begins a new sequence
                and route.sequence.next_number + len(messages) > NUMBER_MAX
            ):
                raise Refusal(
                    "sequence_full",
                    f"the sequence to {route.destination} has given all of its numbers",
                    "Wait until the destination has acknowledged what is under way.",
                )
            express |= delivery == EXPRESS
            total += size
            before = added.get(route, 0)
            added[route] = before + size
            if isinstance(route, LocalQueue) and not route.has_room(before + size):
                raise queue_refusal(route, before + size)
            routes.append((route, delivery))
        if is_part:
            total = 0
        full = self._manager.is_full(total, express=express, messages=len(messages))
        if full is not None:
            raise full
        return routes

    def _check_size(self, route: Route, size: int) -> None:
        """Whether a packet can get where it shall."""
        if size <= PACKET_BYTES_MAX:
            return
        peers = self._manager.peers
        if isinstance(route, LocalQueue):
            if size > peers.own_packet_bytes_max:
                raise Refusal(
                    "packet_too_large",
                    f"the message makes a packet of {size} bytes; {peers.own_packet_bytes_max} are"
                    " allowed",
                    "Send the body in parts, or a reference to it.",
                )
            return
        allowed = peers.packet_bytes_max(*route.link.hosts)
        if size > allowed == PACKET_BYTES_MAX:
            raise Refusal(
                "large_message_elsewhere",
                f"the message makes a packet of {size} bytes, and {route.destination} takes"
                f" {allowed}: only hosts in large_messages of the section [peers] take larger ones",
                "Name the host there, and this one in its configuration, if it runs qmd too; or"
                " send the body in parts, or a reference to it.",
            )
        if size > allowed:
            raise Refusal(
                "packet_too_large",
                f"the message makes a packet of {size} bytes; {allowed} are allowed",
                "Send the body in parts, or a reference to it.",
            )

    def _check_dead_letter_queue(self, new: NewMessage, delivery: int) -> None:
        if new.dead_letter is False:
            raise Refusal(
                "dead_letter_unwanted",
                "a queue for the dead letter is named, and no dead letter is wanted",
                "Give one of both.",
            )
        self._manager.own_dead_letters.check(new.dead_letter_queue, delivery)

    def _keep_dead_letter(
        self, new: NewMessage, number: int, delivery: int, place: str, key: int, batch: Batch
    ) -> None:
        """In the queue that its application has named, if it dies."""
        own = self._manager.own_dead_letters
        try:
            queue = own.check(new.dead_letter_queue, delivery)
        except Refusal:
            return  # it was deleted since the transaction began: it will be in the system's queue
        own.add(number, queue, place, key, batch, express=delivery == EXPRESS)

    def _local_delivery(self, queue: LocalQueue, delivery: int) -> int:
        if queue.is_read_only:
            raise Refusal(
                "queue_read_only",
                f"{queue.name} is a queue of the queue manager itself"
                if queue.is_system
                else f"{queue.name} is a subqueue or journal",
                "Journals and dead-letter queues can be read, and not be sent to; messages come to"
                " a subqueue by `qmd move`.",
            )
        if delivery == AUTOMATIC:
            return TRANSACTIONAL if queue.transactional else RECOVERABLE
        if queue.transactional and delivery != TRANSACTIONAL:
            raise Refusal(
                "needs_transactional",
                f"queue {queue.name} is transactional and takes transactional messages only",
                "Send it with --transactional.",
            )
        if not queue.transactional and delivery == TRANSACTIONAL:
            raise Refusal(
                "not_transactional",
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
        position: tuple[int, int] | None,
        bounds: tuple[int, bool, bool],
    ) -> bytes:
        index, is_first, is_last = bounds
        return compose(
            new,
            source=self._manager.id,
            destination=destination,
            admin=self._manager.routes.reply_address(new.admin_queue),
            response=self._manager.routes.reply_address(new.response_queue),
            message_number=number,
            sent_time_s=wall_s,
            delivery=delivery,
            position=None if position is None else (*position, index),
            dead_letter=self._manager.confirmations.asks(new)
            if delivery == TRANSACTIONAL
            else new.dead_letter is not False,
            is_first=is_first,
            is_last=is_last,
            time_to_reach_queue_s=int(self._manager.settings.delivery.time_to_reach_queue_s),
            report_queue=(
                self._manager.routes.report_queue(new.report_queue) if new.report_queue else None
            ),
        )

    def _next_index(self) -> int:
        """A number for a transaction, of 20 bits.  [MS-MQMQ] 2.2.20.5"""
        self._transaction_index = self._transaction_index + 1 & 0xFFFFF
        return self._transaction_index

    def send_packet(
        self, name: FormatName, packet: bytes, batch: Batch, *, via: bytes | None = None
    ) -> bool:
        """A packet of our own making: an acknowledgment, to a queue here or elsewhere.

        False when it cannot be sent there, and is dropped.
        """
        try:
            route = self._manager.routes.route_name(name, for_acknowledgments=True, via=via)
        except Refusal as refusal:
            self._manager.log_limited("acknowledgment_not_sent", str(name), reason=refusal.text)
            return False
        priority = packet[2] & 7
        key = self._manager.next_lookup_id(PRIORITY_MAX - priority)
        if isinstance(route, OutgoingQueue):
            appended = [self._manager.outgoing.append(route, key, packet, batch)]
            self.tell(route, packet, key)
            if key in route.express:
                self._manager.outgoing.appended(route, appended)
            else:
                batch.when_durable(partial(self._manager.outgoing.appended, route, appended))
            return True
        if route.transactional or route.is_read_only:
            self._manager.log_limited(
                "acknowledgment_not_sent", str(name), reason="the queue takes no such messages"
            )
            return False
        stored = self._stored(key, int(self._manager.environment.time() * 1000), packet)
        self.tell(route, packet, key)
        if not self._enter(route, stored, batch):
            batch.when_durable(partial(self._manager.reading.arrived, route, [stored]))
        return True

    def tell(self, route: Route, packet: bytes, place: int) -> None:
        """Of a packet of our own making."""
        if self._manager.recorder.enabled:
            told = self._sent_to(route, EXPRESS if is_express(packet) else RECOVERABLE)
            told.numbers.append(message_number(packet))
            told.sizes.append(len(packet))
            told.places.append(place)

    def _stored(self, lookup_id: int, wall_ms: int, packet: bytes) -> StoredMessage:
        """A message of our own, for our own queue."""
        expires_at_s = self._manager.clock.deadline_s(receive_time_s(packet))
        return StoredMessage(lookup_id, wall_ms, packet, expires_at_s=expires_at_s)

    def _enter(self, queue: LocalQueue, stored: StoredMessage, batch: Batch) -> bool:
        """A message for our own queue; True when it is express, and there already."""
        packet = stored.packet
        queue.messages += 1
        queue.grow(len(packet))
        if is_express(packet):
            queue.express_arrived(stored)
            self._manager.reading.serve(queue)
            return True
        batch.insert_message(
            queue.id << LOOKUP_BITS | stored.lookup_id,
            packet,
            stored.arrived_at_ms,
            stored.expires_at_s,
            stored.reason,
        )
        return False
