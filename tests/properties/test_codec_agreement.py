"""The derived functions and plain construct agree on every packet, good or bad."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import (
    DirectQueueName,
    MalformedPacket,
    MqfAddressHeader,
    MqfElement,
    UserMessage,
    build_establish_connection,
    build_session_ack,
    build_user_message,
    establish_connection,
    parse_user_message,
)
from protocol.codec.derive import Codec
from protocol.codec.reference import build_plainly, parse_plainly
from protocol.flags import OperatingSystem
from protocol.internal_packets import build_connection_parameters, connection_parameters
from protocol.ping import Ping, ping_request
from protocol.records import ConnectionParameters, EstablishConnection, SessionAck
from tests.properties.packet_strategies import (
    guids,
    nearly_texts,
    session_headers,
    spoilt,
    u16,
    u32,
    user_messages,
)

CODECS: dict[type, Codec[Any]] = {
    record: Codec(record)
    for record in (UserMessage, EstablishConnection, ConnectionParameters, SessionAck, Ping)
}


def outcome(act: Any, *arguments: Any) -> Any:
    """Return the result of a parser, or its error."""
    try:
        return act(*arguments)
    except MalformedPacket as refused:
        return refused


def assert_both_read_the_same(record: type, packet: bytes) -> None:
    derived = outcome(CODECS[record].parse, packet)
    plain = outcome(parse_plainly, record, packet)

    if not isinstance(derived, MalformedPacket):
        assert derived == plain
        assert repr(derived) == repr(plain), "of the same types"
        return
    assert isinstance(plain, MalformedPacket), derived
    assert derived.offset >= 0
    # Where bytes are missing, plain construct may have found another error just before;
    # the derived functions read a run of fields at once.
    if not derived.rule.startswith("takes "):
        assert derived.field == plain.field


@settings(max_examples=400)
@given(user_messages())
def test_both_build_the_same_packet_and_read_it_back(message: UserMessage) -> None:
    packet = build_user_message(message)

    assert packet == build_plainly(message)
    assert len(packet) % 4 == 0
    again = parse_user_message(packet)
    size = len(packet) - (16 if message.session else 0)
    assert again == message._replace(base=message.base._replace(packet_size=size))
    assert again == parse_plainly(UserMessage, packet)
    assert build_user_message(again) == packet


@settings(max_examples=800)
@given(st.data())
def test_both_refuse_the_same_broken_messages(data: st.DataObject) -> None:
    packet = build_user_message(data.draw(user_messages()))

    assert_both_read_the_same(UserMessage, data.draw(spoilt(packet)))


@settings(max_examples=400)
@given(st.data())
def test_both_refuse_the_same_broken_internal_packets(data: st.DataObject) -> None:
    establish = establish_connection(
        client=data.draw(guids),
        server=data.draw(guids),
        timestamp=data.draw(u32),
        operating_system=OperatingSystem(data.draw(u16)),
        refused=data.draw(st.booleans()),
    )
    parameters = connection_parameters(
        recoverable_ack_timeout_ms=data.draw(u32),
        ack_timeout_ms=data.draw(u32),
        window_size=data.draw(u16),
    )
    session = data.draw(session_headers())._replace(window_size=64)
    packets = {
        EstablishConnection: build_establish_connection(establish),
        ConnectionParameters: build_connection_parameters(parameters),
        SessionAck: build_session_ack(session),
        Ping: ping_request(cookie=data.draw(u32), queue_manager=data.draw(guids), server=False),
    }
    record = data.draw(st.sampled_from(list(packets)))

    assert_both_read_the_same(record, packets[record])
    assert_both_read_the_same(record, data.draw(spoilt(packets[record])))


@settings(max_examples=400)
@given(user_messages(), user_messages(), st.data())
def test_both_refuse_to_build_the_same_contradictions(
    message: UserMessage, other: UserMessage, data: st.DataObject
) -> None:
    """Build messages with a header or field of another message, or an invalid text or GUID."""
    name = data.draw(st.just("user") | st.sampled_from(message._fields))
    header, strange = getattr(message, name), getattr(other, name)
    if header and strange and data.draw(st.booleans()):
        field = data.draw(st.sampled_from(header._fields))
        value = getattr(strange, field)
        if isinstance(value, bytes):
            value = data.draw(st.binary(max_size=20) | nearly_texts)
        if isinstance(value, DirectQueueName):
            value = DirectQueueName(0, data.draw(nearly_texts))
        if isinstance(value, MqfAddressHeader):
            value = value._replace(elements=(MqfElement(3, data.draw(nearly_texts)),))
        strange = header._replace(**{field: value})
    mixed = message._replace(**{name: strange})

    derived = outcome(CODECS[UserMessage].build, mixed)
    plain = outcome(build_plainly, mixed)

    if not isinstance(derived, MalformedPacket):
        assert derived == plain
        return
    assert isinstance(plain, MalformedPacket), derived


@settings(max_examples=300)
@given(st.binary(max_size=200), st.booleans())
def test_noise_is_refused_with_an_offset(noise: bytes, begins_well: bool) -> None:
    packet = b"\x10\x00\x03\x00LIOR" + noise if begins_well else noise

    refused = outcome(parse_user_message, packet)

    if isinstance(refused, MalformedPacket):
        assert refused.field
        assert 0 <= refused.offset <= max(64, len(packet))
    assert_both_read_the_same(UserMessage, packet)
