"""Packets into columns, thousands at once.

The headers of a user message stand one behind the other, each at a multiple of four bytes (MS-MQMQ
2.2.20), so numpy reads one field of all packets in one step: the packets are one array of 32-bit
words, and `at` is where each packet's next header begins.  What is of variable length, bodies and
names, Arrow cuts out of the same bytes.

That way takes about a microsecond a message, where the parser of `protocol` and a `Message` take
forty.  What it does not know (rare headers, names that are not direct, anything that does not add
up) it leaves to that parser, whose word is final: both have to say the same of every packet, and a
property test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.source import schema
from protocol import INFINITE, LARGE_PACKET_BYTES_MAX, SIGNATURE, VERSION, PropertyFlags, plain_text
from protocol.errors import InvalidName
from protocol.format_name import parse_wire_name
from protocol.identifiers import guid_text
from protocol.message_class import MessageClass
from protocol.security_id import security_id_text
from qmd.client import Message
from qmd.frames import StoredMessage

Words = npt.NDArray[Any]  # of 32 bits without a sign
Whole = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_GUID_WORDS = 4
_USER_FLAGS = 15  # all in words from the start of the packet
_NAMES = 16
_TRANSACTION_WORDS = 5
_SECURITY_WORDS = 4
_PROPERTIES_WORDS = 14
_DIRECT = 7
# Of a queue's name by its type; that of a direct name stands in it.
_NAME_WORDS = np.array([0, 0, 1, 1, 1, 4, 5, 0], np.int64)
_DELIVERIES = pa.array(["express", "recoverable", "transactional"])
_ACKNOWLEDGE = pa.array(
    [
        [name for bit, name in enumerate(PropertyFlags.ranges) if flags >> bit & 1]
        for flags in range(16)
    ],
    schema.TEXTS,
)


@dataclass(slots=True)
class Rows:
    """Messages of one queue, in columns; packet i is packets[offsets[i]:offsets[i + 1]]."""

    positions: Whole
    lookup_ids: Whole
    arrived_at_ms: Whole
    abort_counts: npt.NDArray[np.int32]
    move_counts: npt.NDArray[np.int32]
    offsets: Whole
    packets: bytes
    reasons: Sequence[str | None] | None = None
    # Each packet ends where its body begins.
    headers_only: bool = False

    def __len__(self) -> int:
        return len(self.positions)

    def packet(self, index: int) -> bytes:
        return self.packets[self.offsets[index] : self.offsets[index + 1]]

    def chosen(self, rows: Whole) -> Rows:
        """Only these, in this order."""
        packets = [self.packet(int(row)) for row in rows]
        return Rows(
            self.positions[rows],
            self.lookup_ids[rows],
            self.arrived_at_ms[rows],
            self.abort_counts[rows],
            self.move_counts[rows],
            np.concatenate(([0], np.cumsum([len(packet) for packet in packets], dtype=np.int64))),
            b"".join(packets),
            None if self.reasons is None else [self.reasons[int(row)] for row in rows],
            self.headers_only,
        )

    def aligned(self) -> Rows:
        """The same with every packet at a multiple of four; there may be zeros between them."""
        if not (self.offsets & 3).any():
            return self
        packets = [self.packet(index) for index in range(len(self))]
        padded = [packet + bytes(-len(packet) & 3) for packet in packets]
        lengths = np.fromiter(map(len, padded), np.int64, len(padded))
        return Rows(
            self.positions,
            self.lookup_ids,
            self.arrived_at_ms,
            self.abort_counts,
            self.move_counts,
            np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
            b"".join(padded),
            self.reasons,
            self.headers_only,
        )


@dataclass(frozen=True, slots=True)
class Place:
    """What all messages of one read have in common."""

    host: str
    queue_manager: str
    queue: str


def batch_of(rows: Rows, place: Place, columns: Sequence[str]) -> Any:
    """An Arrow record batch of these columns of `schema.MESSAGE`.

    Raises MalformedPacket for a packet that is no user message.
    """
    arrays = arrays_of(rows, columns)
    for name in ("host", "queue_manager", "queue"):
        if name in columns:
            arrays[name] = pa.repeat(pa.scalar(getattr(place, name), pa.string()), len(rows))
    return pa.record_batch(
        [arrays[name] for name in columns], schema=schema.arrow_schema("messages", columns)
    )


def arrays_of(rows: Rows, columns: Sequence[str]) -> dict[str, Any]:
    """The columns that the messages themselves have; those of `Place` are left out."""
    wanted = [name for name in columns if name not in ("host", "queue_manager", "queue")]
    if not len(rows):
        empty = schema.arrow_schema("messages", columns)
        return {name: pa.array([], empty.field(name).type) for name in wanted}
    aligned = rows.aligned()
    fast = _Headers(aligned).readable(frozenset(wanted))
    if fast.all():
        return _quickly(aligned, wanted)
    quick, slow = np.flatnonzero(fast), np.flatnonzero(~fast)
    parsed = _one_by_one(rows.chosen(slow), wanted)
    if not len(quick):
        return parsed
    read = _quickly(rows.chosen(quick).aligned(), wanted)
    back = np.empty(len(rows), np.int64)
    back[np.concatenate((quick, slow))] = np.arange(len(rows))
    order = pa.array(back)
    return {name: pa.concat_arrays([read[name], parsed[name]]).take(order) for name in wanted}


# -- by the parser of protocol --------------------------------------------------------------------


def _one_by_one(rows: Rows, columns: Sequence[str]) -> dict[str, Any]:
    types = schema.arrow_schema("messages", columns)
    packets = [rows.packet(index) for index in range(len(rows))]
    whole = map(_whole, packets) if rows.headers_only else packets
    messages = [Message(StoredMessage(0, 0, packet)) for packet in whole]
    beside = {
        "position": rows.positions,
        "lookup_id": rows.lookup_ids,
        "abort_count": rows.abort_counts,
        "move_count": rows.move_counts,
    }
    found: dict[str, Any] = {}
    for name in columns:
        kind = types.field(name).type
        if name in beside:
            found[name] = pa.array(beside[name], kind)
        elif name == "arrived_at":
            found[name] = _moments(rows.arrived_at_ms * 1000)
        elif name == "traced":
            found[name] = pa.array([bool(packet[3] & 1) for packet in packets], kind)
        elif name == "reason":
            found[name] = pa.array(rows.reasons or [None] * len(rows), kind)
        else:
            values = [VALUES[name](message) for message in messages]
            found[name] = pa.array(values, kind)
    return found


def _whole(headers: bytes) -> bytes:
    """A packet that was cut where its body begins, with a body of zeros and nothing behind it."""
    none, end = np.zeros(1, np.int64), np.array([0, len(headers)])
    counts = np.zeros(1, np.int32)
    read = _Headers(Rows(none, none, none, counts, counts, end, headers).aligned())
    body_bytes = min(int(read.body_bytes[0]), LARGE_PACKET_BYTES_MAX)
    packet = bytearray(headers + bytes(body_bytes + 3))
    del packet[len(packet) & -4 :]
    # No debug header, no tracing, no session header; no SOAP and multi-queue headers.
    _clear(packet, 2, 0b1_0011_0000)
    _clear(packet, 60, 1 << 23 | 1 << 28)
    packet[8:12] = len(packet).to_bytes(4, "little")
    return bytes(packet)


def _clear(packet: bytearray, at: int, bits: int) -> None:
    word = int.from_bytes(packet[at : at + 4], "little") & ~bits
    packet[at : at + 4] = word.to_bytes(4, "little")


def _sequence(message: Message) -> dict[str, int] | None:
    return None if message.sequence is None else message.sequence._asdict()


# What a column is of one message, as `Message` reads it.
VALUES: dict[str, Callable[[Message], Any]] = {
    "id": lambda it: it.id,
    "label": lambda it: it.label,
    "body": lambda it: it.body,
    "body_bytes": lambda it: len(it.body),
    "body_type": lambda it: it.body_type,
    "class": lambda it: it.message_class,
    "class_number": lambda it: it.message_class_number,
    "priority": lambda it: it.priority,
    "delivery": lambda it: it.delivery,
    "sent_at": lambda it: it.sent_at,
    "source": lambda it: it.source,
    "destination": lambda it: it.destination,
    "correlation_id": lambda it: it.correlation_id,
    "sequence": _sequence,
    "application_tag": lambda it: it.application_tag,
    "extension": lambda it: it.extension,
    "response_queue": lambda it: it.response_queue,
    "admin_queue": lambda it: it.admin_queue,
    "acknowledge": lambda it: it.acknowledge,
    "time_to_reach_queue": lambda it: it.time_to_reach_queue,
    "time_to_be_received": lambda it: it.time_to_be_received,
    "journal": lambda it: it.journal,
    "dead_letter": lambda it: it.dead_letter,
    "hops": lambda it: it.hops,
    "sender_id": lambda it: it.sender_id_text,
    "connector_type": lambda it: it.connector_type,
    "report_queue": lambda it: it.report_queue,
    "destinations": lambda it: it.destinations,
    "admin_queues": lambda it: it.admin_queues,
    "response_queues": lambda it: it.response_queues,
    "packet": lambda it: it.stored.packet,
}


# -- all at once ----------------------------------------------------------------------------------


class _Headers:
    """Where the headers of each packet stand, and which packets can be read this way."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        # One word more than there is, so that an array without words can be asked too.
        self.words: Words = np.frombuffer(rows.packets[: len(rows.packets) & -4] or bytes(4), "<u4")
        self.start: Whole = rows.offsets[:-1] >> 2
        self.end: Whole = rows.offsets[1:] >> 2

    def word(self, at: Whole) -> Words:
        """The word at each of these places; behind the end something that `readable` notices."""
        return self.words.take(at, mode="clip")

    def half(self, at: Whole) -> Whole:
        """The lower 16 bits."""
        return (self.word(at) & 0xFFFF).astype(np.int64)

    @cached_property
    def base_flags(self) -> Words:
        return self.word(self.start) >> 16

    @cached_property
    def flags(self) -> Words:
        return self.word(self.start + _USER_FLAGS)

    def bit(self, number: int) -> Whole:
        """One of the flags of the UserHeader, as 0 or 1."""
        return (self.flags >> number & 1).astype(np.int64)

    def name_type(self, low: int) -> Whole:
        return (self.flags >> low & 7).astype(np.int64)

    @cached_property
    def destination_type(self) -> Whole:
        return self.name_type(10)

    @cached_property
    def admin_type(self) -> Whole:
        return self.name_type(13)

    @cached_property
    def response_type(self) -> Whole:
        return self.name_type(16)

    def _name_words(self, kind: Whole, at: Whole) -> Whole:
        direct = (2 + self.half(at) + 3) >> 2
        return np.where(kind == _DIRECT, direct, _NAME_WORDS[kind])

    @cached_property
    def destination(self) -> Whole:
        return self.start + _NAMES

    @cached_property
    def admin(self) -> Whole:
        return self.destination + self._name_words(self.destination_type, self.destination)

    @cached_property
    def response(self) -> Whole:
        return self.admin + self._name_words(self.admin_type, self.admin)

    @cached_property
    def connector(self) -> Whole:
        return self.response + self._name_words(self.response_type, self.response)

    @cached_property
    def transaction(self) -> Whole:
        return self.connector + _GUID_WORDS * self.bit(22)

    @cached_property
    def security(self) -> Whole:
        connector = self.word(self.transaction) & 1
        return self.transaction + self.bit(20) * (
            _TRANSACTION_WORDS + _GUID_WORDS * connector.astype(np.int64)
        )

    @cached_property
    def sender_id_bytes(self) -> Whole:
        return (self.word(self.security) >> 16).astype(np.int64) * self.bit(19)

    @cached_property
    def properties(self) -> Whole:
        sizes = self.word(self.security + 1)
        # Sizes without limits would add up to places beyond 64 bits; the real ones are small.
        certificate = np.minimum(self.word(self.security + 2), 1 << 20).astype(np.int64)
        provider = np.minimum(self.word(self.security + 3), 1 << 24).astype(np.int64)
        words = (
            _SECURITY_WORDS
            + (self.sender_id_bytes + 3 >> 2)
            + ((sizes & 0xFFFF).astype(np.int64) + 3 >> 2)
            + ((sizes >> 16).astype(np.int64) + 3 >> 2)
            + (certificate + 3 >> 2)
            + (provider + 3 >> 2)
        )
        at: Whole = self.security + self.bit(19) * words
        return at

    def properties_word(self, number: int) -> Words:
        return self.word(self.properties + number)

    @cached_property
    def label(self) -> Whole:
        """In bytes, as are all below."""
        return 4 * (self.properties + _PROPERTIES_WORDS)

    @cached_property
    def extension(self) -> Whole:
        characters = (self.properties_word(0) >> 8 & 0xFF).astype(np.int64)
        return self.label + 2 * characters

    @cached_property
    def body(self) -> Whole:
        return self.extension + self.properties_word(13).astype(np.int64)

    @cached_property
    def body_bytes(self) -> Whole:
        return self.properties_word(8).astype(np.int64)

    def readable(self, columns: frozenset[str]) -> Mask:
        """Which packets this reads as the parser would, as far as these columns go."""
        ends = self.body if self.rows.headers_only else self.body + self.body_bytes
        good: Mask = (
            ((self.word(self.start) & 0xFF) == VERSION)
            & (self.word(self.start + 1) == SIGNATURE)
            & (self.start + _NAMES < self.end)
            & (self.properties + _PROPERTIES_WORDS <= self.end)
            & (ends <= self.rows.offsets[1:])
            # A session header that nobody took off, one of HTTP; and the deliveries that there are.
            & ((self.base_flags & 0b10000) == 0)
            & ((self.flags & 1 << 25) == 0)
            & ((self.flags >> 5 & 3) <= 1)
        )
        if "report_queue" in columns:
            good &= (self.base_flags & 0b100000) == 0  # no debug header
        if columns & {"destinations", "admin_queues", "response_queues"}:
            good &= self.bit(23) == 0  # no multi-queue header
        for kind, names in (
            (self.destination_type, {"destination"}),
            (self.admin_type, {"admin_queue", "admin_queues"}),
            (self.response_type, {"response_queue", "response_queues"}),
        ):
            if columns & names:
                good &= (kind == _DIRECT) | (kind == 0)
        return good


