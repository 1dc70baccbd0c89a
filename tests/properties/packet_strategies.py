"""Packets of every shape, and changes that break them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from protocol import (
    SIGNATURE,
    VERSION,
    BaseFlags,
    BaseHeader,
    DebugFlags,
    DebugHeader,
    DirectQueueName,
    MessagePropertiesHeader,
    MqfAddressHeader,
    MqfElement,
    MqfSignatureHeader,
    MultiQueueFormatHeader,
    PrivateQueueName,
    PropertyFlags,
    SecurityFlags,
    SecurityHeader,
    SessionHeader,
    SoapHeader,
    TransactionFlags,
    TransactionHeader,
    UserFlags,
    UserHeader,
    UserMessage,
    wide_text,
)

u8, u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
guids = st.binary(min_size=16, max_size=16)
# Half of the characters end with a zero byte, some begin with one, so that two zero bytes are not
# always a null character.
characters = st.characters(min_codepoint=1) | st.sampled_from("a\u0100\u6200\ud800\U0001f4e8")
texts = st.text(characters, max_size=12).map(wide_text)
# Bytes that are a text, or nearly one.
nearly_texts = st.lists(st.sampled_from([0, 0, 0x61, 1]), max_size=8).map(bytes)
blobs = st.binary(max_size=9)

direct_names = texts.map(lambda text: DirectQueueName(len(text), text))
private_names = st.builds(PrivateQueueName, guids, u32)
QUEUE_NAMES: dict[int, st.SearchStrategy[Any]] = {
    **{0: st.none(), 1: st.none(), 2: u32, 3: u32, 4: u32},
    **{5: guids, 6: private_names, 7: direct_names},
}
elements = st.one_of(
    st.builds(MqfElement, st.just(1), guids),
    st.builds(MqfElement, st.just(2), private_names),
    st.builds(MqfElement, st.just(3), texts),
    st.builds(MqfElement, st.just(6), guids),
)


@st.composite
def transaction_headers(draw: st.DrawFn) -> TransactionHeader:
    flags = TransactionFlags(draw(u32))
    return TransactionHeader(
        flags, draw(u64), draw(u32), draw(u32), draw(guids) if flags.connector else None
    )


@st.composite
def security_headers(draw: st.DrawFn) -> SecurityHeader:
    flags = SecurityFlags(draw(u16)).replace(sender_type=draw(st.integers(0, 2)))
    items = [draw(blobs) for _ in range(5)]
    if not flags.sender_type:
        items[0] = b""
    if not any(items):
        items[-1] = b"\x01"
    return SecurityHeader(flags, *map(len, items), *items)


@st.composite
def properties_headers(draw: st.DrawFn) -> MessagePropertiesHeader:
    label = draw(texts | st.just(b""))
    extension, body = draw(blobs), draw(st.binary(max_size=70))
    return MessagePropertiesHeader(
        PropertyFlags(draw(u8)),
        len(label) // 2,
        draw(u16),
        draw(st.binary(min_size=20, max_size=20)),
        *(draw(u32) for _ in range(2)),
        len(body),
        *(draw(u32) for _ in range(4)),
        len(extension),
        label,
        extension,
        body,
    )


@st.composite
def debug_headers(draw: st.DrawFn) -> DebugHeader:
    flags = DebugFlags(draw(u16)).replace(queue_type=draw(st.integers(0, 1)))
    return DebugHeader(flags, draw(u16), draw(guids) if flags.queue_type else None)


@st.composite
def soap_headers(draw: st.DrawFn) -> SoapHeader:
    header, body = draw(texts | st.just(b"")), draw(texts | st.just(b""))
    return SoapHeader(
        *(0x0320, draw(u16), len(header) // 2, header),
        *(0x0384, draw(u16), len(body) // 2, body),
    )


def _element_bytes(count: int, element: MqfElement) -> int:
    """Return the size of a list that had `count` bytes before this element."""
    if element.format_type == 3:
        return count + 2 + len(element.name)  # type: ignore[arg-type]
    return (count + 2 + 3 & -4) + (20 if element.format_type == 2 else 16)


@st.composite
def multi_queue_headers(draw: st.DrawFn) -> MultiQueueFormatHeader:
    def addresses(header_id: int) -> MqfAddressHeader:
        found = tuple(draw(st.lists(elements, max_size=4)))
        size = 12
        for element in found:
            size = _element_bytes(size, element)
        return MqfAddressHeader(size, header_id, draw(u16), len(found), found)

    signature = draw(blobs)
    return MultiQueueFormatHeader(
        addresses(0x64),
        addresses(0xC8),
        addresses(0x12C),
        MqfSignatureHeader(0x15E, draw(u16), len(signature), signature),
    )


@st.composite
def session_headers(draw: st.DrawFn) -> SessionHeader:
    return SessionHeader(draw(u16), draw(u16), draw(u32), *(draw(u16) for _ in range(4)))


@st.composite
def user_messages(draw: st.DrawFn) -> UserMessage:
    """Draw any message that the specification allows; the builder computes PacketSize."""
    base_flags = BaseFlags(draw(u16)).replace(internal=0, debug_header=1)
    if draw(st.booleans()):
        base_flags = base_flags.replace(debug_header=0, tracing=0)
    flags = UserFlags(draw(u32)).replace(
        hops=draw(st.integers(0, 29)),
        destination_type=draw(st.sampled_from([0, 3, 5, 7, 7])),
        admin_type=draw(st.sampled_from([0, 2, 3, 5, 6, 7])),
        properties_header=1,
        http_header=0,
    )
    flags = flags.replace(delivery=1 if flags.transaction_header else draw(st.integers(0, 1)))
    user = UserHeader(
        draw(guids),
        draw(guids),
        *(draw(u32) for _ in range(3)),
        flags,
        draw(QUEUE_NAMES[flags.destination_type]),
        draw(QUEUE_NAMES[flags.admin_type]),
        draw(QUEUE_NAMES[flags.response_type]),
        draw(guids) if flags.connector_type else None,
    )
    return UserMessage(
        BaseHeader(VERSION, draw(u8), base_flags, SIGNATURE, 0, draw(u32)),
        user,
        draw(transaction_headers()) if flags.transaction_header else None,
        draw(security_headers()) if flags.security_header else None,
        draw(properties_headers()),
        draw(debug_headers()) if base_flags.debug_header else None,
        draw(soap_headers()) if flags.soap_header else None,
        draw(multi_queue_headers()) if flags.multi_queue_header else None,
        draw(session_headers()) if base_flags.session_header else None,
    )


@st.composite
def spoilt(draw: st.DrawFn, packet: bytes) -> bytes:
    """Break a packet: change, cut or add bytes, and perhaps correct its PacketSize."""
    data = bytearray(packet)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data) - 1))
        data[at] = draw(u8)
    if draw(st.booleans()):  # a wrong size or count
        size = draw(st.sampled_from([1, 2, 4]))
        at = draw(st.integers(0, len(data) // 2 - size)) & -size
        wrong = draw(st.sampled_from([0, 1, 2, 2 ** (8 * size - 1), 2 ** (8 * size) - 1]))
        data[at : at + size] = wrong.to_bytes(size, "little")
    match draw(st.sampled_from(["cut", "extend", "leave"])):
        case "cut":
            del data[draw(st.integers(0, len(data)) | st.integers(len(data) - 30, len(data))) :]
        case "extend":
            data += draw(blobs)
    if len(data) >= 12 and draw(st.booleans()):
        carried = 16 if data[2] & 0x18 == 0x10 else 0
        data[8:12] = max(0, len(data) - carried).to_bytes(4, "little")
    return bytes(data)
