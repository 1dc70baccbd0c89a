"""Identifiers in their wire form and their text form (MS-MQMQ 2.2.18.1, MS-DTYP 2.3.4).

Inside the daemon a GUID is its 16 wire bytes (Data1 to Data3 little-endian) and a message is (GUID
of the source queue manager, 32-bit number).  Text is used only for input and output:
`0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0`, and `<guid>\\<number>` for a message.
"""

from __future__ import annotations

import re
from functools import lru_cache

from protocol.errors import InvalidName

GUID_BYTES = 16
CORRELATION_BYTES = 20  # a GUID and a message number, in an acknowledgment
NULL_GUID = bytes(GUID_BYTES)

_U32_MAX = 0xFFFFFFFF
_TWENTY_BYTES = re.compile("[0-9A-Fa-f]{40}")
_GUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


@lru_cache(1024)
def guid_text(raw: bytes) -> str:
    """Format 16 wire bytes as lower-case text without braces."""
    assert len(raw) == GUID_BYTES, "a GUID has 16 bytes"
    data1, data2, data3 = raw[3::-1].hex(), raw[5:3:-1].hex(), raw[7:5:-1].hex()
    return f"{data1}-{data2}-{data3}-{raw[8:10].hex()}-{raw[10:].hex()}"


def guid_bytes(text: str) -> bytes:
    """Parse a GUID in any case, with or without braces, to 16 wire bytes.  Raises InvalidName."""
    bare = text[1:-1] if text[:1] == "{" and text[-1:] == "}" else text
    if not _GUID.fullmatch(bare):
        rule = "MUST be a GUID such as 0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
        raise InvalidName("guid", 0, rule)
    data1, data2, data3, *data4 = bare.split("-")
    swapped = b"".join(bytes.fromhex(part)[::-1] for part in (data1, data2, data3))
    return swapped + bytes.fromhex("".join(data4))


def message_id_text(source: bytes, number: int) -> str:
    """Format a message identifier; `source` is the GUID of its queue manager."""
    return f"{guid_text(source)}\\{number}"


def parse_message_id(text: str) -> tuple[bytes, int]:
    """Parse a message identifier to (source GUID, number).  Raises InvalidName."""
    guid, backslash, number = text.partition("\\")
    at = len(guid) + 1
    if not backslash:
        raise InvalidName("message_id", len(text), "MUST be <guid>\\<number>")
    if not re.fullmatch("[0-9]{1,10}", number) or int(number) > _U32_MAX:
        raise InvalidName("message_id.number", at, f"MUST be a number of 0..{_U32_MAX}")
    return guid_bytes(guid), int(number)


def correlation_text(raw: bytes) -> str:
    """Format the 20 bytes of a CorrelationID as a message identifier."""
    assert len(raw) == CORRELATION_BYTES, "a correlation id has 20 bytes"
    return message_id_text(raw[:GUID_BYTES], int.from_bytes(raw[GUID_BYTES:], "little"))


def parse_correlation(text: str) -> bytes:
    """Parse a message identifier, or 40 hexadecimal digits, to the 20 bytes of a CorrelationID.

    Raises InvalidName for any other text.
    """
    if _TWENTY_BYTES.fullmatch(text):
        return bytes.fromhex(text)
    return correlation_bytes(*parse_message_id(text))


def correlation_bytes(source: bytes, number: int) -> bytes:
    """Return the CorrelationID of an acknowledgment of this message (MS-MQMQ 2.2.18.1.3)."""
    return source + number.to_bytes(4, "little")


def sequence_id(timestamp: int, ordinal: int) -> int:
    """Return a TxSequenceID as one number, which also gives its order (MS-MQMQ 2.2.18.1.2)."""
    assert 0 <= timestamp <= _U32_MAX, "a timestamp has 32 bits"
    assert 0 <= ordinal <= _U32_MAX, "an ordinal has 32 bits"
    return timestamp << 32 | ordinal


def sequence_parts(sequence_id: int) -> tuple[int, int]:
    """Return (timestamp, ordinal) of a TxSequenceID."""
    return sequence_id >> 32, sequence_id & _U32_MAX
