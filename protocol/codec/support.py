"""The functions that the derived parsers and builders call."""

from __future__ import annotations

from struct import calcsize, error, pack
from typing import Any

from protocol.errors import MalformedPacket
from protocol.text import end_of_text

#: The rule of texts that end with their first null character.
TEXT_RULE = "MUST be UTF-16 that ends with its only null character"


def missing(fields: tuple[tuple[int, int, str], ...], start: int, end: int) -> MalformedPacket:
    """Return the error for the first field of a run that does not fit before `end`."""
    for offset, size, path in fields:
        if start + offset + size > end:
            return missing_bytes(path, start + offset, start + offset + size, end)
    raise AssertionError("every field of the run fits")


def missing_bytes(path: str, start: int, stop: int, end: int) -> MalformedPacket:
    """Return the error for a field of the bytes `start` to `stop`, which go beyond `end`."""
    left = max(0, end - start)
    return MalformedPacket(path, start, f"takes {stop - start} bytes, {left} are left")


def scan(packet: bytes, start: int, end: int, path: str) -> int:
    """Return the offset after the null-terminated UTF-16 text that starts at `start`.

    Raises MalformedPacket if no null character comes before `end`.
    """
    stop = end_of_text(packet, start, end)
    if stop < 0:
        raise MalformedPacket(path, start, TEXT_RULE)
    return stop


def misfit(
    fields: tuple[tuple[str, int, int, str], ...], values: tuple[Any, ...], start: int
) -> MalformedPacket:
    """Return the error for the first value of a run that does not fit into its field."""
    for (format, offset, _size, path), value in zip(fields, values, strict=True):
        try:
            pack(f"<{format}", value)
        except error:
            rule = f"MUST fit into {calcsize(f'<{format}') * 8} bits"
            return MalformedPacket(path, start + offset, rule)
    raise AssertionError("every value of the run fits")
