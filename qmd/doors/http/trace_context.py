"""Trace context of requests: the header `traceparent` becomes a property of the messages sent."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from qmd.control_protocol.messages import NewMessage
from qmd.properties import block
from qmd.properties.trace import TRACEPARENT, TRACESTATE, packed

STATE_CHARACTERS_MAX = 512  # W3C Trace Context 3.3.1.5


def traced(new: NewMessage, headers: Mapping[str, str]) -> NewMessage:
    """Return the message with the trace context of a request, unless it has one of its own."""
    parent = headers.get(TRACEPARENT, "")
    if not packed(parent.encode("ascii", "replace")):
        return new
    properties, own = block.read_extension(new.extension)
    if TRACEPARENT in properties.application:
        return new
    context = {TRACEPARENT: parent}
    if state := headers.get(TRACESTATE, "")[:STATE_CHARACTERS_MAX]:
        context[TRACESTATE] = state
    both = properties._replace(application={**properties.application, **context})
    return msgspec.structs.replace(new, extension=block.with_properties(both, own))
