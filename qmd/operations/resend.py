"""Messages are sent again as new messages, and what they were is gone in the same commit.

For dead letters, when what killed them has been mended; and for a message that is to be corrected.
The new message has an id of its own, and the old one's as its correlation id where it had none.
What is sent again goes to disk, whatever it was before: an express message could be lost with the
one that it came from.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from protocol import DirectQueueName, PrivateQueueName, UserMessage, parse_user_message
from protocol.errors import InvalidName, ProtocolError
from protocol.names.direct_name import DirectName
from protocol.names.format_name import PrivateName, PublicName, parse_destination, parse_wire_name
from protocol.names.multi_queue import MQF_DIRECT, MQF_PUBLIC, MqfElement
from qmd.access.rights import ADMIN, ALL_RIGHTS, Rights
from qmd.control_protocol.messages import (
    AUTOMATIC,
    TRANSACTIONAL,
    Choice,
    NewMessage,
    Piece,
    StoredMessage,
)
from qmd.core.packet_fields import is_transactional
from qmd.directory.resolver import Resolution
from qmd.errors import Refusal
from qmd.events.header import EventHeader, Kind
from qmd.message.build import REPLY_QUEUES_MAX
from qmd.operations.selection import Chosen, destination_of, id_of
from qmd.operations.send import flat
from qmd.queues.local_queue import LocalQueue, Reader
from storage.tables import messages as message_rows
from storage.tables.keys import LOOKUP_BITS, LOOKUP_MASK
from storage.tables.messages import MessageRow

if TYPE_CHECKING:
    from qmd.access.things import ThingFinder
    from qmd.directory.resolver import Resolver
    from qmd.events.recorder import Recorder
    from qmd.naming.destinations import Destinations
    from qmd.operations.selection import Selection
    from qmd.operations.send import MessageSender
    from qmd.outcomes.dead_letter import DeadLetters
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.runtime.services import Services

log = structlog.get_logger()

Result = dict[str, Any]

_SAME_AS_ADMIN = 1  # of response queues, [MS-MQMQ] 2.2.19.2


class Changes(msgspec.Struct, frozen=True):
    """What is to be different about the new message; None: nothing."""

    to: str = ""
    label: str | None = None
    body: bytes | None = None


class Resender:
    """One piece in one commit."""

    def __init__(
        self,
        services: Services,
        selection: Selection,
        dead_letters: DeadLetters,
        outgoing: OutgoingQueues,
        recorder: Recorder,
        resolver: Resolver,
        destinations: Destinations,
        message_sender: MessageSender,
        things: ThingFinder,
    ) -> None:
        self._services = services
        self._selection = selection
        self._dead_letters = dead_letters
        self._outgoing = outgoing
        self._recorder = recorder
        self._resolver = resolver
        self._destinations = destinations
        self._message_sender = message_sender
        self._things = things

    async def resend(
        self,
        queue: LocalQueue,
        choice: Choice,
        piece: Piece,
        changes: Changes,
        *,
        keep: bool = False,
        dry_run: bool = False,
        token: bytes = b"",
        rights: Rights = ALL_RIGHTS,
    ) -> Result:
        """Returns what the request `frames.Resend` is answered with.  Raises Refusal."""
        chosen = await self._selection.choose(queue, choice, piece)
        news = [self._new(queue, message, changes) for message in chosen.messages]
        for new in news:
            rights.require(ADMIN, self._things.of_message(new), "resend")
        answers: dict[str, Resolution | Refusal] = {}
        for destination in {new.destination for new in news}:
            answers[destination] = await self._resolver.resolve_text(destination)
        if dry_run:
            for new in news:
                self._check_destination(new.destination)
            return _result(chosen, chosen.messages, [])
        if not news:
            return _result(chosen, [], [])
        sender = Reader()
        held = [each for each in chosen.messages if queue.hold(sender, each.lookup_id)]
        if len(held) < len(news) and (choice.lookup_ids or choice.message_ids):
            _let_go(queue, held)
            raise Refusal(
                "message_taken",
                f"a message of {queue.name} has been taken by an application",
                "Try again when it is done with it, or end that application.",
            )
        # Whatever is held, nobody else ends: what is there now will be there in the next commit.
        done: asyncio.Future[Result] = self._services.loop.create_future()
        keys = [
            queue.id << LOOKUP_BITS | each.lookup_id
            for each in held
            if each.lookup_id not in queue.express
        ]
        self._services.storage.batch.read_after(
            partial(message_rows.find_all, keys=keys),
            partial(self._send, queue, held, chosen, changes, keep, token, done, answers),
        )
        return await asyncio.shield(done)

    def _send(
        self,
        queue: LocalQueue,
        held: list[StoredMessage],
        chosen: Chosen,
        changes: Changes,
        keep: bool,
        token: bytes,
        done: asyncio.Future[Result],
        answers: dict[str, Resolution | Refusal],
        rows: list[MessageRow],
    ) -> None:
        """Those that are there still: send, and remove, with the open batch."""
        there = {row.key & LOOKUP_MASK for row in rows if row.is_whole} | queue.express.keys()
        for message in held:
            if message.lookup_id not in there:
                queue.let_go(message, is_there=False)
        old = [message for message in held if message.lookup_id in there]
        if not old:
            done.set_result(_result(chosen, [], []))
            return
        batch = self._services.storage.batch
        ids: list[str] = []
        try:
            self._destinations.answers = answers  # which may be too old to be kept by now
            news = [self._new(queue, message, changes) for message in old]
            self._message_sender.send(news, b"", lambda sent: ids.extend(flat(sent)))
        except Refusal as refusal:
            _let_go(queue, old)
            queue.wake_readers()
            done.set_exception(refusal)
            return
        finally:
            self._destinations.answers = {}
        if not keep:
            self._recorder.record(
                EventHeader(
                    Kind.REQUEUED,
                    queue=queue.name,
                    to_queue=news[0].destination
                    if len({new.destination for new in news}) == 1
                    else "",
                    reason="It was sent again as another message.",
                ),
                [message.packet for message in old],
                places=[message.lookup_id for message in old],
            )
            self._dead_letters.replaced(queue, [message.packet for message in old])
            batch.delete_messages([queue.id << LOOKUP_BITS | each.lookup_id for each in old])
        result = _result(chosen, old, [])
        if token:
            batch.record_outcome(token, msgspec.msgpack.encode(result), self._services.clock.now_s)

        def durable() -> None:
            if keep:
                _let_go(queue, old)
                queue.wake_readers()
            else:
                queue.forget([each.lookup_id for each in old])
                stored = [row for row in rows if row.is_whole]
                queue.count_out(len(stored), sum(len(row.packet) for row in stored))
            log.info("messages_sent_again", queue=queue.name, count=len(old))
            if not done.done():  # whoever waited may be gone
                done.set_result(_result(chosen, old, ids))

        batch.when_durable(durable)
        assert batch is self._services.storage.batch, (
            "what was sent and what is removed are one commit"
        )

    def _new(self, queue: LocalQueue, message: StoredMessage, changes: Changes) -> NewMessage:
        """The message as its application would hand it over now.  Raises Refusal."""
        packet = parse_user_message(message.packet)
        properties, user = packet.properties, packet.user
        to = changes.to or self.original_destination(packet, message.reason or "")
        correlation = properties.correlation_id
        label = properties.label.decode("utf-16-le", "replace").rstrip("\0")
        is_elsewhere = self._is_elsewhere(to)
        return NewMessage(
            to,
            properties.body if changes.body is None else changes.body,
            label=label if changes.label is None else changes.label,
            delivery=TRANSACTIONAL
            if is_transactional(message.packet)
            and is_elsewhere
            and self._destinations.told_kind(to) is None
            else AUTOMATIC,
            priority=packet.base.flags.priority,
            time_to_reach_queue_s=packet.base.time_to_reach_queue,
            time_to_be_received_s=user.time_to_be_received,
            dead_letter=True if user.flags.negative_journal else None,
            journal=bool(user.flags.positive_journal),
            body_type=properties.body_type,
            correlation_id=correlation if any(correlation) else id_of(message.packet),
            application_tag=properties.application_tag,
            extension=properties.extension,
            response_queue=_response_queues(packet),
            admin_queue=_admin_queues(packet),
            acknowledge=int(properties.flags),
            sender_id=packet.security.sender_id if packet.security is not None else b"",
            connector_type=user.connector_type or b"",
            message_class=_own_class(packet, message),
            report_queue=_report_queue(packet),
            dead_letter_queue="" if changes.to else _own_dead_letter_queue(queue, message),
        )

    def original_destination(self, packet: UserMessage, reason: str) -> str:
        """Where a message was sent to.  Raises Refusal.

        Packets bear no ports, but the outgoing queue that it was in does, and so does its reason.
        """
        text = destination_of(packet)
        if not text:
            raise Refusal(
                "no_destination",
                "the message says nothing of where it was sent to",
                "Say where it shall go: --to QUEUE",
            )
        wire = packet.user.destination_queue
        same = [
            queue.destination
            for queue in self._outgoing.queues
            if isinstance(wire, DirectQueueName) and queue.address.value == wire
        ]
        named = sorted((each for each in same if each in reason), key=len)
        if named:
            return named[-1]
        if not same or text in same:
            return text
        if len(same) > 1:
            raise Refusal(
                "several_destinations",
                f"{text} may be any of {', '.join(sorted(same))}",
                "Say which it is: --to QUEUE",
            )
        return same[0]

    def _is_elsewhere(self, text: str) -> bool:
        try:
            name = parse_destination(text, local_host=".")
        except InvalidName as error:
            raise Refusal("name_not_understood", f"'{text}' is no queue's name: {error}") from error
        if isinstance(name, DirectName):
            return not self._destinations.is_local(name)
        return not (isinstance(name, PrivateName) and name.queue_manager == self._services.id)

    def _check_destination(self, text: str) -> None:
        """What a send would refuse first; without making an outgoing queue of it."""
        if not self._is_elsewhere(text):
            self._destinations.route(text)


def _name(packet: UserMessage, kind: int, value: Any) -> str:
    """A queue in a UserHeader as text, "" for none.  [MS-MQMQ] 2.2.19.2"""
    user = packet.user
    match kind:
        case 7:
            try:
                return str(parse_wire_name(value.name))
            except ProtocolError:
                return ""
        case 6:
            return str(PrivateName(value.queue_manager, value.number))
        case 5:
            return str(PublicName(value))
        case 3:  # a private queue of the destination's computer
            return str(PrivateName(user.queue_manager_address, value))
        case 2:  # one of the source's
            return str(PrivateName(user.source_queue_manager, value))
    return ""


def _admin_queues(packet: UserMessage) -> str:
    user, header = packet.user, packet.multi_queue
    first = _name(packet, user.flags.admin_type, user.admin_queue)
    return first if header is None else _joined(first, header.admin.elements)


def _response_queues(packet: UserMessage) -> str:
    user, header = packet.user, packet.multi_queue
    if user.flags.response_type == _SAME_AS_ADMIN:
        first = _name(packet, user.flags.admin_type, user.admin_queue)
    else:
        first = _name(packet, user.flags.response_type, user.response_queue)
    return first if header is None else _joined(first, header.response.elements)


def _joined(first: str, elements: Sequence[MqfElement]) -> str:
    """All queues for answers, each once; the one that the UserHeader names is mostly the first.

    Of more than a message may name, the first; distribution lists, which only their sender's
    directory can open, are left out.
    """
    found: dict[str, str] = {first.casefold(): first} if first else {}
    for element in elements:
        if len(found) == REPLY_QUEUES_MAX:
            break
        name = ""
        if isinstance(element.name, PrivateQueueName):
            name = str(PrivateName(element.name.queue_manager, element.name.number))
        elif element.format_type == MQF_PUBLIC:
            name = str(PublicName(element.name))
        elif element.format_type == MQF_DIRECT:
            with contextlib.suppress(ProtocolError):
                name = str(parse_wire_name(element.name))
        if name:
            found.setdefault(name.casefold(), name)
    return ",".join(found.values())


def _own_class(packet: UserMessage, message: StoredMessage) -> int:
    """A connector's; the class of a dead letter says why it is one, and was another before."""
    if packet.user.connector_type is None or message.reason is not None:
        return 0
    return int(packet.properties.message_class)


def _own_dead_letter_queue(queue: LocalQueue, message: StoredMessage) -> str:
    """Whoever named a queue for the dead letter gets that of the new message there too."""
    if message.reason is None or queue.is_read_only:
        return ""
    return queue.name if queue.transactional == is_transactional(message.packet) else ""


def _report_queue(packet: UserMessage) -> str:
    """Where reports of a traced message go, "" for one that is not traced."""
    debug = packet.debug
    if not packet.base.flags.tracing or debug is None or debug.queue is None:
        return ""
    return str(PublicName(debug.queue))


def _let_go(queue: LocalQueue, messages: list[StoredMessage]) -> None:
    for message in messages:
        queue.let_go(message, is_there=True)


def _result(chosen: Chosen, messages: list[StoredMessage], ids: list[str]) -> Result:
    return {
        "messages": len(messages),
        "bytes": sum(len(message.packet) for message in messages),
        "taken": chosen.taken,
        "next": chosen.next,
        "until": chosen.until,
        "ids": ids,
    }
