"""Requests with many messages, of which the messages are decoded later, in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from qmd.control_protocol.messages import (
    MESSAGES_MAX,
    NewMessage,
    Request,
    Send,
    Token,
    TransactionId,
)
from qmd.control_protocol.once import FINGERPRINT_BYTES_MAX, SendOnce

#: A request with fewer messages is decoded and done at once: some ten milliseconds.
MANY = 1024
#: A request with more signed messages is done in parts too: to verify one takes 0.3 ms.
SIGNED_AT_ONCE = 8
_MESSAGE_BYTES_MIN = 4  # an array of a destination and a body
_MESSAGES = 2  # the index of the messages in a request

# Of MessagePack: first bytes, and the bytes of integers after them.
_SHORT_TEXT, _SHORT_ARRAY, _ARRAY_16, _INTEGERS = 0xA0, 0x90, 0xDC, 0x80
_INTEGER_BYTES = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}

RawMessages = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MESSAGES_MAX)]


class SendParts(Request, tag="send", frozen=True):
    """A `Send` with messages that are not decoded."""

    messages: RawMessages
    token: Token = b""
    transaction: TransactionId = b""
    once: bool = False


class SendOnceParts(Request, tag="send_once", frozen=True):
    """A `SendOnce` with messages that are not decoded."""

    messages: RawMessages
    token: Token
    fingerprint: Annotated[bytes, msgspec.Meta(max_length=FINGERPRINT_BYTES_MAX)] = b""


_requests = msgspec.msgpack.Decoder(SendParts | SendOnceParts)
_messages = msgspec.msgpack.Decoder(NewMessage)
_encode = msgspec.msgpack.Encoder().encode


def request_in_parts(data: bytes | memoryview) -> SendParts | SendOnceParts | None:
    """Return a request with many messages; None: it is another one, or is not valid."""
    if len(data) < MANY * _MESSAGE_BYTES_MIN or _has_few(data):
        return None
    try:
        request = _requests.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return request if len(request.messages) >= MANY else None


def _has_few(data: bytes | memoryview) -> bool:
    """Return whether the first bytes show a request with fewer than `MANY` messages.

    They are the header of an array, a verb, a number, and the header of the array of messages.
    """
    verb = data[1]
    if verb & 0xE0 != _SHORT_TEXT:
        return False
    at = 2 + (verb & 0x1F)
    number = data[at]
    at += 1 if number < _INTEGERS else 1 + _INTEGER_BYTES.get(number, 0)
    if data[at] & 0xF0 == _SHORT_ARRAY:
        return True
    return data[at] == _ARRAY_16 and (data[at + 1] << 8 | data[at + 2]) < MANY


def is_slow(request: Send | SendOnce) -> bool:
    """Return whether a request with few messages takes long nevertheless."""
    messages = request.messages
    return (
        len(messages) > SIGNED_AT_ONCE
        and sum([bool(new.signature) for new in messages]) > SIGNED_AT_ONCE
    )


def in_parts(request: Send | SendOnce) -> SendParts | SendOnceParts:
    """Return a request as one of which the messages are decoded in parts."""
    raw = [msgspec.Raw(_encode(new)) for new in request.messages]
    if isinstance(request, Send):
        return SendParts(request.number, raw, request.token, request.transaction, request.once)
    return SendOnceParts(request.number, raw, request.token, request.fingerprint)


def decode_messages(raw: Sequence[msgspec.Raw], first: int) -> list[NewMessage]:
    """Decode messages of a request; `first` is the index of the first of them.

    Raises msgspec.DecodeError with the place of the error in the request.
    """
    messages: list[NewMessage] = []
    try:
        for each in raw:
            messages.append(_messages.decode(each))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        fault, _, place = str(error).partition(" - at `$")
        at = f"`$[{_MESSAGES}][{first + len(messages)}]{place.rstrip('`')}`"
        raise msgspec.DecodeError(f"{fault} - at {at}") from error
    return messages
