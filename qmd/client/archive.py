"""Exported messages: one line of JSON for each, complete and readable.

    {"qmd_message": 1, "packet_base64": "...", "arrived_at_ms": ..., "label": ..., ...}

`qmd_message` is the version of the format.  An import reads `packet_base64`, `arrived_at_ms`,
`reason`, `abort_count`, `move_count`, `last_move_at_ms` and `expires_in_s` (the remaining lifetime
in whole seconds; null: the message does not expire).  The other fields repeat the contents of the
packet for readers and programs; headers of NServiceBus, Rebus or MassTransit are `bus_headers`,
which is omitted if it is longer than `BUS_CHARACTERS_MAX`.  A field that is null or an empty list
is omitted: for most messages that saves a quarter of the line.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from qmd.client.message import Message
from qmd.control_protocol.messages import MOMENT_MS_MAX, ImportedMessage

VERSION = 1
TEXT_CHARACTERS_MAX = 1000  # of a text body, shown beside the packet that contains it
# Of the headers of a service bus as JSON.  An import reads lines of up to 16 MiB, and the escapes
# of an extension of 4 MiB alone could be longer.
BUS_CHARACTERS_MAX = 1 << 20


_encoded = json.JSONEncoder(separators=(",", ":")).encode


class BrokenLine(ValueError):
    """A line that is not an exported message; the text says why."""


def line_of(message: Message, queue: str, clock_s: int) -> str:
    """Return the line of a message.

    `clock_s`: the queue manager's clock, as its status shows it.
    """
    stored = message.stored
    shown = message.to_json()
    del shown["body_base64"], shown["extension_base64"]
    expires_at_s = stored.expires_at_s
    fields = {
        "qmd_message": VERSION,
        "queue": queue,
        "packet_base64": base64.b64encode(stored.packet).decode("ascii"),
        "arrived_at_ms": stored.arrived_at_ms,
        "last_move_at_ms": stored.last_move_at_ms,
        "expires_in_s": None if expires_at_s is None else max(0, expires_at_s - clock_s),
        "body_text": _text(message.body),
        "bus_headers": _bus_headers(message),
        **shown,
    }
    return _encoded(
        {name: value for name, value in fields.items() if value is not None and value != []}
    )


def read_line(line: bytes) -> ImportedMessage:
    """Parse a line.  Raises BrokenLine."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:  # RecursionError: deeply nested brackets
        raise BrokenLine(f"the line is not JSON: {error}") from error
    if not isinstance(found, dict) or "qmd_message" not in found:
        raise BrokenLine("the line is not an exported message: qmd_message is missing")
    if found["qmd_message"] != VERSION:
        raise BrokenLine(
            f"the line has version {str(found['qmd_message'])[:20]} of the format; this qmd "
            f"reads version {VERSION}"
        )
    packet = _packet(found.get("packet_base64"))
    reason = found.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise BrokenLine("reason is neither text nor null")
    arrived_at_ms = _number(found, "arrived_at_ms")
    if arrived_at_ms is None:
        raise BrokenLine("arrived_at_ms is missing")
    return ImportedMessage(
        packet,
        arrived_at_ms,
        reason,
        _number(found, "abort_count") or 0,
        _number(found, "move_count") or 0,
        _number(found, "last_move_at_ms"),
        _number(found, "expires_in_s"),
    )


def _packet(encoded: Any) -> bytes:
    from protocol.errors import ProtocolError
    from protocol.packets import parse_user_message

    if not isinstance(encoded, str):
        raise BrokenLine("packet_base64 is missing")
    try:
        packet = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BrokenLine(f"packet_base64 is not base64: {error}") from error
    try:
        parse_user_message(packet)
    except ProtocolError as error:
        raise BrokenLine(f"its packet is not a message: {error}") from error
    return packet


def _number(found: dict[str, Any], name: str) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    most = MOMENT_MS_MAX if name.endswith("_ms") else (1 << 32) - 1
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise BrokenLine(f"{name} is not a whole number from 0 to {most}")
    return value


def _bus_headers(message: Message) -> dict[str, Any] | None:
    found = message.bus_headers
    if found is None:
        return None
    shown = found.to_json()
    return shown if len(_encoded(shown)) <= BUS_CHARACTERS_MAX else None


def _text(body: bytes) -> str | None:
    try:
        text = body[: 4 * TEXT_CHARACTERS_MAX].decode()
    except UnicodeDecodeError:
        return None
    return text[:TEXT_CHARACTERS_MAX] if text.isprintable() else None
