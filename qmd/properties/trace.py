"""Trace context of a message: the property `traceparent`, as W3C Trace Context defines it.

It stands among the properties of the application, so that it travels over any host, and comes out
in every door and client.  The daemon reads it without decoding the other properties.
docs/tracing.md
"""

from __future__ import annotations

import re

from qmd.properties.block import MARK

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_CHARACTERS = 55
_SHAPE = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
#: The name and the head of the value as MessagePack writes them: a text of 55 characters.
_FIELD = b"\xab" + TRACEPARENT.encode() + b"\xd9" + bytes([_CHARACTERS])
_NOTHING = (b"0" * 32, b"0" * 16)


def trace_of(extension: bytes) -> bytes:
    """Return the trace context in the extension of a message, or b"": trace id (16 bytes), id of
    the parent span (8), flags (1).  W3C Trace Context 3.2.2"""
    at = extension.find(_FIELD) if extension.startswith(MARK) else -1
    if at < 0:
        return b""
    begin = at + len(_FIELD)
    return packed(extension[begin : begin + _CHARACTERS])


def packed(traceparent: bytes) -> bytes:
    """Return the bytes of a traceparent in text; b"" if it is not valid."""
    found = _SHAPE.fullmatch(traceparent)
    if found is None or found[1] == _NOTHING[0] or found[2] == _NOTHING[1]:
        return b""
    return bytes.fromhex((found[1] + found[2] + found[3]).decode())


def text_of(context: bytes) -> str:
    """Return a trace context as text, as in the property."""
    text = context.hex()
    return f"00-{text[:32]}-{text[32:48]}-{text[48:]}"
