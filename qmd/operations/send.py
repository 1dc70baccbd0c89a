"""Taking messages over from applications, and from ourselves.

check all ──► rows into the open batch ──► (commit) ──► answer, then move them on
              (handover.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from protocol.headers import PACKET_BYTES_MAX
from protocol.identifiers import NULL_GUID, guid_text
from protocol.names.format_name import FormatName, PublicName
from protocol.patching import with_queue_manager
from qmd.control_protocol.messages import AUTOMATIC, EXPRESS, RECOVERABLE, TRANSACTIONAL, NewMessage
from qmd.core.packet_fields import is_express, message_number
from qmd.core.sequence import NUMBER_MAX
from qmd.directory.targets import Target
from qmd.errors import Refusal
from qmd.message.build import (
    PRIORITY_MAX,
    QueueAddress,
    check,
    multi_queue_size,
    packet_size,
)
from qmd.naming.fan_out import Copies, Several
from qmd.operations.delivery import delivery_of_copy, delivery_to
from qmd.operations.send_batch import BatchSender, enter, sent_to
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.quotas import queue_refusal
from storage.engine.batch import Batch

if TYPE_CHECKING:
    from qmd.events.recorder import Recorder
    from qmd.naming.destinations import Destinations
    from qmd.peers.sessions import Peers
    from qmd.queues.named_dead_letter_queue import NamedDeadLetterQueues
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.queues.quotas import Admission
    from qmd.runtime.services import Services
    from qmd.transfer.release import OutgoingRelease


Route = LocalQueue | OutgoingQueue
#: Where a message goes, and how: to one queue, or as copies to several.
Chosen = tuple[Route, int] | Copies
HEAD_BYTES_MAX = 1024  # of a packet, mostly: to see whether the disk has room for it


def flat(ids: Iterable[object]) -> list[str]:
    """Those of the messages and of their copies, one after the other."""
    found: list[str] = []
    for each in ids:
        found += [each] if isinstance(each, str) else flat(each)  # type: ignore[arg-type]
    return found


def _elsewhere(new: NewMessage, target: Target, in_transaction: bool) -> int:
    """How a copy goes to a queue of another computer, unless it is refused."""
    if in_transaction or (new.delivery == AUTOMATIC and target.transactional):
        return TRANSACTIONAL
    return RECOVERABLE if new.delivery == AUTOMATIC else new.delivery


def _with_list(
    refusal: Refusal, several: Several, admin: QueueAddress, response: QueueAddress
) -> Refusal:
    """A packet is too large: how much of it is the list of queues."""
    size = multi_queue_size(several.addresses, admin, response)
    count = len(several.addresses)
    text = f"{refusal.text}; {size} bytes of it list the {count} queues that it goes to"
    return Refusal(refusal.code, text, refusal.remedy)


class _Needed:
    """What the messages of one request need."""

    def __init__(self, messages: int) -> None:
        self.messages = messages  # and copies of them
        self.by_queue: dict[LocalQueue, int] = {}  # bytes
        self.bytes = 0
        self.stored_bytes = 0  # of which copies share some
        self.express = False


class MessageSender:
    """All of the messages of a request, or none."""

    def __init__(
        self,
        services: Services,
        admission: Admission,
        outgoing: OutgoingQueues,
        own_dead_letters: NamedDeadLetterQueues,
        peers: Peers,
        recorder: Recorder,
        outgoing_release: OutgoingRelease,
        destinations: Destinations,
    ) -> None:
        self._services = services
        self._admission = admission
        self._outgoing = outgoing
        self._own_dead_letters = own_dead_letters
        self._peers = peers
        self._recorder = recorder
        self._outgoing_release = outgoing_release
        self._destinations = destinations
        self._transaction_index = 0
        self.sent_count = 0

    def connect(self, hand_over: Callable[[bytes, str], BatchSender]) -> None:
        """Name the collaborators that are made after it."""
        self._hand_over = hand_over

    def send(
        self, messages: list[NewMessage], token: bytes, done: Callable[[list[object]], None]
    ) -> None:
        """Take over all of the messages or none; `done(ids)` once they are durable.

        Of a message to several queues the id is a list: that of each copy.
        Raises Refusal when none was taken over.
        """
        chosen = self.check(messages)
        self.take_over(messages, chosen, token, done)

    def ids(self, numbers: Iterable[object]) -> list[object]:
        """The message ids, as text, of messages of ours; a list of them where it is one."""
        own_guid = guid_text(self._services.id)
        return [
            [f"{own_guid}\\{number}" for number in each]
            if isinstance(each, list)
            else f"{own_guid}\\{each}"
            for each in numbers
        ]

    def numbers_of(self, chosen: Sequence[Chosen]) -> list[object]:
        """A number for each message; a list of them where it has copies."""
        following = self._services.ids.next_message_number
        return [
            [following() for _ in each.routes] if isinstance(each, Copies) else following()
            for each in chosen
        ]

    def take_over(
        self,
        messages: list[NewMessage],
        chosen: Sequence[Chosen],
        token: bytes,
        done: Callable[[list[object]], None],
        *,
        numbers: list[object] | None = None,
    ) -> None:
        """What `check` has let through; nothing is refused any more.

        With `numbers`, which they have been promised, the messages are those of one transaction.
        """
        self._outgoing_release.release()  # where all is acknowledged, a new sequence begins
        in_transaction = numbers is not None
        if numbers is None:
            numbers = self.numbers_of(chosen)
        batch_sender = self._hand_over(token, token.hex() if in_transaction else "")
        index, last = self._next_index(), len(messages) - 1
        bounds = index, True, True
        for place, (new, way, number) in enumerate(zip(messages, chosen, numbers, strict=True)):
            if in_transaction:
                bounds = index, place == 0, place == last
            elif place:  # each is a transaction of its own
                bounds = self._next_index(), True, True
            if isinstance(way, Copies):
                assert isinstance(number, list)
                batch_sender.copies(new, way, number, bounds)
                self.sent_count += len(number) - 1
            else:
                assert isinstance(number, int)
                batch_sender.one(new, *way, number, bounds)
        self.sent_count += len(messages)
        batch_sender.end(self.ids(numbers), numbers, done)

    def check(
        self,
        messages: list[NewMessage],
        *,
        in_transaction: bool = False,
        is_part: bool = False,
        several: Sequence[Several | None] | None = None,
    ) -> list[Chosen]:
        """Where each message goes, and how; raises Refusal before anything is done.

        `is_part`: they are not taken over now, but with what comes later in their transaction.
        `several`: what lists of destinations stood for when it was promised to send to them.
        """
        if self._services.lifecycle.stopping:
            raise Refusal("stopping", "this queue manager is stopping", "Try again in a moment.")
        chosen: list[Chosen] = []
        needed = _Needed(len(messages))
        names = self._destinations
        body_bytes_max = self._services.settings.quotas.message_bytes_max
        for index, new in enumerate(messages):
            check(new)
            aims = (several[index] if several else None) or names.aims(new.destination)
            if new.report_queue:
                names.report_queue(new.report_queue)
            if len(new.body) > body_bytes_max:
                raise Refusal(
                    "body_too_large",
                    f"the body has {len(new.body)} bytes; {body_bytes_max} are allowed",
                    "See message_bytes_max in the section [quotas] of the configuration.",
                )
            if isinstance(aims, Several):
                chosen.append(self._check_copies(new, aims, needed, in_transaction=in_transaction))
            else:
                delivery = self._delivery(aims, new, in_transaction=in_transaction)
                size = packet_size(
                    new,
                    aims.address,
                    names.reply_address(new.admin_queue),
                    names.reply_address(new.response_queue),
                    delivery,
                )
                self._check_way(new, aims, delivery, size, needed)
                needed.stored_bytes += size
                chosen.append((aims, delivery))
        full = self._admission.is_full(
            0 if is_part else needed.bytes,
            express=needed.express,
            messages=needed.messages,
            stored=0 if is_part else needed.stored_bytes,
        )
        if full is not None:
            raise full
        return chosen

    def way_of(self, new: NewMessage) -> tuple[Route, int] | None:
        """Where a message goes, and how; None: it goes to several queues.

        Whether there is room for it is not looked at.  Raises Refusal, MustAsk.
        """
        check(new)
        aims = self._destinations.aims(new.destination)
        if isinstance(aims, Several):
            return None
        return aims, self._delivery(aims, new, in_transaction=False)

    def check_here(self, new: NewMessage) -> None:
        """Raises Refusal where it is known at once that no such message can be sent: the queue is
        to be one of ours, and is not there or takes no such messages."""
        queue = self._destinations.known_here(new.destination)
        if queue is not None:
            self._delivery(queue, new, in_transaction=False)

    def _delivery(self, route: Route, new: NewMessage, *, in_transaction: bool) -> int:
        told = None
        if isinstance(route, OutgoingQueue):
            told = self._destinations.told_kind(new.destination)
        return delivery_to(
            route, new.delivery, in_transaction=in_transaction, told=told, name=new.destination
        )

    def _check_copies(
        self, new: NewMessage, several: Several, needed: _Needed, *, in_transaction: bool
    ) -> Copies:
        """A message to several queues: one that cannot be sent to all of them is sent to none."""
        names = self._destinations
        routes = names.routes(several)
        admin, response = (
            names.reply_address(each) for each in (new.admin_queue, new.response_queue)
        )
        needed.messages += len(routes) - 1
        misfits: set[int] = set()
        # What differs is the destination and the TransactionHeader.
        sizes = {
            delivery: packet_size(
                new, routes[0].address, admin, response, delivery, several.addresses
            )
            - routes[0].address.size
            for delivery in (RECOVERABLE, TRANSACTIONAL)
        }
        deliveries = [_elsewhere(new, each, in_transaction) for each in several.targets]
        # The usual case, a thousand times: nothing can be wrong with it.
        usual: dict[int, list[int]] = {}  # by delivery
        others: list[int] = []
        for index, (route, delivery) in enumerate(zip(routes, deliveries, strict=True)):
            if (
                isinstance(route, OutgoingQueue)
                and not new.dead_letter_queue
                and route.address.size <= PACKET_BYTES_MAX - sizes[max(delivery, RECOVERABLE)]
                and route.sequence.next_number < NUMBER_MAX // 2
                and (delivery == TRANSACTIONAL or not several.targets[index].transactional)
            ):
                usual.setdefault(delivery, []).append(index)
                needed.bytes += sizes[max(delivery, RECOVERABLE)] + route.address.size
            else:
                others.append(index)
        here: dict[int, list[int]] = {}  # by delivery
        singly: list[int] = []
        for index in others:
            target, route = several.targets[index], routes[index]
            try:
                delivery = delivery_of_copy(
                    route,
                    new.delivery,
                    in_transaction=in_transaction,
                    told=target.transactional,
                    name=str(target.name),
                )
                size = sizes[max(delivery, RECOVERABLE)] + route.address.size
                self._check_way(new, route, delivery, size, needed)
            except Refusal as refusal:
                if refusal.code in ("packet_too_large", "large_message_elsewhere"):
                    refusal = _with_list(refusal, several, admin, response)
                raise several.refused(target, refusal) from refusal
            if (
                delivery == TRANSACTIONAL
                and isinstance(route, LocalQueue)
                and not route.transactional
            ):
                misfits.add(index)
            deliveries[index] = delivery
            if (
                isinstance(route, LocalQueue)
                and delivery != EXPRESS
                and not new.dead_letter_queue
                and not new.acknowledge  # somebody may have to be told of each
                and not new.report_queue
                and index not in misfits
            ):
                here.setdefault(delivery, []).append(index)
            else:
                singly.append(index)
        if EXPRESS in usual:
            needed.express = True
            singly = sorted([*singly, *usual.pop(EXPRESS)])
        alike = [*usual.values(), *here.values()]
        shared = min(sizes.values()) - HEAD_BYTES_MAX
        needed.stored_bytes += max(shared, 0) + HEAD_BYTES_MAX * len(routes)
        return Copies(several, routes, deliveries, singly, alike, frozenset(misfits))

    def _check_way(
        self, new: NewMessage, route: Route, delivery: int, size: int, needed: _Needed
    ) -> None:
        """Whether one packet can go this way, with what else is needed.  Raises Refusal."""
        if new.dead_letter_queue:
            self._check_dead_letter_queue(new, delivery)
        self._check_size(route, size)
        if (
            delivery == TRANSACTIONAL
            and isinstance(route, OutgoingQueue)
            and route.sequence.outstanding  # an empty queue begins a new sequence
            and route.sequence.next_number + needed.messages > NUMBER_MAX
        ):
            raise Refusal(
                "sequence_full",
                f"the sequence to {route.destination} has given all of its numbers",
                "Wait until the destination has acknowledged what is under way.",
            )
        if delivery == EXPRESS:
            needed.express = True
        needed.bytes += size
        if isinstance(route, LocalQueue):
            before = needed.by_queue.get(route, 0) + size
            needed.by_queue[route] = before
            if not route.has_room(before):
                raise queue_refusal(route, before)

    def _check_size(self, route: Route, size: int) -> None:
        """Whether a packet can get where it shall."""
        if size <= PACKET_BYTES_MAX:
            return
        peers = self._peers
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
        self._own_dead_letters.check(new.dead_letter_queue, delivery)

    def _next_index(self) -> int:
        """A number for a transaction, of 20 bits.  [MS-MQMQ] 2.2.20.5"""
        self._transaction_index = self._transaction_index + 1 & 0xFFFFF
        return self._transaction_index

    def next_indexes(self, count: int) -> int:
        """Numbers for so many transactions; the first of them, which the others follow."""
        first = self._next_index()
        self._transaction_index = first + count - 1 & 0xFFFFF
        return first

    def send_packet(
        self, name: FormatName, packet: bytes, batch: Batch, *, via: bytes | None = None
    ) -> str:
        """A packet of our own making: an acknowledgment, to a queue here or elsewhere.

        Returns why it cannot be sent there, and is dropped; "" when it is on its way.
        """
        try:
            route = self._destinations.route_name(name, for_acknowledgments=True, via=via)
        except Refusal as refusal:
            self._services.log_limited("acknowledgment_not_sent", str(name), reason=refusal.text)
            return refusal.text
        priority = packet[2] & 7
        key = self._services.ids.next_lookup_id(PRIORITY_MAX - priority)
        if isinstance(route, OutgoingQueue):
            if isinstance(name, PublicName) and self._destinations.told_kind(name):
                reason = f"{name} takes no acknowledgments: it is transactional, as the directory"
                reason += " says"
                self._services.log_limited("acknowledgment_not_sent", str(name), reason=reason)
                return reason
            if isinstance(name, PublicName) and route.address.queue_manager != NULL_GUID:
                packet = with_queue_manager(packet, route.address.queue_manager)
            appended = [self._outgoing.append(route, key, packet, batch)]
            self.tell(route, packet, key)
            if key in route.express:
                self._outgoing.appended(route, appended)
            else:
                batch.when_durable(partial(self._outgoing.appended, route, appended))
            return ""
        if route.transactional or route.is_read_only:
            reason = f"{route.name} takes no acknowledgments: it is " + (
                "transactional" if route.transactional else "one of the queue manager's own"
            )
            self._services.log_limited("acknowledgment_not_sent", str(name), reason=reason)
            return reason
        wall_ms = int(self._services.environment.time() * 1000)
        held = enter(self._services, route, key, wall_ms, packet, batch)
        self.tell(route, packet, key)
        if not is_express(packet):
            batch.when_durable(partial(route.deliver, [held]))
        return ""

    def tell(self, route: Route, packet: bytes, place: int) -> None:
        """Of a packet of our own making."""
        if self._recorder.enabled:
            delivery = EXPRESS if is_express(packet) else RECOVERABLE
            told = sent_to(self._recorder, self._services.id, route, delivery)
            told.numbers.append(message_number(packet))
            told.sizes.append(len(packet))
            told.places.append(place)
