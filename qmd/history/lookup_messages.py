"""The messages of look-ups between queue managers: requests and replies, encoded and decoded.

They are MessagePack arrays.  All fields of a received message are limited in size.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from protocol.identifiers import guid_text, message_id_text
from qmd.history.event_query import time_text
from storage.tables.events import SCHEMA

VERSION = 1
REQUEST_BYTES_MAX = 256
REPLY_BYTES_MAX = 64 * 1024
EVENTS_MAX = 200  # in a reply
CHARACTERS_MAX = 1000  # of a sentence

Value = dict[str, Any]
Line = Annotated[str, msgspec.Meta(max_length=CHARACTERS_MAX)]
Word = Annotated[str, msgspec.Meta(max_length=512)]


class LookupRequest(msgspec.Struct, array_like=True, tag="why", frozen=True):
    """The body of a request: the message with this source and number."""

    version: int
    source: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    number: Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]


class ReplyEvent(msgspec.Struct, array_like=True, frozen=True):
    """An event of the requested message; docs/events.md has the fields."""

    cursor: Word
    at_ms: Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
    kind: Word
    queue: Word
    peer: Word
    lookup_id: int | None
    sequence_id: int | None
    sequence_number: int | None
    message_class: Word | None
    delivery: Word
    bytes: int
    reason: Line
    to_queue: Word
    transaction: Word
    label: Word = ""
    correlation_id: Word = ""


class LookupReply(msgspec.Struct, array_like=True, tag="told", frozen=True):
    """The body of a reply: the description of the message by the replying queue manager."""

    version: int
    host: Word
    state: Word
    sentences: Annotated[list[Line], msgspec.Meta(max_length=64)]
    remedies: Annotated[list[Line], msgspec.Meta(max_length=16)]
    events: Annotated[list[ReplyEvent], msgspec.Meta(max_length=EVENTS_MAX)]
    events_left_out: bool


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[LookupRequest | LookupReply] = msgspec.msgpack.Decoder(
    LookupRequest | LookupReply
)


def encoded_request(source: bytes, number: int) -> bytes:
    """Return the encoded request for a message."""
    return _encoder.encode(LookupRequest(VERSION, source, number))


def encoded_reply(description: Value) -> bytes:
    """Return the encoded reply with as many events as fit: the first and the last ones."""
    events = [
        ReplyEvent(
            _cut(event["cursor"], 512),
            max(0, event["at_ms"]),
            _cut(event["kind"], 512),
            _cut(event["queue"], 512),
            _cut(event["peer"], 512),
            event["lookup_id"],
            event["sequence_id"],
            event["sequence_number"],
            event["class"],
            _cut(event["delivery"], 512),
            event["bytes"],
            _cut(event["reason"]),
            _cut(event["to_queue"], 512),
            _cut(event["transaction"], 512),
            event["label"],
            event["correlation_id"],
        )
        for event in description["events"]
    ]
    left_out = bool(description["events_left_out"])
    events_max = EVENTS_MAX
    while True:
        if len(events) > events_max:
            half = events_max // 2
            events, left_out = [*events[:half], *events[len(events) - half :]], True
        body = _encoder.encode(
            LookupReply(
                VERSION,
                _cut(description["host"], 512),
                description["state"],
                [_cut(sentence) for sentence in description["sentences"][:64]],
                [_cut(remedy) for remedy in description["remedies"][:16]],
                events,
                left_out,
            )
        )
        if len(body) <= REPLY_BYTES_MAX or not events:
            return body
        events_max = len(events) // 2


def decoded(body: bytes) -> LookupRequest | LookupReply | None:
    """Return the decoded body of a message to `HISTORY_QUEUE`, or None.

    None means that it is invalid or too large.
    """
    if len(body) > REPLY_BYTES_MAX:
        return None
    try:
        value = _decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    is_too_large = isinstance(value, LookupRequest) and len(body) > REQUEST_BYTES_MAX
    return None if is_too_large else value


def facts_of(reply: LookupReply, remote: bytes, source: bytes, number: int) -> Value:
    """Return a reply in the form of `MessageDescriber.describe`."""
    return {
        "host": reply.host,
        "state": reply.state,
        "sentences": reply.sentences,
        "remedies": reply.remedies,
        "events": [_flat(event, reply.host, remote, source, number) for event in reply.events],
        "events_left_out": reply.events_left_out,
    }


def _cut(text: str, characters_max: int = CHARACTERS_MAX) -> str:
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"


def _flat(event: ReplyEvent, host: str, remote: bytes, source: bytes, number: int) -> Value:
    """Return an event of a reply in the form of `event_query.flat`."""
    block, _, index = event.cursor.partition(".")
    return {
        "schema": SCHEMA,
        "host": host,
        "queue_manager": guid_text(remote),
        "cursor": event.cursor,
        "block": int(block) if block.isdecimal() and len(block) < 16 else 0,
        "index": int(index) if index.isdecimal() and len(index) < 16 else 0,
        "time": time_text(event.at_ms),
        "at_ms": event.at_ms,
        "kind": event.kind,
        "message_id": message_id_text(source, number),
        "queue": event.queue,
        "peer": event.peer,
        "lookup_id": event.lookup_id,
        "sequence_id": event.sequence_id,
        "sequence_number": event.sequence_number,
        "class": event.message_class,
        "delivery": event.delivery,
        "bytes": event.bytes,
        "reason": event.reason,
        "to_queue": event.to_queue,
        "transaction": event.transaction,
        "label": event.label,
        "correlation_id": event.correlation_id,
    }
