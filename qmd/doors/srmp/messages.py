"""Packets of the binary protocol as envelopes, and back.  [MC-MQSRM] 3.1.5.1.1, 3.1.7.2.4"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from protocol import build_user_message, parse_user_message
from protocol.acknowledgments import FINAL_ACK_CLASS_MIN
from protocol.errors import InvalidName, ProtocolError
from protocol.message_class import MessageClass
from protocol.names.direct_name import DirectName, Transport
from protocol.names.format_name import FormatName, MultipleName, SingleName, parse_format_name
from qmd.client.message import Message
from qmd.control_protocol import messages as frames
from qmd.doors.srmp.envelope import (
    NO_LIMIT,
    Envelope,
    MessageId,
    NotSrmp,
    Stream,
    read_envelope,
    write_envelope,
)
from qmd.doors.srmp.mime import NotMime, Part, parameters, read_parts, write_parts
from qmd.errors import Refusal
from qmd.message.addresses import NO_ADDRESS, QueueAddress, queue_address, reply_address
from qmd.message.build import compose
from qmd.naming.fan_out import list_address

POSITIVE_ARRIVAL, POSITIVE_RECEIVE, NEGATIVE_ARRIVAL, NEGATIVE_RECEIVE = 1, 2, 4, 8
PREFIX = "MSMQ:"  # of a format name that is no URL
_POSITIVE, _NEGATIVE = "positive", "negative"


@dataclass(frozen=True, slots=True)
class Posted:
    """A message as it travels in one request."""

    envelope: Envelope
    body: bytes = b""
    extension: bytes = b""


def read_request(body: bytes, content_type: str) -> Posted:
    """Return the message of a request.  Raises NotSrmp."""
    try:
        media, given = parameters(content_type)
        if media == "text/xml":
            return Posted(read_envelope(body))
        if media != "multipart/related":
            raise NotSrmp(f"the content type is {media[:80]}")
        first, *attached = read_parts(body, given.get("boundary", ""))
    except (NotMime, ValueError) as error:
        raise NotSrmp(f"the parts cannot be read: {error}") from error
    found = {"body": b"", "extension": b""}
    for part in attached:
        name = part.headers.get("content-id", "").strip("<>").partition("@")[0].lower()
        if name in found:
            found[name] = part.content
    return Posted(read_envelope(first.content), found["body"], found["extension"])


def write_request(it: Posted) -> tuple[bytes, str]:
    """Return body and content type of a request."""
    envelope = write_envelope(it.envelope)
    if not it.body and not it.extension:
        return envelope, "text/xml"
    parts = [Part({"Content-Type": "text/xml; charset=UTF-8"}, envelope)]
    for name, content in (("body", it.body), ("extension", it.extension)):
        if content:
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Id": f"{name}@{it.envelope.id.source}",
            }
            parts.append(Part(headers, content))
    return write_parts(parts)


def envelope_of(packet: bytes, receipts_to: str) -> Posted:
    """Return the message of a packet for a URL.  Raises NotSrmp if it has no place in SRMP.

    `receipts_to` is the URL to which receipts for streams are sent.
    """
    it = Message(frames.StoredMessage(0, 0, packet))
    destination = it.destination
    if destination is None:
        raise NotSrmp("the packet has no direct name")
    user, properties, transaction = it.packet.user, it.packet.properties, it.packet.transaction
    admin, acknowledge = url_of(it.admin_queue), properties.flags
    delivery_to = admin if acknowledge & POSITIVE_ARRIVAL and admin.startswith("http") else ""
    wants = acknowledge & (POSITIVE_RECEIVE | NEGATIVE_RECEIVE) and admin.startswith("http")
    envelope = Envelope(
        to=url_of(destination),
        id=MessageId(uuid.UUID(bytes_le=user.source_queue_manager), user.message_number),
        sent_at=it.sent_at,
        expires_at=_after(it.sent_at, it.time_to_be_received),
        reach_by=_after(it.sent_at, it.time_to_reach_queue),
        label=it.label,
        response_to=url_of(it.response_queue),
        durable=it.delivery != "express",
        delivery_receipt_to=delivery_to,
        commitment_receipt_to=admin if wants else "",
        positive=bool(acknowledge & POSITIVE_RECEIVE),
        negative=bool(acknowledge & NEGATIVE_RECEIVE),
        stream=_stream(it, receipts_to),
        is_first=transaction is not None and bool(transaction.flags.first),
        is_last=transaction is not None and bool(transaction.flags.last),
        connector_type=_uuid(user.connector_type),
        connector=None if transaction is None else _uuid(transaction.connector),
        message_class=properties.message_class,
        priority=it.priority,
        journal=it.journal,
        dead_letter=it.dead_letter,
        correlation=properties.correlation_id if any(properties.correlation_id) else b"",
        trace=it.traced,
        application_tag=it.application_tag,
        body_type=it.body_type,
        **_lists(it),
        **(receipt := _receipt(it)),
    )
    if receipt:  # receipts have no attachments, 2.2.2
        return Posted(envelope)
    return Posted(envelope, it.body, properties.extension)


def _uuid(guid: bytes | None) -> uuid.UUID | None:
    return None if guid is None else uuid.UUID(bytes_le=guid)


def _lists(it: Message) -> dict[str, Any]:
    """Return the lists of the queues of a message that has some."""
    header = it.packet.multi_queue
    if header is None:
        return {}
    return {
        "destinations": tuple(map(url_of, it.destinations)),
        "admins": tuple(map(url_of, it.admin_queues)) if header.admin.elements else (),
        "responses": tuple(map(url_of, it.response_queues)) if header.response.elements else (),
    }


def _stream(it: Message, receipts_to: str) -> Stream | None:
    position = it.sequence
    if position is None:
        return None
    return Stream(
        uuid.UUID(it.source),
        position.id,
        position.number,
        position.previous,
        receipts_to if position.previous == 0 else "",
    )


def _receipt(it: Message) -> dict[str, Any]:
    """Return the elements that an acknowledgment message has besides its class."""
    number, correlation = it.message_class_number, it.packet.properties.correlation_id
    if not number or not any(correlation):
        return {}
    about = MessageId(
        uuid.UUID(bytes_le=correlation[:16]), int.from_bytes(correlation[16:], "little")
    )
    if number == MessageClass.ACK_REACH_QUEUE:
        return {"delivered_at": it.sent_at, "about": about}
    if number >= FINAL_ACK_CLASS_MIN:
        decision = _POSITIVE if number == MessageClass.ACK_RECEIVE else _NEGATIVE
        return {"decided_at": it.sent_at, "decision": decision, "about": about}
    return {}


def packet_of(it: Posted, destination: FormatName, source: bytes, number: int) -> bytes:
    """Return the packet of a message from another host.  Raises NotSrmp.

    `source` and `number` are its identity: those of the envelope, or of this door if it has none.
    """
    envelope = it.envelope
    sent_at, stream = envelope.sent_at, envelope.stream
    if stream is not None and not envelope.durable:
        raise NotSrmp("a message of a stream is not durable")
    if stream is not None and not envelope.is_msmq:
        raise NotSrmp("a message of a stream lacks the element Msmq")
    reach_s = _seconds(sent_at, envelope.reach_by)
    received_s = _seconds(sent_at, envelope.expires_at)
    if not envelope.is_msmq:  # then the time of expiry is that to reach the queue
        reach_s, received_s = received_s, None
    delivery = frames.RECOVERABLE if envelope.durable else frames.EXPRESS
    admin = envelope.commitment_receipt_to or envelope.delivery_receipt_to
    new = frames.NewMessage(
        str(destination),
        it.body,
        label=(envelope.label or "")[:249],
        priority=envelope.priority,
        time_to_reach_queue_s=frames.INFINITE_S if reach_s is None else reach_s,
        time_to_be_received_s=received_s,
        journal=envelope.journal,
        body_type=envelope.body_type,
        correlation_id=envelope.correlation or bytes(20),
        application_tag=envelope.application_tag,
        extension=it.extension,
        acknowledge=_acknowledge(envelope),
        message_class=envelope.message_class,
        connector_type=b"" if envelope.connector_type is None else envelope.connector_type.bytes_le,
    )
    try:
        packet = compose(
            new,
            source=source,
            destination=queue_address(destination),
            admin=_reply(envelope.admins or (admin,)),
            response=_reply(envelope.responses or (envelope.response_to,)),
            message_number=number,
            sent_time_s=max(0, int(sent_at.timestamp())),
            delivery=delivery if stream is None else frames.TRANSACTIONAL,
            position=None if stream is None else (stream.id, stream.number, 0),
            dead_letter=envelope.dead_letter,
            is_first=envelope.is_first,
            is_last=envelope.is_last,
            destinations=_destinations(envelope.destinations),
        )
    except ProtocolError as error:
        raise NotSrmp(f"no packet can state it: {error}") from error
    connector = envelope.connector
    if stream is None or (stream.previous == stream.number - 1 and connector is None):
        return packet
    parsed = parse_user_message(packet)
    assert parsed.transaction is not None
    header = parsed.transaction._replace(previous_number=stream.previous)
    if connector is not None:
        flags = header.flags.replace(connector=1)
        header = header._replace(flags=flags, connector=connector.bytes_le)
    return build_user_message(parsed._replace(transaction=header))


def _acknowledge(envelope: Envelope) -> int:
    return (
        (POSITIVE_ARRIVAL if envelope.delivery_receipt_to else 0)
        | (POSITIVE_RECEIVE if envelope.positive else 0)
        | (NEGATIVE_RECEIVE if envelope.negative else 0)
    )


def name_of(url: str) -> DirectName:
    """Return the direct name of a URL.  Raises NotSrmp."""
    try:
        name = parse_format_name(f"DIRECT={url}")
    except InvalidName as error:
        raise NotSrmp(f"{url[:200]!r} is no URL of a queue: {error.rule}") from error
    if not isinstance(name, DirectName) or name.transport not in (Transport.HTTP, Transport.HTTPS):
        raise NotSrmp(f"{url[:200]!r} is no URL of a queue")
    return name


def url_of(name: str | None) -> str:
    """Return a name as SRMP writes it: a URL, or another format name behind `MSMQ:`."""
    if name is None:
        return ""
    try:
        parsed = parse_format_name(name)
    except InvalidName:
        return f"{PREFIX}{name}"
    if isinstance(parsed, DirectName) and parsed.transport in (Transport.HTTP, Transport.HTTPS):
        scheme, _, rest = parsed.wire_text().partition(":")
        return f"{scheme.lower()}:{rest}".replace("\\", "/")
    return f"{PREFIX}{name}"


def _reply(texts: tuple[str, ...]) -> QueueAddress:
    """Return the address of the queues for answers or acknowledgments.  Raises NotSrmp."""
    names = [_single(text) for text in texts if text]
    if not names:
        return NO_ADDRESS
    try:
        return reply_address(names[0] if len(names) == 1 else MultipleName(tuple(names)))
    except (InvalidName, Refusal) as error:
        raise NotSrmp(f"its queues for answers or acknowledgments: {error}") from error


def _destinations(texts: tuple[str, ...]) -> tuple[QueueAddress, ...]:
    """Return the addresses of a list, which only informs: without names that no packet can state.

    The message itself goes to the queue of its path.
    """
    found = []
    for text in texts:
        with contextlib.suppress(NotSrmp):
            found.append(list_address(_single(text)))
    return tuple(each for each in found if each is not None)


def _single(text: str) -> SingleName:
    try:
        name = text[len(PREFIX) :] if text.startswith(PREFIX) else f"DIRECT={text}"
        parsed = parse_format_name(name)
    except (InvalidName, ValueError) as error:
        raise NotSrmp(f"{text[:200]!r} is no name of a queue") from error
    if isinstance(parsed, MultipleName):
        raise NotSrmp(f"{text[:200]!r} is not the name of one queue")
    return parsed


def _after(sent_at: datetime, seconds: int | None) -> datetime:
    return NO_LIMIT if seconds is None else min(NO_LIMIT, sent_at + timedelta(seconds=seconds))


def _seconds(sent_at: datetime, until: datetime | None) -> int | None:
    """Return the seconds until a time; None: there is no limit, or none that a packet can state."""
    if until is None or until >= NO_LIMIT:
        return None
    seconds = max(0, int((until - sent_at).total_seconds()))
    return None if seconds >= frames.INFINITE_S else seconds


def now() -> datetime:
    """Return the time, in whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)
