r"""Block of properties at the beginning of the extension of a message.

    MARK (17 bytes)  length (4 bytes, little-endian)  MessagePack map  │ the application's extension

MSMQ carries the extension from end to end as bytes (PROPID_M_EXTENSION, [MS-MQMQ] 2.2.19.3), so
that properties survive every host on the way.  An application that does not know the block sees
it as bytes, and may ignore it.  docs/decisions/0036 gives the reasons.

The map has a key for each section (`_SECTIONS`).  Values that MessagePack has no type for are
extension types: 1 is an array of the name of an AMQP type and the value, 2 a UUID of 16 bytes, 3 a
time in milliseconds since 1970, 4 a dictionary as an array of its pairs, for keys of such types.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from qmd.properties.values import NO_PROPERTIES, MessageProperties, Typed, Value

MARK = b"qmd-properties 1\n"
BLOCK_BYTES_MAX = 256 * 1024
_LENGTH = struct.Struct("<I")
_HEAD_BYTES = len(MARK) + _LENGTH.size
_SECTIONS = ("a", "s", "n", "f", "m")  # as the fields of MessageProperties
_TYPED, _UUID, _TIME, _PAIRS = 1, 2, 3, 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_PLAIN = (type(None), bool, int, float, str, bytes)
DEPTH_MAX = 32


class BadProperty(ValueError):
    """A property cannot be encoded: its type, its name or the size of all of them."""


def with_properties(properties: MessageProperties, extension: bytes = b"") -> bytes:
    """Return the extension of a message with these properties; without any, `extension` itself.

    Raises BadProperty.
    """
    sections = {
        key: _checked_map(section, 0)
        for key, section in zip(_SECTIONS, properties, strict=True)
        if section
    }
    if not sections:
        return extension
    for section in properties[:2]:
        for name in section:
            if not isinstance(name, str):
                raise BadProperty(f"the name of a property is {name!r}; it must be a text")
    try:
        data = msgspec.msgpack.encode(sections)
    except (OverflowError, UnicodeEncodeError) as error:
        raise BadProperty(f"a property cannot be encoded: {error}") from error
    if len(data) > BLOCK_BYTES_MAX:
        raise BadProperty(
            f"the properties have {len(data)} bytes together; {BLOCK_BYTES_MAX} are allowed"
        )
    return b"".join((MARK, _LENGTH.pack(len(data)), data, extension))


def read_extension(extension: bytes) -> tuple[MessageProperties, bytes]:
    """Return the properties in the extension of a message, and the application's own extension.

    An extension without a valid block has no properties and is the application's own: any program
    can write such bytes.
    """
    if not extension.startswith(MARK) or len(extension) < _HEAD_BYTES:
        return NO_PROPERTIES, extension
    (length,) = _LENGTH.unpack_from(extension, len(MARK))
    end = _HEAD_BYTES + length
    if length > BLOCK_BYTES_MAX or end > len(extension):
        return NO_PROPERTIES, extension
    try:
        sections: Any = _decoder.decode(extension[_HEAD_BYTES:end])
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError, OverflowError):
        return NO_PROPERTIES, extension
    if not isinstance(sections, dict):
        return NO_PROPERTIES, extension
    found = [sections.get(key, {}) for key in _SECTIONS]
    if not all(isinstance(section, dict) for section in found):
        return NO_PROPERTIES, extension
    return MessageProperties(*found), extension[end:]


def _checked_map(values: Any, depth: int) -> Any:
    """Return a dictionary as msgspec encodes it; one with other keys than texts and integers
    becomes an extension type.  Raises BadProperty."""
    if all(type(key) in (str, int) for key in values):
        return {key: _encodable(each, depth + 1) for key, each in values.items()}
    pairs = [
        [_encodable(key, depth + 1), _encodable(each, depth + 1)] for key, each in values.items()
    ]
    return msgspec.msgpack.Ext(_PAIRS, msgspec.msgpack.encode(pairs))


def _encodable(value: Any, depth: int) -> Any:
    """Return the value as msgspec encodes it.  Raises BadProperty."""
    if depth > DEPTH_MAX:
        raise BadProperty(f"a property has more than {DEPTH_MAX} levels")
    if isinstance(value, Typed):
        inner = [value.type, _encodable(value.value, depth + 1)]
        return msgspec.msgpack.Ext(_TYPED, msgspec.msgpack.encode(inner))
    if type(value) in _PLAIN:
        return value
    if isinstance(value, UUID):
        return msgspec.msgpack.Ext(_UUID, value.bytes)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise BadProperty(f"{value!r} has no time zone")
        data = msgspec.msgpack.encode((value - _EPOCH) // _MILLISECOND)
        return msgspec.msgpack.Ext(_TIME, data)
    if isinstance(value, dict):
        return _checked_map(value, depth + 1)
    if isinstance(value, list | tuple):
        return [_encodable(each, depth + 1) for each in value]
    raise BadProperty(f"a property is {value!r}; properties are texts, numbers, bytes, ...")


def _read_special(code: int, data: memoryview) -> Value:
    if code == _UUID:
        return UUID(bytes=bytes(data))
    if code == _TIME:
        milliseconds = msgspec.msgpack.decode(data, type=int)
        try:
            return _EPOCH + timedelta(milliseconds=milliseconds)
        except OverflowError:  # after the year 9999: AMQP has 64 bits
            return Typed("timestamp", milliseconds)
    if code == _PAIRS:
        return dict(_decoder.decode(data))
    if code == _TYPED:
        kind, value = _decoder.decode(data)
        if not isinstance(kind, str):
            raise ValueError("the name of a type is no text")
        return Typed(kind, value)
    raise ValueError(f"extension type {code} is not known")


_decoder = msgspec.msgpack.Decoder(ext_hook=_read_special)
