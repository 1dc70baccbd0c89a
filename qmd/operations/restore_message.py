"""New messages from the packets of old ones, to send them again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from protocol import DirectQueueName, PrivateQueueName, UserMessage, parse_user_message
from protocol.errors import InvalidName, ProtocolError
from protocol.names.direct_name import DirectName
from protocol.names.format_name import PrivateName, PublicName, parse_destination, parse_wire_name
from protocol.names.multi_queue import MQF_DIRECT, MQF_PUBLIC, MqfElement
from protocol.user_message import admin_host
from qmd.control_protocol.messages import AUTOMATIC, TRANSACTIONAL, NewMessage, StoredMessage
from qmd.core.packet_fields import is_transactional
from qmd.directory.resolver import Resolution
from qmd.errors import Refusal
from qmd.message.addresses import REPLY_QUEUES_MAX
from qmd.operations.selection import destination_of, id_of
from qmd.queues.local_queue import LocalQueue

if TYPE_CHECKING:
    from qmd.directory.resolver import Resolver
    from qmd.naming.destinations import Destinations
    from qmd.queues.outgoing_queues import OutgoingQueues
    from qmd.runtime.services import Services

#: Types of response queues, [MS-MQMQ] 2.2.19.2.
_SAME_AS_ADMIN = 1
_BESIDE_ADMIN = 4


class Changes(msgspec.Struct, frozen=True):
    """Changes of the new message; properties that are None stay."""

    to: str = ""
    label: str | None = None
    body: bytes | None = None


class MessageRestorer:
    """Restorer of messages as their applications sent them."""

    def __init__(
        self,
        services: Services,
        destinations: Destinations,
        outgoing: OutgoingQueues,
        resolver: Resolver,
    ) -> None:
        self._services = services
        self._destinations = destinations
        self._outgoing = outgoing
        self._resolver = resolver

    async def resolve(self, destinations: Iterable[str]) -> dict[str, Resolution | Refusal]:
        """Return the targets of destinations, or why they have none; this asks the directory."""
        return {each: await self._resolver.resolve_text(each) for each in set(destinations)}

    def _is_kind_known(self, to: str) -> bool:
        """Return whether the directory says if the queue of a name is transactional."""
        target = self._destinations.known_target(to)
        return target is not None and target.transactional is not None

    def new_message(
        self, queue: LocalQueue, message: StoredMessage, changes: Changes
    ) -> NewMessage:
        """Return the message as its application would send it now.  Raises Refusal."""
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
            if is_transactional(message.packet) and is_elsewhere and not self._is_kind_known(to)
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
            **_privacy(packet, changes),
        )

    def original_destination(self, packet: UserMessage, reason: str) -> str:
        """Return the destination of a message as its application named it.  Raises Refusal.

        Packets have no ports; the outgoing queue of the message, and its reason, may have one.
        """
        text = destination_of(packet)
        if not text:
            raise Refusal(
                "no_destination",
                "the message does not contain its original destination",
                "Name the destination: --to QUEUE",
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
                "Name the destination: --to QUEUE",
            )
        return same[0]

    def _is_elsewhere(self, text: str) -> bool:
        try:
            name = parse_destination(text, local_host=".")
        except InvalidName as error:
            raise Refusal(
                "name_not_understood", f"'{text}' is not the name of a queue: {error}"
            ) from error
        if isinstance(name, DirectName):
            return not self._destinations.is_local(name)
        return not (isinstance(name, PrivateName) and name.queue_manager == self._services.id)

    def check_destination(self, text: str) -> None:
        """Raise Refusal if the destination is a local queue that does not exist, or no name.

        This does not create an outgoing queue, as a send does.
        """
        if not self._is_elsewhere(text):
            self._destinations.route(text)


def _name(packet: UserMessage, kind: int, value: Any) -> str:
    """Return a queue of a UserHeader as text, "" for none.  [MS-MQMQ] 2.2.19.2"""
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
        case 2:  # a private queue of the source's computer
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
    elif user.flags.response_type == _BESIDE_ADMIN:
        host, number = admin_host(packet), user.response_queue
        first = "" if host is None else str(PrivateName(host, cast(int, number)))
    else:
        first = _name(packet, user.flags.response_type, user.response_queue)
    return first if header is None else _joined(first, header.response.elements)


def _joined(first: str, elements: Sequence[MqfElement]) -> str:
    """Return the names of all queues for answers, each once; `first` is that of the UserHeader.

    If there are more than a message may name, these are the first ones.  Distribution lists are
    left out, because only the directory of their sender can resolve them.
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
    """Return the class that a connector gave the message, or 0.

    The class of a dead letter says why it ended; its former class is not known.
    """
    if packet.user.connector_type is None or message.reason is not None:
        return 0
    return int(packet.properties.message_class)


def _own_dead_letter_queue(queue: LocalQueue, message: StoredMessage) -> str:
    """Return the dead-letter queue that the application named for the old message, or ""."""
    if message.reason is None or queue.is_read_only:
        return ""
    return queue.name if queue.transactional == is_transactional(message.packet) else ""


def _report_queue(packet: UserMessage) -> str:
    """Return the report queue of a traced message; "" for a message that is not traced."""
    debug = packet.debug
    if not packet.base.flags.tracing or debug is None or debug.queue is None:
        return ""
    return str(PublicName(debug.queue))


def _privacy(packet: UserMessage, changes: Changes) -> dict[str, Any]:
    """Return the privacy of the new message.  Raises Refusal.

    The body of a message that is still encrypted is sent as it is; one that came encrypted and was
    decrypted is encrypted again.  The signature is left out: it covers the old source and answers.
    """
    header, properties = packet.security, packet.properties
    if header is None or not header.encryption_key:
        return {}
    privacy: dict[str, Any] = {
        "privacy_level": properties.privacy_level,
        "encryption_algorithm": properties.encryption_algorithm,
    }
    if header.flags.body_encrypted:
        if changes.to or changes.body is not None:
            raise Refusal(
                "encrypted_for_others",
                "the body of the message is encrypted for the host of its destination",
                "Send it there as it is, or send a new message.",
            )
        privacy["encryption_key"] = header.encryption_key
    return privacy
