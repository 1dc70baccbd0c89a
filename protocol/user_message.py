"""The parser and builder of user messages, used on the hot path (MS-MQMQ 2.2.20)."""

from __future__ import annotations

from protocol.codec.derive import Codec
from protocol.records import UserMessage

_CODEC = Codec(UserMessage)
_parse, _build = _CODEC.parse, _CODEC.build


def parse_user_message(packet: bytes) -> UserMessage:
    """Parse a complete packet, with its SessionHeader if one is piggybacked.

    All rules of the specification for the bytes of a message are checked.  Raises MalformedPacket.
    """
    return _parse(packet)


def build_user_message(message: UserMessage) -> bytes:
    """Build the packet of a message.

    PacketSize and all sizes and counts are computed; those in the record are not used.  The flags
    must announce exactly the headers and names that are present.  Raises MalformedPacket.
    """
    return _build(message)