@dataclass(slots=True)
class _Reading:
    """One column after the other, of packets that can all be read this way."""

    rows: Rows
    h: _Headers
    bytes: Any = field(init=False)
    known: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bytes = pa.py_buffer(self.rows.packets)

    def cut(self, starts: Whole, ends: Whole) -> Any:
        """These stretches of the packets, as an Arrow array of binary."""
        # Every second element of an array that has them and what lies between them.
        bounds = np.empty(2 * len(starts), np.int32)
        bounds[0::2], bounds[1::2] = starts, ends
        every = pa.Array.from_buffers(
            pa.binary(), 2 * len(starts) - 1, [None, pa.py_buffer(bounds), self.bytes]
        )
        return every.take(pa.array(np.arange(0, len(bounds), 2)))

    def guids(self, at: Whole) -> Any:
        """GUIDs as text; there are few different ones."""
        return _by_value(self.cut(4 * at, 4 * (at + _GUID_WORDS)), guid_text)

    def name(self, kind: Whole, at: Whole) -> Any:
        count = np.where(kind == _DIRECT, self.h.half(at), 0)
        return _by_value(self.cut(4 * at + 2, 4 * at + 2 + count), _direct_name)

    def column(self, name: str) -> Any:
        if name not in self.known:
            self.known[name] = getattr(self, f"_{name}")()
        return self.known[name]

    # The columns, in the order of the schema.

    def _position(self) -> Any:
        return pa.array(self.rows.positions)

    def _lookup_id(self) -> Any:
        return pa.array(self.rows.lookup_ids)

    def _id(self) -> Any:
        return _message_ids(self.column("source"), self.h.word(self.h.start + 14))

    def _label(self) -> Any:
        h = self.h
        # Without the null at its end.
        return _texts(self.cut(h.label, np.maximum(h.label, h.extension - 2)))

    def _body(self) -> Any:
        return self.cut(self.h.body, self.h.body + self.h.body_bytes)

    def _body_bytes(self) -> Any:
        return pa.array(self.h.body_bytes)

    def _body_type(self) -> Any:
        return _numbers(self.h.properties_word(6), np.int64)

    def _class(self) -> Any:
        return _by_value(self.column("class_number"), MessageClass.name_of)

    def _class_number(self) -> Any:
        return _numbers(self.h.properties_word(0) >> 16, np.int32)

    def _priority(self) -> Any:
        return _numbers(self.h.base_flags & 7, np.int32)

    def _delivery(self) -> Any:
        kind = np.where(self.h.bit(20) == 1, 2, self.h.flags >> 5 & 3)
        return _DELIVERIES.take(pa.array(kind.astype(np.int64)))

    def _sent_at(self) -> Any:
        return _moments(self.h.word(self.h.start + 13).astype(np.int64) * 1_000_000)

    def _arrived_at(self) -> Any:
        return _moments(self.rows.arrived_at_ms * 1000)

    def _source(self) -> Any:
        return self.guids(self.h.start + 4)

    def _destination(self) -> Any:
        return self.name(self.h.destination_type, self.h.destination)

    def _correlation_id(self) -> Any:
        at = self.h.properties + 1
        given = np.zeros(len(at), np.bool_)
        for word in range(5):
            given |= self.h.word(at + word) != 0
        if not given.any():
            return pa.nulls(len(at), pa.string())
        ids = _message_ids(self.guids(at), self.h.word(at + 4))
        return pc.if_else(pa.array(given), ids, pa.scalar(None, pa.string()))

    def _sequence(self) -> Any:
        at, missing = self.h.transaction, self.h.bit(20) == 0
        if missing.all():
            return pa.nulls(len(at), schema.POSITION)
        # 128 bits each, of which the upper half is zero.
        wide = np.zeros((len(at), 4), "<u4")
        wide[:, 0], wide[:, 1] = self.h.word(at + 1), self.h.word(at + 2)
        wide[missing] = 0
        ids = pa.Array.from_buffers(schema.SEQUENCE_ID, len(at), [None, pa.py_buffer(wide)])
        mask = pa.array(missing)
        return pa.StructArray.from_arrays(
            [
                ids,
                _numbers(self.h.word(at + 3), np.int64),
                _numbers(self.h.word(at + 4), np.int64),
            ],
            fields=list(schema.POSITION),
            mask=mask,
        )

    def _reason(self) -> Any:
        if self.rows.reasons is None:
            return pa.nulls(len(self.rows), pa.string())
        return pa.array(self.rows.reasons, pa.string())

    def _application_tag(self) -> Any:
        return _numbers(self.h.properties_word(7), np.int64)

    def _extension(self) -> Any:
        return self.cut(self.h.extension, self.h.body)

    def _response_queue(self) -> Any:
        return self.name(self.h.response_type, self.h.response)

    def _admin_queue(self) -> Any:
        return self.name(self.h.admin_type, self.h.admin)

    def _acknowledge(self) -> Any:
        return _ACKNOWLEDGE.take(_numbers(self.h.properties_word(0) & 0xF, np.int64))

    def _time_to_reach_queue(self) -> Any:
        return _finite(self.h.word(self.h.start + 3))

    def _time_to_be_received(self) -> Any:
        return _finite(self.h.word(self.h.start + 12))

    def _journal(self) -> Any:
        return pa.array(self.h.bit(9) == 1)

    def _dead_letter(self) -> Any:
        return pa.array(self.h.bit(8) == 1)

    def _abort_count(self) -> Any:
        return _numbers(self.rows.abort_counts, np.int32)

    def _move_count(self) -> Any:
        return _numbers(self.rows.move_counts, np.int32)

    def _hops(self) -> Any:
        return _numbers(self.h.flags & 0x1F, np.int32)

    def _sender_id(self) -> Any:
        start = 4 * (self.h.security + _SECURITY_WORDS)
        sizes = self.h.sender_id_bytes
        if not sizes.any():
            return pa.nulls(len(sizes), pa.string())
        # Where there is none it has no bytes, and must not lie behind the message.
        start = np.where(sizes > 0, start, 4 * self.h.start)
        return _by_value(self.cut(start, start + sizes), security_id_text)

    def _connector_type(self) -> Any:
        if not self.h.bit(22).any():
            return pa.nulls(len(self.rows), pa.string())
        at = self.h.connector
        given = self.cut(4 * at, 4 * (at + _GUID_WORDS * self.h.bit(22)))
        return _by_value(given, lambda raw: guid_text(raw) if raw else None)

    def _traced(self) -> Any:
        return pa.array((self.h.base_flags >> 8 & 1) == 1)

    def _report_queue(self) -> Any:  # of a debug header, and there is none
        return pa.nulls(len(self.rows), pa.string())

    def _destinations(self) -> Any:  # of a multi-queue header
        return _lists(self.column("report_queue"))

    def _admin_queues(self) -> Any:
        return _lists(self.column("admin_queue"))

    def _response_queues(self) -> Any:
        return _lists(self.column("response_queue"))

    def _packet(self) -> Any:
        # As long as it says itself: there may be padding behind it.
        start = self.rows.offsets[:-1]
        size = self.h.word(self.h.start + 2).astype(np.int64)
        return self.cut(start, np.minimum(start + size, self.rows.offsets[1:]))


