"""User messages, read and built on the hot path (MS-MQMQ 2.2.20)."""

from __future__ import annotations

from protocol.codec.derive import Codec
from protocol.records import UserMessage

_CODEC = Codec(UserMessage)
_parse, _build = _CODEC.parse, _CODEC.build


def parse_user_message(packet: bytes) -> UserMessage:
    """Read a whole packet, with its SessionHeader if one rides on it.

    Every rule that the specification has for the bytes of a message is checked.
    """
    return _parse(packet)


def build_user_message(message: UserMessage) -> bytes:
    """The packet of a message.

    PacketSize and all sizes and counts are worked out; those in the records are not used.  The
    flags must announce exactly the headers and names that are there.
    """
    return _build(message)
