"""Targets: packets, read by the derived functions and by plain construct.

For any bytes a parser returns a record or raises MalformedPacket, and both readers agree.  A packet
that was read can be built again, patched and answered: no operation of the queue manager on an
accepted message may fail because of its contents.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from functools import partial
from typing import Any

from protocol import (
    MalformedPacket,
    MessageClass,
    MessageKind,
    UserMessage,
    append_session_header,
    build_user_message,
    classify,
    final_ack_body,
    order_ack_body,
    packet_kind,
    parse_user_message,
    patch_class,
    properties_offset,
    transaction_offset,
    without_session_header,
)
from protocol.codec.derive import Codec
from protocol.codec.reference import parse_plainly
from protocol.ping import Ping, parse_ping, ping_response
from protocol.records import ConnectionParameters, EstablishConnection, SessionAck
from qmd.client import Message
from qmd.control_protocol.messages import StoredMessage
from qmd.core import packet_fields as stored_packet
from qmd.core.acknowledgment import (
    administration_queues,
    build_acknowledgment,
    final_ack_packet,
    order_queue_of,
)
from qmd.core.disposition import consequences
from tests.conformance import published_frames
from tests.fuzz import mutation
from tests.fuzz.limits import outcome, within_limits
from tests.fuzz.target import Target
from tests.process import wire

OWN_ID = bytes(range(16))
PLAIN_BYTES_MAX = 8192  # plain construct needs 100 µs and more for a small packet
CODECS: dict[type, Codec[Any]] = {
    record: Codec(record)
    for record in (UserMessage, EstablishConnection, ConnectionParameters, SessionAck, Ping)
}
REFUSALS = (
    MessageClass.NACK_BAD_DESTINATION_QUEUE,
    MessageClass.NACK_REACH_QUEUE_TIMEOUT,
    MessageClass.NACK_RECEIVE_TIMEOUT,
    MessageClass.ACK_REACH_QUEUE,
    MessageClass.ACK_RECEIVE,
)


def message_packets() -> Iterable[bytes]:
    """Return messages with every header and every kind of queue name, and the published one."""
    source = bytes(range(100, 116))
    build = partial(wire.message, source=source, message_id=7, sent_time=1_700_000_000)
    orders = wire.private("orders")
    yield published_frames.USER_MESSAGE_AS_FAR_AS_PRINTED.ljust(0x8B0, b"a")
    yield build(destination=orders)
    yield build(destination=orders, body=b"odd", label="a label", extension=b"ext", priority=7)
    yield build(destination=orders, recoverable=True, session=wire.Session(3, 1, 7, 9, 8))
    yield build(destination=orders, transaction=wire.Transaction(0x1C, 5 << 32 | 1, 4, 3))
    yield build(destination=orders, admin=orders, response=orders, ack_bits=15, dead_letter=True)
    yield build(destination=wire.Name(3, number=9), address=OWN_ID, response=wire.Name(1))
    yield build(destination=wire.Name(5, guid=source), response=wire.Name(4, number=1))
    yield build(destination=orders, admin=wire.Name(6, guid=source, number=2), body_type=8)
    yield build(destination=orders, time_to_reach_queue=30, time_to_be_received=60, hops=29)
    yield build(destination=orders, trailing=struct.pack("<III", 12, 0, 0))
    for part, _, _, header in mutation.SPARE_HEADERS:
        if part in ("security", "debug", "soap", "multi_queue", "connector"):
            yield build(destination=orders, **{part: header})
    yield wire.order_ack(source=source, message_id=8, sequence_id=5 << 32 | 1, number=4)
    original = wire.parse(build(destination=orders, transaction=wire.Transaction(12, 1, 1, 0)))
    assert isinstance(original, wire.Message)
    yield wire.final_ack(source=source, message_id=9, message_class=0x8000, of=original)


def internal_packets() -> Iterable[bytes]:
    yield published_frames.ESTABLISH_REQUEST
    yield published_frames.PARAMETERS_REQUEST
    yield published_frames.PING_REQUEST
    yield wire.establish(client=OWN_ID, refused=True)
    yield wire.session_ack(wire.Session(2, 1, 3, 4, 5))


# Checks.


def check_user_message(packet: bytes) -> None:
    """Check the derived functions: build a message again, and patch it."""
    message = _read(parse_user_message, packet)
    if message is None:
        return
    rebuilt = within_limits(build_user_message, message)
    again = within_limits(parse_user_message, rebuilt)
    assert build_user_message(again) == rebuilt
    assert _without_sizes(again) == _without_sizes(message)
    _check_places(packet, message)


def check_answers(packet: bytes) -> None:
    """Check the packets that the queue manager makes from an accepted message."""
    message = _read(parse_user_message, packet)
    if message is None:
        return
    within_limits(_answer, packet, message)


def check_against_plain_construct(packet: bytes) -> None:
    """Check that both readers of a user message agree, and report errors in the same field."""
    if len(packet) <= PLAIN_BYTES_MAX:
        _compare(UserMessage, packet)


def check_internal_packet(packet: bytes) -> None:
    """Check the parsers of internal packets and the ping with any bytes: any peer may send them."""
    for record in (EstablishConnection, ConnectionParameters, SessionAck, Ping):
        _compare(record, packet)
    ping = _read(parse_ping, packet)
    if ping is not None:
        answer = ping_response(ping, queue_manager=OWN_ID, refused=True)
        assert len(answer) == len(packet), "a datagram costs a datagram"


def check_places(packet: bytes) -> None:
    """Check the helpers that read single fields of a packet, with unchecked bytes."""
    for look in (packet_kind, transaction_offset, properties_offset):
        found, _ = outcome(MalformedPacket, look, packet)
        if found is None:
            continue
        if look is properties_offset:
            assert len(patch_class(packet, 0x8002)) == len(packet)
        if isinstance(found, int):
            assert 0 < found < len(packet)


# Helpers.


def _read(parse: Any, packet: bytes) -> Any:
    """Return the result of a parser or None; it refuses with one error that has an offset."""
    value, refused = outcome(MalformedPacket, parse, packet)
    if refused is not None:
        assert refused.field
        assert refused.rule
        # At the start of a run of fixed fields, or after missing padding.
        assert 0 <= refused.offset <= max(64, len(packet) + 3)
    return value


def _compare(record: type, packet: bytes) -> None:
    derived, refused = outcome(MalformedPacket, CODECS[record].parse, packet)
    try:
        plain, plainly_refused = parse_plainly(record, packet), None
    except MalformedPacket as error:
        plain, plainly_refused = None, error
    assert derived == plain
    assert repr(derived) == repr(plain), "of the same types"
    # Where bytes are missing, plain construct may have found a broken rule just before.
    if refused is not None and not refused.rule.startswith("takes "):
        assert plainly_refused is not None
        assert refused.field == plainly_refused.field


def _without_sizes(message: UserMessage) -> UserMessage:
    """Return a message without the fields that the builder computes."""
    lists = message.multi_queue
    if lists is not None:
        lists = lists._replace(
            destination=lists.destination._replace(header_size=0),
            admin=lists.admin._replace(header_size=0),
            response=lists.response._replace(header_size=0),
        )
    return message._replace(base=message.base._replace(packet_size=0), multi_queue=lists)


def _check_places(packet: bytes, message: UserMessage) -> None:
    """Check that the helpers find the same values as the parser."""
    header, at = message.transaction, transaction_offset(packet)
    assert (header is None) == (at is None)
    if header is not None and at is not None:
        found = struct.unpack_from("<QII", packet, at + 4)
        assert found == (header.sequence_id, header.sequence_number, header.previous_number)
    patched = parse_user_message(patch_class(packet, 0x8002))
    changed = message.properties._replace(message_class=0x8002)
    assert patched == message._replace(properties=changed)
    stored = without_session_header(packet)
    assert parse_user_message(stored).session is None
    if message.session is not None:
        assert append_session_header(stored, message.session) == packet
    user = message.user
    assert stored_packet.message_number(packet) == user.message_number
    assert stored_packet.is_express(packet) == (user.flags.delivery == 0)
    assert stored_packet.is_transactional(packet) == (header is not None)


def _answer(packet: bytes, message: UserMessage) -> None:
    message_class = REFUSALS[zlib.crc32(packet) % len(REFUSALS)]
    kind = classify(message, OWN_ID)
    if kind is MessageKind.ORDER_ACK:
        order_ack_body(message)
    elif kind is MessageKind.FINAL_ACK:
        _read(lambda _: final_ack_body(message), packet)
    for at_source in (False, True):
        consequences(message, message_class, at_source=at_source, insecure_nacks=True)
    for time_s in (stored_packet.reach_time_s(packet), stored_packet.receive_time_s(packet)):
        stored_packet.time_left_s(packet, time_s, 0)
    common: dict[str, Any] = {"own_id": OWN_ID, "message_number": 1, "sent_time": 1}
    for destination in administration_queues(message, OWN_ID):
        built = build_acknowledgment(message, message_class, destination=destination, **common)
        parse_user_message(built)
    if message.transaction is not None:
        destination = order_queue_of(OWN_ID, "127.0.0.1", by_direct_name=bool(packet[-1] & 1))
        final_ack = final_ack_packet(
            message, message_class | 0x4000, destination=destination, **common
        )
        final_ack_body(parse_user_message(final_ack))
    Message(StoredMessage(1, 0, without_session_header(packet))).to_json()


TARGETS = (
    Target("user_message", check_user_message, message_packets, mutation.mutate_packet),
    Target("answers", check_answers, message_packets, mutation.mutate_packet),
    Target(
        "plain_construct", check_against_plain_construct, message_packets, mutation.mutate_packet
    ),
    Target("internal_packet", check_internal_packet, internal_packets, mutation.mutate_packet),
    Target("places", check_places, message_packets, mutation.mutate_packet),
)
