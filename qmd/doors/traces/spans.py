"""Spans of messages, made from events: send, transfer, receive and settle.

    application's span ─► send (host A) ─► transfer (A to B) ─► receive (B) ─► settle (B)

The id of a span is derived from the message, the host and the step, so that the hosts agree on
parents without a word, and a span that is exported twice is the same span.  Names and attributes
follow the semantic conventions of OpenTelemetry for messaging.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

Event = dict[str, Any]

#: Messages under way that are remembered; the oldest is forgotten, and gets no further spans.
MESSAGES_MAX = 50_000
PRODUCER, CONSUMER, CLIENT = "producer", "consumer", "client"
SAMPLED = 1
#: Kinds of events that end a message in a queue, and whether that is an error.
ENDS = {
    "received": False,
    "rejected": True,
    "expired": True,
    "purged": True,
    "queue_deleted": True,
    "dead_lettered": True,
    "discarded": True,
    "damaged": True,
    "lost": True,
    "vanished": True,
}
ACKNOWLEDGED = ("session_acknowledged", "order_acknowledged")
SENT, ACCEPTED = ("sent", "relayed"), "accepted"
TRANSMITTED = ("transmitted", "retransmitted")
#: The events that the exporter reads.
KINDS = [*SENT, ACCEPTED, *TRANSMITTED, *ACKNOWLEDGED, *ENDS]


@dataclass(frozen=True)
class Span:
    """One span; times in milliseconds since 1970, ids in hexadecimal."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    begin_ms: int
    end_ms: int
    host: str
    attributes: dict[str, str | int] = field(default_factory=dict)
    error: str = ""


@dataclass
class Message:
    """A message under way on this host."""

    trace_id: str
    parent_id: str  # of its next span
    at_ms: int  # when it came to the queue
    queue: str
    is_here: bool  # in a local queue
    transmitted_at_ms: int = 0
    transmissions: int = 0


class Tracker:
    """The spans of one host."""

    def __init__(self, *, all_messages: bool = False, state: dict[str, Any] | None = None) -> None:
        """`all_messages`: also those without a trace context, each in a trace of its own; `state`
        is that of an earlier tracker."""
        self._all = all_messages
        self._messages = {key: Message(**value) for key, value in (state or {}).items()}

    @property
    def state(self) -> dict[str, Any]:
        """The messages under way, for the next tracker."""
        return {key: asdict(value) for key, value in self._messages.items()}

    def spans(self, events: Iterable[Event]) -> list[Span]:
        """Return the spans that end with these events, which are in the order of the log."""
        return [span for event in events for span in self._of(event)]

    def _of(self, event: Event) -> Iterable[Span]:
        kind, message_id = event["kind"], event["message_id"]
        if kind in SENT or kind == ACCEPTED:
            return self._begin(event)
        message = self._messages.get(message_id)
        if message is None:
            return ()
        if kind in TRANSMITTED:
            message.transmitted_at_ms = message.transmitted_at_ms or event["at_ms"]
            message.transmissions += 1
            return ()
        if kind in ACKNOWLEDGED:
            return self._transferred(event, message)
        return self._ended(event, message)

    def _begin(self, event: Event) -> Iterable[Span]:
        message_id, own = event["message_id"], event["queue_manager"]
        context = event.get("traceparent", "")
        if context:
            _, trace_id, parent, flags = context.split("-")
            if not int(flags, 16) & SAMPLED:
                return
        elif self._all:
            trace_id, parent = _digest(message_id, "trace")[:32], ""
        else:
            return
        # A queue elsewhere has a format name: docs/events.md.
        is_here = event["kind"] == ACCEPTED or "=" not in event["queue"]
        if event["kind"] == "sent":
            span_id = _span_id(message_id, own, "send")
            yield _span(event, "send", PRODUCER, trace_id, span_id, parent, event["at_ms"])
            parent = span_id
        else:  # the transfer of the host that it came from
            parent = _span_id(message_id, event["peer"], "transfer")
        self._messages[message_id] = Message(
            trace_id, parent, event["at_ms"], event["queue"], is_here
        )
        while len(self._messages) > MESSAGES_MAX:
            del self._messages[next(iter(self._messages))]

    def _transferred(self, event: Event, message: Message) -> Iterable[Span]:
        del self._messages[event["message_id"]]
        span_id = _span_id(event["message_id"], event["queue_manager"], "transfer")
        begin = message.transmitted_at_ms or event["at_ms"]
        more: dict[str, str | int] = {
            "network.peer.id": event["peer"],
            "qmd.transmissions": message.transmissions,
        }
        yield _span(
            event, "transfer", CLIENT, message.trace_id, span_id, message.parent_id, begin, more
        )

    def _ended(self, event: Event, message: Message) -> Iterable[Span]:
        message_id, kind = event["message_id"], event["kind"]
        del self._messages[message_id]
        own, parent = event["queue_manager"], message.parent_id
        error = (event["reason"] or kind) if ENDS[kind] else ""
        if message.is_here:
            span_id = _span_id(message_id, own, "receive")
            yield _span(
                event, "receive", CONSUMER, message.trace_id, span_id, parent, message.at_ms
            )
            parent = span_id
        yield _span(
            event,
            "settle",
            CONSUMER,
            message.trace_id,
            _span_id(message_id, own, "settle"),
            parent,
            event["at_ms"],
            {"qmd.outcome": kind},
            error,
        )


def _span(
    event: Event,
    step: str,
    kind: str,
    trace_id: str,
    span_id: str,
    parent_id: str,
    begin_ms: int,
    more: dict[str, str | int] | None = None,
    error: str = "",
) -> Span:
    attributes: dict[str, str | int] = {
        "messaging.system": "qmd",
        "messaging.operation.name": step,
        "messaging.operation.type": step if step in ("send", "receive", "settle") else "process",
        "messaging.destination.name": event["queue"],
        "messaging.message.id": event["message_id"],
        "messaging.message.envelope.size": event["bytes"],
        **(more or {}),
    }
    if event.get("correlation_id"):
        attributes["messaging.message.conversation_id"] = event["correlation_id"]
    if event["delivery"]:
        attributes["qmd.delivery"] = event["delivery"]
    return Span(
        f"{step} {event['queue']}",
        kind,
        trace_id,
        span_id,
        parent_id,
        min(begin_ms, event["at_ms"]),
        event["at_ms"],
        event["host"],
        attributes,
        error,
    )


def _span_id(message_id: str, host: str, step: str) -> str:
    # The peer of an event may have its stated origin behind the GUID.
    return _digest(message_id, host.partition(",")[0].casefold(), step)[:16]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
