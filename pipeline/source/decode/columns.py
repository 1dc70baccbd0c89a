"""Columns of many packets, each computed for all packets at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.source import schema
from pipeline.source.decode.headers import DIRECT, GUID_WORDS, SECURITY_WORDS, Headers, Words
from pipeline.source.decode.rows import Rows, Whole
from protocol import INFINITE, PropertyFlags, plain_text
from protocol.errors import InvalidName
from protocol.identifiers import guid_text
from protocol.message_class import MessageClass
from protocol.names.format_name import parse_wire_name
from protocol.security_id import security_id_text

_DELIVERIES = pa.array(["express", "recoverable", "transactional"])
_ACKNOWLEDGE = pa.array(
    [
        [name for bit, name in enumerate(PropertyFlags.ranges) if flags >> bit & 1]
        for flags in range(16)
    ],
    schema.TEXTS,
)


@dataclass(slots=True)
class PacketColumns:
    """Columns of packets that `Headers.readable` accepts, computed on demand."""

    rows: Rows
    h: Headers
    bytes: Any = field(init=False)
    known: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bytes = pa.py_buffer(self.rows.packets)

    def cut(self, starts: Whole, ends: Whole) -> Any:
        """Return these byte ranges of the packets, as an Arrow array of binary."""
        # Take every second element of an array that alternates the ranges and the gaps between
        # them.
        bounds = np.empty(2 * len(starts), np.int32)
        bounds[0::2], bounds[1::2] = starts, ends
        every = pa.Array.from_buffers(
            pa.binary(), 2 * len(starts) - 1, [None, pa.py_buffer(bounds), self.bytes]
        )
        return every.take(pa.array(np.arange(0, len(bounds), 2)))

    def guids(self, at: Whole) -> Any:
        """Return GUIDs as text; few of them differ."""
        return _by_value(self.cut(4 * at, 4 * (at + GUID_WORDS)), guid_text)

    def name(self, kind: Whole, at: Whole) -> Any:
        if not kind.any():
            return pa.nulls(len(kind), pa.string())
        count = np.where(kind == DIRECT, self.h.half(at), 0)
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
        # Without the terminating null.
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
        return _numbers(self.h.flags.base & 7, np.int32)

    def _delivery(self) -> Any:
        kind = np.where(self.h.flags.bit(20) == 1, 2, self.h.flags.user >> 5 & 3)
        return _DELIVERIES.take(pa.array(kind.astype(np.int64)))

    def _sent_at(self) -> Any:
        return schema.moments(self.h.word(self.h.start + 13).astype(np.int64) * 1_000_000)

    def _arrived_at(self) -> Any:
        return schema.moments(self.rows.arrived_at_ms * 1000)

    def _source(self) -> Any:
        return self.guids(self.h.start + 4)

    def _destination(self) -> Any:
        return self.name(self.h.flags.destination_type, self.h.destination)

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
        at, missing = self.h.transaction, self.h.flags.bit(20) == 0
        if missing.all():
            return pa.nulls(len(at), schema.POSITION)
        # 128 bits each; the upper half is zero.
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
        return self.name(self.h.flags.response_type, self.h.response)

    def _admin_queue(self) -> Any:
        return self.name(self.h.flags.admin_type, self.h.admin)

    def _acknowledge(self) -> Any:
        flags = self.h.properties_word(0) & 0xF
        if not flags.any():
            return _lists(pa.nulls(len(flags), pa.string()))
        return _ACKNOWLEDGE.take(_numbers(flags, np.int64))

    def _time_to_reach_queue(self) -> Any:
        return _finite(self.h.word(self.h.start + 3))

    def _time_to_be_received(self) -> Any:
        return _finite(self.h.word(self.h.start + 12))

    def _journal(self) -> Any:
        return pa.array(self.h.flags.bit(9) == 1)

    def _dead_letter(self) -> Any:
        return pa.array(self.h.flags.bit(8) == 1)

    def _abort_count(self) -> Any:
        return _numbers(self.rows.abort_counts, np.int32)

    def _move_count(self) -> Any:
        return _numbers(self.rows.move_counts, np.int32)

    def _hops(self) -> Any:
        return _numbers(self.h.flags.user & 0x1F, np.int32)

    def _sender_id(self) -> Any:
        start = 4 * (self.h.security + SECURITY_WORDS)
        sizes = self.h.sender_id_bytes
        if not sizes.any():
            return pa.nulls(len(sizes), pa.string())
        # A missing sender id has no bytes; its start must not lie behind the message.
        start = np.where(sizes > 0, start, 4 * self.h.start)
        return _by_value(self.cut(start, start + sizes), security_id_text)

    def _connector_type(self) -> Any:
        if not self.h.flags.bit(22).any():
            return pa.nulls(len(self.rows), pa.string())
        at = self.h.connector
        given = self.cut(4 * at, 4 * (at + GUID_WORDS * self.h.flags.bit(22)))
        return _by_value(given, lambda raw: guid_text(raw) if raw else None)

    def _traced(self) -> Any:
        return pa.array((self.h.flags.base >> 8 & 1) == 1)

    def _report_queue(self) -> Any:  # only a debug header has it, and these packets have none
        return pa.nulls(len(self.rows), pa.string())

    def _destinations(self) -> Any:  # only a multi-queue header has it, and these packets have none
        return _lists(self.column("report_queue"))

    def _admin_queues(self) -> Any:
        return _lists(self.column("admin_queue"))

    def _response_queues(self) -> Any:
        return _lists(self.column("response_queue"))

    def _packet(self) -> Any:
        # The packet's own length: there may be padding behind it.
        start = self.rows.offsets[:-1]
        size = self.h.word(self.h.start + 2).astype(np.int64)
        return self.cut(start, np.minimum(start + size, self.rows.offsets[1:]))


def fast_columns(headers: Headers, columns: Sequence[str]) -> dict[str, Any]:
    """Return these columns of packets that can be read by their headers."""
    decoded = PacketColumns(headers.rows, headers)
    return {name: decoded.column(name) for name in columns}


def _numbers(values: npt.NDArray[Any], kind: type[np.generic]) -> Any:
    return pa.array(values.astype(kind))


def _finite(seconds: Words) -> Any:
    return pa.array(seconds.astype(np.int64), mask=seconds == INFINITE)


def _lists(texts: Any) -> Any:
    """Return a list of one element for each text, and an empty list for each null."""
    if texts.null_count == len(texts):
        none = pa.array(np.zeros(len(texts) + 1, np.int32))
        return pa.ListArray.from_arrays(none, texts[:0], type=schema.TEXTS)
    counts = np.asarray(pc.is_valid(texts)).astype(np.int32)
    offsets = np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
    return pa.ListArray.from_arrays(pa.array(offsets), texts.drop_null(), type=schema.TEXTS)


def _by_value(values: Any, text: Callable[[Any], str | None]) -> Any:
    """Return the text of each value, computed once for equal values."""
    if _are_alike(values):
        return pa.repeat(pa.scalar(text(values[0].as_py()), pa.string()), len(values))
    encoded = values.dictionary_encode()
    texts = pa.array([text(one) for one in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


def _are_alike(values: Any) -> bool:
    """Return whether all values are equal, as most names in a queue are; False: not known."""
    if values.null_count:
        return False
    if not pa.types.is_binary(values.type):
        numbers = values.to_numpy()
        return bool((numbers == numbers[0]).all())
    offsets = np.frombuffer(values.buffers()[1], np.int32)[: len(values) + 1]
    size = int(offsets[1] - offsets[0])
    if (np.diff(offsets) != size).any():
        return False
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    # Each value equals the one before it: the data equals itself, shifted by one value.
    return not size or bool((data[size:] == data[:-size]).all())


def _message_ids(guids: Any, numbers: Words) -> Any:
    return pc.binary_join_element_wise(guids, pa.array(numbers).cast(pa.string()), "\\")


def _texts(raw: Any) -> Any:
    """Convert UTF-16 to Arrow's strings, which are UTF-8."""
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
    except InvalidName:  # shown unchanged
        return f"DIRECT={plain_text(raw)}"
