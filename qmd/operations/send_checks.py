"""Checks of messages before they are sent: their queues, their sizes, and the room for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from protocol.headers import PACKET_BYTES_MAX
from qmd.control_protocol.messages import AUTOMATIC, EXPRESS, RECOVERABLE, TRANSACTIONAL, NewMessage
from qmd.core.sequence import NUMBER_MAX
from qmd.directory.interface import PRIVACY_OPTIONAL
from qmd.directory.targets import Target
from qmd.errors import Refusal
from qmd.message.addresses import QueueAddress, multi_queue_size
from qmd.message.build import packet_size
from qmd.message.limits import check
from qmd.naming.destinations import Route
from qmd.naming.fan_out import Copies, Several
from qmd.operations.delayed import check_delay
from qmd.operations.delivery import delivery_of_copy, delivery_to
from qmd.queues.local_queue import LocalQueue
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.queues.quotas import queue_refusal

if TYPE_CHECKING:
    from qmd.naming.destinations import Destinations
    from qmd.naming.reply_addresses import ReplyAddresses
    from qmd.peers.sessions import Peers
    from qmd.queues.named_dead_letter_queue import NamedDeadLetterQueues
    from qmd.queues.quotas import Admission
    from qmd.runtime.services import Services

#: The queue and the delivery of a message, or its copies to several queues.
Chosen = tuple[Route, int] | Copies
HEAD_BYTES_MAX = 1024  # of most packets: the estimate for the space on disk of one more copy


class _Needed:
    """The room that the messages of one request need."""

    def __init__(self, messages: int) -> None:
        self.messages = messages  # with the copies of them
        self.by_queue: dict[LocalQueue, int] = {}  # bytes
        self.bytes = 0
        self.stored_bytes = 0  # fewer where copies share their ends
        self.express_bytes = 0


class _CopySizes(NamedTuple):
    """Sizes of the packets of copies, without their destinations, by delivery."""

    recoverable: int
    transactional: int

    def of(self, delivery: int, address: QueueAddress) -> int:
        """Return the size in bytes of the packet of the copy for `address`."""
        size = self.transactional if delivery == TRANSACTIONAL else self.recoverable
        return size + address.size


class SendChecks:
    """Checks of messages, which also find their queues and their deliveries."""

    def __init__(
        self,
        services: Services,
        admission: Admission,
        destinations: Destinations,
        own_dead_letters: NamedDeadLetterQueues,
        peers: Peers,
        replies: ReplyAddresses,
    ) -> None:
        self._services = services
        self._admission = admission
        self._destinations = destinations
        self._own_dead_letters = own_dead_letters
        self._peers = peers
        self._replies = replies

    def check(
        self,
        messages: list[NewMessage],
        *,
        in_transaction: bool = False,
        is_part: bool = False,
        several: Sequence[Several | None] | None = None,
        messages_in_all: int = 0,
    ) -> list[Chosen]:
        """Return the queue and the delivery of each message, or its copies; nothing is sent.

        With `is_part`, the messages are part of a transaction that will send them when it commits:
        they need no room yet.  `several` has, for each message to several queues of a transaction,
        the queues that its destination stood for when the transaction accepted it.
        `messages_in_all` is the number of messages that these stand for.  Raises Refusal when
        one of the messages cannot be sent, and MustAsk.
        """
        if self._services.lifecycle.stopping:
            raise Refusal("stopping", "this queue manager is stopping", "Try again in a moment.")
        chosen: list[Chosen] = []
        needed = _Needed(messages_in_all or len(messages))
        names, replies = self._destinations, self._replies
        body_bytes_max = self._services.settings.quotas.message_bytes_max
        for index, new in enumerate(messages):
            check(new)
            if new.delay_ms or new.deliver_at_ms:
                check_delay(new)
            aims = (several[index] if several else None) or names.aims(new.destination)
            if new.report_queue:
                replies.report_queue(new.report_queue)
            if len(new.body) > body_bytes_max:
                raise Refusal(
                    "body_too_large",
                    f"the body has {len(new.body)} bytes; {body_bytes_max} are allowed",
                    "See message_bytes_max in the section [quotas] of the configuration.",
                )
            if isinstance(aims, Several):
                chosen.append(self._check_copies(new, aims, needed, in_transaction=in_transaction))
            else:
                target = self._known_target(aims, new)
                delivery = _delivery(aims, new, target, in_transaction=in_transaction)
                if target is not None and target.wants_protection:
                    check_target(new, target)
                size = packet_size(
                    new,
                    aims.address,
                    replies.address(new.admin_queue),
                    replies.address(new.response_queue),
                    delivery,
                )
                self._check_way(new, aims, delivery, size, needed)
                needed.stored_bytes += size
                chosen.append((aims, delivery))
        full = self._admission.is_full(
            0 if is_part else needed.bytes,
            express_bytes=0 if is_part else needed.express_bytes,
            messages=0 if messages_in_all else needed.messages,
            stored=0 if is_part else needed.stored_bytes,
        )
        if full is not None:
            raise full
        return chosen

    def way_of(self, new: NewMessage, *, in_transaction: bool = False) -> tuple[Route, int] | None:
        """Return the queue and the delivery of a message; None: it goes to several queues.

        This does not check whether there is room for it.  Raises Refusal, MustAsk.
        """
        check(new)
        aims = self._destinations.aims(new.destination)
        if isinstance(aims, Several):
            return None
        target = self._known_target(aims, new)
        return aims, _delivery(aims, new, target, in_transaction=in_transaction)

    def copies_of(
        self, new: NewMessage, *, in_transaction: bool = False
    ) -> tuple[Several, Sequence[Route], int]:
        """Return the queues of a message to several queues, and the delivery of all copies.

        This does not check whether there is room for them.  Raises Refusal, also if the copies
        would differ in their delivery, and MustAsk.
        """
        check(new)
        several = self._destinations.aims(new.destination)
        assert isinstance(several, Several), "the caller has asked `way_of` first"
        routes = self._destinations.routes(several)
        deliveries = {
            delivery_of_copy(
                route,
                new.delivery,
                in_transaction=in_transaction,
                transactional=target.transactional,
                name=str(target.name),
            )
            for route, target in zip(routes, several.targets, strict=True)
        }
        if len(deliveries) > 1:
            raise Refusal(
                "several_deliveries",
                f"some queues of {new.destination} are transactional and others are not, and a"
                " signature covers the delivery of all copies",
                "Send one message to each kind of queue.",
            )
        return several, routes, deliveries.pop()

    def check_here(self, new: NewMessage) -> None:
        """Raise Refusal if it is known without the directory that such a message cannot be sent:
        its destination is a queue of this computer that does not exist or does not take it."""
        queue = self._destinations.known_here(new.destination)
        if queue is not None:
            _delivery(queue, new, None, in_transaction=False)

    def _known_target(self, route: Route, new: NewMessage) -> Target | None:
        """Return the queue elsewhere as the directory describes it, or None."""
        if not isinstance(route, OutgoingQueue):
            return None
        return self._destinations.known_target(new.destination)

    def _check_copies(
        self, new: NewMessage, several: Several, needed: _Needed, *, in_transaction: bool
    ) -> Copies:
        """Return the copies of a message; it is sent to none of its queues if one refuses it."""
        routes = self._destinations.routes(several)
        sizes = self._copy_sizes(new, several, routes[0].address)
        needed.messages += len(routes) - 1
        deliveries = [_elsewhere(new, each, in_transaction) for each in several.targets]
        usual, others = _separate_usual(new, several, routes, deliveries, sizes, needed)
        misfits: set[int] = set()
        here: dict[int, list[int]] = {}  # by delivery
        singly: list[int] = []
        for index in others:
            route = routes[index]
            delivery = deliveries[index] = self._check_copy(
                new, several, index, route, sizes, needed, in_transaction=in_transaction
            )
            is_here = isinstance(route, LocalQueue)
            if (
                delivery == TRANSACTIONAL
                and isinstance(route, LocalQueue)
                and not route.transactional
            ):
                misfits.add(index)
            if (
                is_here
                and delivery != EXPRESS
                and not new.dead_letter_queue
                and not new.acknowledge  # each arrival may have to be acknowledged
                and not new.report_queue
                and not new.signature  # each is marked for itself
                and index not in misfits
            ):
                here.setdefault(delivery, []).append(index)
            else:
                singly.append(index)
        if EXPRESS in usual:
            singly = sorted([*singly, *usual.pop(EXPRESS)])
        alike = [*usual.values(), *here.values()]
        needed.stored_bytes += max(min(sizes) - HEAD_BYTES_MAX, 0) + HEAD_BYTES_MAX * len(routes)
        return Copies(several, routes, deliveries, singly, alike, frozenset(misfits))

    def _copy_sizes(self, new: NewMessage, several: Several, first: QueueAddress) -> _CopySizes:
        """Return the sizes of copies, which differ in the destination and the TransactionHeader."""
        admin, response = (
            self._replies.address(each) for each in (new.admin_queue, new.response_queue)
        )
        return _CopySizes(
            *(
                packet_size(new, first, admin, response, delivery, several.addresses) - first.size
                for delivery in (RECOVERABLE, TRANSACTIONAL)
            )
        )

    def _check_copy(
        self,
        new: NewMessage,
        several: Several,
        index: int,
        route: Route,
        sizes: _CopySizes,
        needed: _Needed,
        *,
        in_transaction: bool,
    ) -> int:
        """Return the delivery of one copy.  Raises Refusal, which names the target."""
        target = several.targets[index]
        try:
            delivery = delivery_of_copy(
                route,
                new.delivery,
                in_transaction=in_transaction,
                transactional=target.transactional,
                name=str(target.name),
            )
            size = sizes.of(delivery, route.address)
            if target.wants_protection and isinstance(route, OutgoingQueue):
                check_target(new, target)
            self._check_way(new, route, delivery, size, needed)
        except Refusal as refusal:
            if refusal.code in ("packet_too_large", "large_message_elsewhere"):
                refusal = self._with_list(refusal, new, several)
            raise several.refused(target, refusal) from refusal
        return delivery

    def _with_list(self, refusal: Refusal, new: NewMessage, several: Several) -> Refusal:
        """Return the refusal of a packet that is too large, with the size of its list of queues."""
        admin, response = map(self._replies.address, (new.admin_queue, new.response_queue))
        size = multi_queue_size(several.addresses, admin, response)
        count = len(several.addresses)
        text = f"{refusal.text}; {size} bytes of it list the {count} queues that it goes to"
        return Refusal(refusal.code, text, refusal.remedy)

    def _check_way(
        self, new: NewMessage, route: Route, delivery: int, size: int, needed: _Needed
    ) -> None:
        """Check one packet of `size` bytes for `route`, and add it to `needed`.  Raises Refusal."""
        if new.dead_letter_queue:
            self._check_dead_letter_queue(new, delivery)
        _check_protection(new, route)
        self._check_size(route, size)
        if (
            delivery == TRANSACTIONAL
            and isinstance(route, OutgoingQueue)
            and route.sequence.outstanding  # an empty queue begins a new sequence
            and route.sequence.next_number + needed.messages > NUMBER_MAX
        ):
            raise Refusal(
                "sequence_full",
                f"the sequence to {route.destination} has used all of its numbers",
                "Wait until the destination has acknowledged the messages under way.",
            )
        if delivery == EXPRESS:
            needed.express_bytes += size
        needed.bytes += size
        if isinstance(route, LocalQueue):
            before = needed.by_queue.get(route, 0) + size
            needed.by_queue[route] = before
            if not route.has_room(before):
                raise queue_refusal(route, before)

    def _check_size(self, route: Route, size: int) -> None:
        """Check whether a packet of `size` bytes can reach its queue.  Raises Refusal."""
        if size <= PACKET_BYTES_MAX:
            return
        peers = self._peers
        if isinstance(route, LocalQueue):
            if size > peers.hosts.own_packet_bytes_max:
                raise Refusal(
                    "packet_too_large",
                    f"the message makes a packet of {size} bytes;"
                    f" {peers.hosts.own_packet_bytes_max} are allowed",
                    "Send the body in parts, or a reference to it.",
                )
            return
        allowed = peers.hosts.packet_bytes_max(*route.link.hosts)
        if size > allowed == PACKET_BYTES_MAX:
            raise Refusal(
                "large_message_elsewhere",
                f"the message makes a packet of {size} bytes, and {route.destination} accepts"
                f" {allowed}: only hosts in large_messages of the section [peers] accept larger"
                " ones",
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
                "a queue for the dead letter is named, and dead letters are turned off",
                "Give only one of them.",
            )
        self._own_dead_letters.check(new.dead_letter_queue, delivery)


def _delivery(route: Route, new: NewMessage, target: Target | None, *, in_transaction: bool) -> int:
    """Return the delivery of a message; `target` as of `known_target`.  Raises Refusal."""
    return delivery_to(
        route,
        new.delivery,
        in_transaction=in_transaction,
        transactional=None if target is None else target.transactional,
        name=new.destination,
    )


def check_target(new: NewMessage, target: Target) -> None:
    """Raise Refusal for a message that a queue elsewhere would refuse, by its directory entry."""
    if target.authenticate and not new.signature:
        raise Refusal(
            "not_signed",
            f"{new.destination} takes signed messages only, as the directory says",
            "Sign the message: qmd send --sign --key FILE --certificate FILE",
        )
    if target.privacy != PRIVACY_OPTIONAL and bool(new.privacy_level) != (target.privacy == "body"):
        only = "only encrypted" if target.privacy == "body" else "no encrypted"
        raise Refusal(
            "privacy_differs",
            f"{new.destination} takes {only} messages, as the directory says",
            "Encrypt it: qmd send --encrypt"
            if target.privacy == "body"
            else "Send it without --encrypt.",
        )


def _check_protection(new: NewMessage, route: Route) -> None:
    """Raise Refusal for a message that would be less protected than it or its queue requires."""
    if bool(new.privacy_level) != bool(new.encryption_key):
        raise Refusal(
            "not_encrypted",
            f"the message to {new.destination} is to be encrypted, and cannot be here",
            "Send it to one queue, and not with a publication of a pipeline.",
        )
    if isinstance(route, LocalQueue):
        if new.encryption_key:
            raise Refusal(
                "encrypted_for_others",
                f"the message is encrypted for another host, and {route.name} is a queue of this"
                " one",
                "Send it again from its source.",
            )
        if route.authenticate and not new.signature:
            raise Refusal(
                "not_signed",
                f"{route.name} takes signed messages only",
                "Sign the message: qmd send --sign --key FILE --certificate FILE",
            )


def _elsewhere(new: NewMessage, target: Target, in_transaction: bool) -> int:
    """Return the delivery of a copy to a queue elsewhere that does not refuse it."""
    if in_transaction or (new.delivery == AUTOMATIC and target.transactional):
        return TRANSACTIONAL
    return RECOVERABLE if new.delivery == AUTOMATIC else new.delivery


def _separate_usual(
    new: NewMessage,
    several: Several,
    routes: Sequence[Route],
    deliveries: Sequence[int],
    sizes: _CopySizes,
    needed: _Needed,
) -> tuple[dict[int, list[int]], list[int]]:
    """Return the indexes of usual copies by delivery, and those of the other copies.

    Usual copies go to queues elsewhere, and no check can refuse them: a message may have a
    thousand of them.  Their bytes are added to `needed`.
    """
    usual: dict[int, list[int]] = {}
    others: list[int] = []
    # Express packets have the size of recoverable ones.
    by_delivery = sizes.recoverable, sizes.recoverable, sizes.transactional
    for index, (route, delivery) in enumerate(zip(routes, deliveries, strict=True)):
        if (
            isinstance(route, OutgoingQueue)
            and not new.dead_letter_queue
            and route.address.size <= PACKET_BYTES_MAX - by_delivery[delivery]
            and route.sequence.next_number < NUMBER_MAX // 2
            and (delivery == TRANSACTIONAL or not several.targets[index].transactional)
            and not several.targets[index].wants_protection
        ):
            usual.setdefault(delivery, []).append(index)
            needed.bytes += by_delivery[delivery] + route.address.size
            if delivery == EXPRESS:
                needed.express_bytes += by_delivery[delivery] + route.address.size
        else:
            others.append(index)
    return usual, others
