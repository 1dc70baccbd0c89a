"""Requests with many messages, of which the messages are decoded later, in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from qmd.control_protocol.messages import MESSAGES_MAX, NewMessage, Request, Token, TransactionId
from qmd.control_protocol.once import FINGERPRINT_BYTES_MAX

#: A request with fewer messages is decoded and done at once: some ten milliseconds.
MANY = 1024
_MESSAGE_BYTES_MIN = 4  # an array of a destination and a body
_MESSAGES = 2  # the index of the messages in a request

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


def request_in_parts(data: bytes | memoryview) -> SendParts | SendOnceParts | None:
    """Return a request with many messages; None: it is another one, or is not valid."""
    if len(data) < MANY * _MESSAGE_BYTES_MIN:
        return None
    try:
        request = _requests.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return request if len(request.messages) >= MANY else None


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
