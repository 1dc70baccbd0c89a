"""Decoding by the parser of `protocol`, one packet at a time, for all other packets.

The parser's result is authoritative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.source import schema
from pipeline.source.decode.headers import Headers
from pipeline.source.decode.rows import Rows
from protocol import LARGE_PACKET_BYTES_MAX
from qmd.client import Message
from qmd.control_protocol.messages import StoredMessage


def parsed_columns(rows: Rows, columns: Sequence[str]) -> dict[str, Any]:
    types = schema.arrow_schema("messages", columns)
    packets = [rows.packet(index) for index in range(len(rows))]
    complete = map(_with_empty_body, packets) if rows.headers_only else packets
    messages = [Message(StoredMessage(0, 0, packet)) for packet in complete]
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
            found[name] = schema.moments(rows.arrived_at_ms * 1000)
        elif name == "traced":
            found[name] = pa.array([bool(packet[3] & 1) for packet in packets], kind)
        elif name == "reason":
            found[name] = pa.array(rows.reasons or [None] * len(rows), kind)
        else:
            values = [VALUES[name](message) for message in messages]
            found[name] = pa.array(values, kind)
    return found


def _with_empty_body(headers: bytes) -> bytes:
    """Return a packet that was cut at its body, with a body of zeros and nothing behind it."""
    none, end = np.zeros(1, np.int64), np.array([0, len(headers)])
    counts = np.zeros(1, np.int32)
    read = Headers(Rows(none, none, none, counts, counts, end, headers).aligned())
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


# The value of each column for one message.
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
    "extension": lambda it: it.packet.properties.extension,
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