def _quickly(rows: Rows, columns: Sequence[str]) -> dict[str, Any]:
    reading = _Reading(rows, _Headers(rows))
    return {name: reading.column(name) for name in columns}


def _numbers(values: npt.NDArray[Any], kind: type[np.generic]) -> Any:
    return pa.array(values.astype(kind))


def _moments(microseconds: Whole) -> Any:
    return pa.array(microseconds).cast(schema.MOMENT)


def _finite(seconds: Words) -> Any:
    return pa.array(seconds.astype(np.int64), mask=seconds == INFINITE)


def _lists(texts: Any) -> Any:
    """A list of one for each text, an empty one where there is none."""
    counts = np.asarray(pc.is_valid(texts)).astype(np.int32)
    offsets = np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
    return pa.ListArray.from_arrays(pa.array(offsets), texts.drop_null(), type=schema.TEXTS)


def _by_value(values: Any, text: Callable[[Any], str | None]) -> Any:
    """The text of each, worked out once for all that are the same."""
    encoded = values.dictionary_encode()
    texts = pa.array([text(one) for one in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


def _message_ids(guids: Any, numbers: Words) -> Any:
    return pc.binary_join_element_wise(guids, pa.array(numbers).cast(pa.string()), "\\")


def _texts(raw: Any) -> Any:
    """UTF-16 as Arrow's strings, which are UTF-8."""
    offsets = np.frombuffer(raw.buffers()[1], np.int32, len(raw) + 1, 4 * raw.offset)
    data = raw.buffers()[2]
    units = np.frombuffer(data or b"", "<u2", int(offsets[-1]) // 2)
    if not units.size or units.max() < 0x80:
        halves = (offsets // 2).astype(np.int32)
        buffers = [None, pa.py_buffer(halves), pa.py_buffer(units.astype(np.uint8))]
        return pa.Array.from_buffers(pa.string(), len(raw), buffers)
    return pa.array([one.decode("utf-16-le", "replace") for one in raw.to_pylist()], pa.string())


def _direct_name(raw: bytes) -> str | None:
    if not raw:
        return None
    try:
        return str(parse_wire_name(raw))
    except InvalidName:  # shown as it came
        return f"DIRECT={plain_text(raw)}"
