"""Messages that a queue manager holds or held; a packet is parsed only on first use."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from qmd.client.defined_properties import DefinedProperties, json_value
from qmd.client.message_security import SecurityProperties
from qmd.client.packet_names import direct_name, element_name
from qmd.control_protocol import messages as frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol import UserMessage
    from qmd.bodies.bus_headers import BusHeaders
    from qmd.bodies.content import Content
    from qmd.properties.values import MessageProperties


class SequencePosition(NamedTuple):
    """The position of a transactional message in its sequence.  [MS-MQMQ] 2.2.20.5

    `id` is the 64-bit TxSequenceID as one number, `previous` the number of the message before it, 0
    for the first.
    """

    id: int
    number: int
    previous: int


class Message(DefinedProperties, SecurityProperties):
    """An immutable message; its properties are read from the packet on first use."""

    __slots__ = ("_body", "_defined", "_parsed", "stored")

    def __init__(self, stored: frames.StoredMessage) -> None:
        self.stored = stored
        self._body: bytes | None = None
        self._parsed: UserMessage | None = None
        self._defined: tuple[MessageProperties, bytes] | None = None

    def __repr__(self) -> str:
        return f"<Message {self.id} {self.label!r}, {len(self.body)} bytes>"

    # -- identity and contents ---------------------------------------------------------------

    @property
    def id(self) -> str:
        """Return the GUID of the source queue manager, a backslash, and its number."""
        from protocol.identifiers import message_id_text

        user = self.packet.user
        return message_id_text(user.source_queue_manager, user.message_number)

    @property
    def lookup_id(self) -> int:
        """Return the position in the queue: a message nearer to the front has a lower one."""
        return self.stored.lookup_id

    @property
    def label(self) -> str:
        return self.packet.properties.label.decode("utf-16-le", "replace").rstrip("\0")

    @property
    def body(self) -> bytes:
        if self._body is None:
            packet = self.stored.packet
            # A large body is not copied again for `packet`, which has it too.
            is_alone = self._parsed is None and len(packet) <= _SHORT_BYTES
            self._body = _body_of()(packet) if is_alone else self.packet.properties.body
        return self._body

    @property
    def body_type(self) -> int:
        """Return a VT_ code of [MS-MQMQ] 2.2.12; 0 when the sender gave none."""
        return self.packet.properties.body_type

    @property
    def body_type_name(self) -> str:
        """Return the name of the body type, such as `VT_LPWSTR`, or its number in hexadecimal."""
        from protocol.body_type import body_type_name

        return body_type_name(self.body_type)

    @property
    def content(self) -> Content:
        """Return the value of the body and its format: XML, an object of .NET, JSON, text or bytes.

        The body type and the body itself show the format.  Raises UnreadableBody if the body does
        not have the format that its type states.
        """
        return self.content_as("")

    def content_as(self, format: str) -> Content:
        """Return the body, read in one of the formats "xml", "binary", "activex", "json", "text",
        "utf-16", "bytes".

        Raises UnreadableBody if it does not have that format, ValueError for an unknown one.
        """
        from qmd.bodies.content import read_content

        return read_content(self.body, self.body_type, format)

    @property
    def bus_headers(self) -> BusHeaders | None:
        """Return the headers of NServiceBus, Rebus or MassTransit; None if there are none."""
        from qmd.bodies.bus_headers import read_bus_headers

        return read_bus_headers(self.extension, self.body, self.content_type)

    @property
    def application_tag(self) -> int:
        return self.packet.properties.application_tag

    @property
    def correlation_id(self) -> str | None:
        """Return the id of the message to which this one correlates, or None."""
        from protocol.identifiers import correlation_text

        raw = self.packet.properties.correlation_id
        return correlation_text(raw) if any(raw) else None

    @property
    def message_class(self) -> str:
        """Return "normal", or the acknowledgment, such as "nack_bad_destination_queue"."""
        from protocol.message_class import MessageClass

        return MessageClass.name_of(self.packet.properties.message_class)

    @property
    def message_class_number(self) -> int:
        """Return the number of the class in the packet."""
        return self.packet.properties.message_class

    @property
    def message_class_sentence(self) -> str:
        """Return a sentence that explains the class."""
        from protocol.message_class import MessageClass

        return MessageClass.describe(self.packet.properties.message_class)

    @property
    def message_class_id(self) -> str | None:
        """Return the id for `qmd explain`, such as "QM-2101".

        None for a normal message and for a class that an application defined.
        """
        from qmd.catalogue import find_class

        entry = find_class(self.packet.properties.message_class)
        return None if entry is None else entry.id

    @property
    def reason(self) -> str | None:
        """Return why the message is in a dead-letter queue, or None."""
        return self.stored.reason

    # -- delivery ----------------------------------------------------------------------------

    @property
    def priority(self) -> int:
        return self.packet.base.flags.priority

    @property
    def delivery(self) -> str:
        """Return "express", "recoverable" or "transactional"."""
        if self.transactional:
            return "transactional"
        return "recoverable" if self.packet.user.flags.delivery else "express"

    @property
    def transactional(self) -> bool:
        return self.packet.transaction is not None

    @property
    def sequence(self) -> SequencePosition | None:
        header = self.packet.transaction
        if header is None:
            return None
        return SequencePosition(header.sequence_id, header.sequence_number, header.previous_number)

    @property
    def hops(self) -> int:
        """Return the number of routing queue managers that the message passed."""
        return self.packet.user.flags.hops

    @property
    def journal(self) -> bool:
        """Return whether the source keeps a copy once the message is delivered."""
        return bool(self.packet.user.flags.positive_journal)

    @property
    def dead_letter(self) -> bool:
        """Return whether the source keeps a copy if the message cannot be delivered."""
        return bool(self.packet.user.flags.negative_journal)

    @property
    def acknowledge(self) -> list[str]:
        """Return the kinds of acknowledgment messages that the admin queue receives."""
        flags = self.packet.properties.flags
        return [name for bit, name in enumerate(_ACKNOWLEDGE) if flags >> bit & 1]

    # -- times -------------------------------------------------------------------------------

    @property
    def sent_at(self) -> datetime:
        return datetime.fromtimestamp(self.packet.user.sent_time, UTC)

    @property
    def arrived_at(self) -> datetime:
        return datetime.fromtimestamp(self.stored.arrived_at_ms / 1000, UTC)

    @property
    def time_to_reach_queue(self) -> int | None:
        """Return seconds from `sent_at`; None: unlimited."""
        return _finite(self.packet.base.time_to_reach_queue)

    @property
    def time_to_be_received(self) -> int | None:
        """Return seconds from `sent_at`; None: unlimited."""
        return _finite(self.packet.user.time_to_be_received)

    # -- source and destination --------------------------------------------------------------

    @property
    def source(self) -> str:
        """Return the GUID of the queue manager that sent the message."""
        from protocol.identifiers import guid_text

        return guid_text(self.packet.user.source_queue_manager)

    @property
    def sender_id(self) -> bytes:
        """Return the sender id of the security header; empty when there is none."""
        header = self.packet.security
        return b"" if header is None else header.sender_id

    @property
    def sender_id_text(self) -> str | None:
        """Return the sender id as `S-1-5-21-...`, or None when it is not a security identifier."""
        from protocol.security_id import security_id_text

        return security_id_text(self.sender_id)

    @property
    def connector_type(self) -> str | None:
        """Return the GUID of the connector that it came through or is for, or None."""
        from protocol.identifiers import guid_text

        connector = self.packet.user.connector_type
        return None if connector is None else guid_text(connector)

    @property
    def traced(self) -> bool:
        """Return whether queue managers on its way send reports to the `report_queue`."""
        return bool(self.packet.base.flags.tracing)

    @property
    def report_queue(self) -> str | None:
        """Return the queue for reports: always a public one, by its GUID; or None."""
        from protocol.names.format_name import PublicName

        debug = self.packet.debug
        return None if debug is None or debug.queue is None else str(PublicName(debug.queue))

    @property
    def destination(self) -> str | None:
        user = self.packet.user
        return self._queue(user.flags.destination_type, user.destination_queue)

    @property
    def admin_queue(self) -> str | None:
        user = self.packet.user
        return self._queue(user.flags.admin_type, user.admin_queue)

    @property
    def response_queue(self) -> str | None:
        user = self.packet.user
        if user.flags.response_type == 1:  # the same as the admin queue
            return self.admin_queue
        if user.flags.response_type == 4:
            return self._beside_admin_queue(user.response_queue)
        return self._queue(user.flags.response_type, user.response_queue)

    def _beside_admin_queue(self, number: Any) -> str | None:
        """Return the private queue with this number on the computer of the administration queue.

        None if only a directory knows that computer.  [MS-MQMQ] 2.2.19.2
        """
        from protocol.names.format_name import PrivateName
        from protocol.user_message import admin_host

        host = admin_host(self.packet)
        return None if host is None else str(PrivateName(host, number))

    @property
    def destinations(self) -> list[str]:
        """Return all destination queues, if the sender listed them, as they were named.

        A distribution list (`DL=guid`) is followed by the queues that it stood for.
        """
        header = self.packet.multi_queue
        return [] if header is None else list(map(element_name, header.destination.elements))

    @property
    def admin_queues(self) -> list[str]:
        """Return all queues that receive acknowledgment messages."""
        header = self.packet.multi_queue
        if header is not None and header.admin.elements:
            return list(map(element_name, header.admin.elements))
        return [] if self.admin_queue is None else [self.admin_queue]

    @property
    def response_queues(self) -> list[str]:
        """Return all queues for answers."""
        header = self.packet.multi_queue
        if header is not None and header.response.elements:
            return list(map(element_name, header.response.elements))
        return [] if self.response_queue is None else [self.response_queue]

    # -- history -----------------------------------------------------------------------------

    @property
    def abort_count(self) -> int:
        """Return the number of aborted transactions that had received the message."""
        return self.stored.abort_count

    @property
    def move_count(self) -> int:
        """Return the number of moves to another queue of the same computer."""
        return self.stored.move_count

    @property
    def last_move_at(self) -> datetime | None:
        """Return the time of the last move, or None."""
        moved_at_ms = self.stored.last_move_at_ms
        return None if moved_at_ms is None else datetime.fromtimestamp(moved_at_ms / 1000, UTC)

    # ----------------------------------------------------------------------------------------

    @property
    def packet(self) -> UserMessage:
        """Return all headers, as they came over the wire.  Raises MalformedPacket."""
        if self._parsed is None:
            from protocol.packets import parse_user_message

            self._parsed = parse_user_message(self.stored.packet)
        return self._parsed

    @property
    def _extension(self) -> tuple[MessageProperties, bytes]:
        if self._defined is None:
            from qmd.properties.block import read_extension

            self._defined = read_extension(self.packet.properties.extension)
        return self._defined

    def is_among(self, choice: frames.Choice) -> bool:
        """Return whether the message matches `choice` (see `chosen`)."""
        from protocol.identifiers import parse_correlation

        stored = self.stored
        before, after = choice.arrived_before_ms, choice.arrived_after_ms
        return (
            (not choice.lookup_ids or stored.lookup_id in choice.lookup_ids)
            and (not choice.message_ids or parse_correlation(self.id) in choice.message_ids)
            and (before is None or stored.arrived_at_ms < before)
            and (after is None or stored.arrived_at_ms > after)
            and choice.reason.casefold() in (stored.reason or "").casefold()
            and choice.message_class.lower() in ("", self.message_class)
            and choice.destination.casefold() in (self.destination or "").casefold()
            and choice.label.casefold() in self.label.casefold()
        )

    def to_json(self) -> dict[str, Any]:
        """Return all properties for `json.dumps`, under names that do not change.

        Times are in ISO 8601 UTC, bytes in base64.
        """
        sequence, last_move_at = self.sequence, self.last_move_at
        return {
            "id": self.id,
            "lookup_id": self.lookup_id,
            "label": self.label,
            "body_base64": _base64(self.body),
            "body_type": self.body_type,
            "body_type_name": self.body_type_name,
            "class": self.message_class,
            "class_number": self.message_class_number,
            "priority": self.priority,
            "delivery": self.delivery,
            "transactional": self.transactional,
            "sent_at": _iso(self.sent_at, "seconds"),
            "arrived_at": _iso(self.arrived_at, "milliseconds"),
            "source": self.source,
            "destination": self.destination,
            "correlation_id": self.correlation_id,
            "sequence": None if sequence is None else sequence._asdict(),
            "reason": self.reason,
            "application_tag": self.application_tag,
            "extension_base64": _base64(self.extension),
            "properties": json_value(self.properties),
            "standard_properties": json_value(self.standard_properties),
            "group": self.group or None,
            "response_queue": self.response_queue,
            "admin_queue": self.admin_queue,
            "acknowledge": self.acknowledge,
            "time_to_reach_queue": self.time_to_reach_queue,
            "time_to_be_received": self.time_to_be_received,
            "journal": self.journal,
            "dead_letter": self.dead_letter,
            "abort_count": self.abort_count,
            "move_count": self.move_count,
            "last_move_at": None if last_move_at is None else _iso(last_move_at, "milliseconds"),
            "hops": self.hops,
            "sender_id_base64": _base64(self.sender_id) or None,
            "class_id": self.message_class_id,
            "sender_id": self.sender_id_text,
            "authenticated": self.authenticated,
            "principals": list(self.principals),
            "hash_algorithm": self.hash_algorithm,
            "signer": self.signer,
            "encryption_algorithm": self.encryption_algorithm,
            "connector_type": self.connector_type,
            "traced": self.traced,
            "report_queue": self.report_queue,
            "destinations": self.destinations,
            "admin_queues": self.admin_queues,
            "response_queues": self.response_queues,
        }

    def _queue(self, kind: int, value: Any) -> str | None:
        """Return a queue name of a UserHeader as a format name.  [MS-MQMQ] 2.2.19.2"""
        if not kind:
            return None
        if kind == 7:
            return direct_name(value.name)
        from protocol.names.format_name import PrivateName, PublicName

        user = self.packet.user
        match kind:
            case 6:
                return str(PrivateName(value.queue_manager, value.number))
            case 5:
                return str(PublicName(value))
            case 3:
                return str(PrivateName(user.queue_manager_address, value))
            case 2:
                return str(PrivateName(user.source_queue_manager, value))
        # 4 is a private queue on the computer of the administration queue.
        return None


#: Packets up to this size are not parsed for their body alone, which takes ten times as long.
_SHORT_BYTES = 64 * 1024

_ACKNOWLEDGE = ("positive_arrival", "positive_receive", "negative_arrival", "negative_receive")


@cache
def _body_of() -> Callable[[bytes], bytes]:
    from protocol.patching import body_of  # imports the codec: not at import

    return body_of


def _finite(seconds: int) -> int | None:
    return None if seconds == frames.INFINITE_S else seconds


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _iso(moment: datetime, precision: str) -> str:
    return moment.replace(tzinfo=None).isoformat(timespec=precision) + "Z"
