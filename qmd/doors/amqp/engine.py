"""The protocol engine of one connection: qpid-proton without its own input and output.

Bytes go in and out, events come out.  Events of deliveries are read by proton's C functions,
because each message causes several; all others by proton's classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import proton
from cproton import ffi, lib

from qmd.doors.amqp.attach_frames import AttachReader, with_unsettled

OUTPUT_BYTES = 64 * 1024
INPUT_BYTES = 64 * 1024
RESUMED_BYTES = 1 << 62  # all that the engine has
DELIVERY, FLOW = int(lib.PN_DELIVERY), int(lib.PN_LINK_FLOW)
#: Other events that a client causes.
OF_CLIENTS = frozenset(
    (
        *(lib.PN_CONNECTION_REMOTE_OPEN, lib.PN_CONNECTION_REMOTE_CLOSE),
        *(lib.PN_SESSION_REMOTE_OPEN, lib.PN_SESSION_REMOTE_CLOSE),
        *(lib.PN_LINK_REMOTE_OPEN, lib.PN_LINK_REMOTE_CLOSE, lib.PN_LINK_REMOTE_DETACH),
        *(lib.PN_TRANSPORT_ERROR, lib.PN_TRANSPORT_TAIL_CLOSED),
    )
)
ACCEPTED, REJECTED = int(lib.PN_ACCEPTED), int(lib.PN_REJECTED)
RELEASED, MODIFIED = int(lib.PN_RELEASED), int(lib.PN_MODIFIED)
DECLARED, TRANSACTIONAL = 0x33, 0x34
TERMINAL = (ACCEPTED, REJECTED, RELEASED, MODIFIED)

_output = ffi.new("char[]", OUTPUT_BYTES)  # the event loop has one thread
_input = ffi.new("char[]", INPUT_BYTES)


class Limits(NamedTuple):
    """The limits of one connection that the engine announces and enforces."""

    frame_bytes: int
    sessions: int
    idle_s: float


class Engine:
    """A connection of AMQP, without its socket."""

    def __init__(self, container: str, limits: Limits) -> None:
        self.transport = proton.Transport(proton.Transport.SERVER)
        self.connection = proton.Connection()
        self._collector = proton.Collector()
        self.connection.collect(self._collector)
        self.connection.container = container
        self.transport.max_frame_size = limits.frame_bytes
        self.transport.channel_max = limits.sessions - 1
        self.transport.idle_timeout = limits.idle_s
        self.transport.bind(self.connection)
        #: The attach frames of the client that resume links.
        self.attached = AttachReader(limits.frame_bytes)
        self._written: list[bytes] = []  # output that the engine has given already

    def receive(self, data: bytes) -> None:
        """Process bytes of the client; `events` then has their effects."""
        self.attached.feed(data)
        implementation = self.transport._impl
        source, at = ffi.from_buffer(data), 0
        while at < len(data):
            room = lib.pn_transport_capacity(implementation)
            if room <= 0:
                return  # closed: proton ignores the rest
            count = lib.pn_transport_push(implementation, source + at, min(room, len(data) - at))
            if count <= 0:
                return
            at += count

    def end_of_input(self) -> None:
        """Note that the client sends nothing more."""
        lib.pn_transport_close_tail(self.transport._impl)

    def output(self, limit: int) -> bytes:
        """Return up to about `limit` bytes for the client."""
        implementation = self.transport._impl
        chunks, self._written = self._written, []
        size = sum(map(len, chunks))
        while size < limit:
            pending = lib.pn_transport_pending(implementation)
            if pending <= 0:
                break
            count = lib.pn_transport_peek(implementation, _output, min(pending, OUTPUT_BYTES))
            if count <= 0:
                break
            chunks.append(ffi.unpack(_output, count))
            lib.pn_transport_pop(implementation, count)
            size += count
        return b"".join(chunks)

    def open_resumed(self, link: Any, accepted: list[bytes]) -> None:
        """Open a link that its client resumes; `accepted` are the tags of accepted deliveries."""
        before = self.output(RESUMED_BYTES)
        link.open()
        frames, limit = self.output(RESUMED_BYTES), self.transport.remote_max_frame_size
        key = link.name, link.is_sender
        self._written += [before, with_unsettled(frames, key, accepted, limit)]

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will be written."""
        return not self._written and bool(lib.pn_transport_pending(self.transport._impl) < 0)

    def tick(self, now_s: float) -> float:
        """Let time pass; return the time of the next call, or 0."""
        return float(self.transport.tick(now_s))

    def events(self) -> Iterator[tuple[int, Any]]:
        """Yield the events: those of deliveries and flows with proton's pointer, others that the
        client causes as `proton.Event`."""
        collector = self._collector._impl
        peek, pop, kind_of = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type
        while event := peek(collector):  # a null pointer is false
            kind = kind_of(event)
            if kind == DELIVERY:
                yield kind, lib.pn_event_delivery(event)
            elif kind == FLOW:
                yield kind, lib.pn_event_link(event)
            elif kind in OF_CLIENTS:
                yield kind, self._collector.peek()
            pop(collector)


# Deliveries, by proton's pointers.


# Each message calls several of proton's functions: to find one in `lib` costs a third of the call.
_recv, _send, _tag, _update = (
    *(lib.pn_link_recv, lib.pn_link_send, lib.pn_delivery_tag),
    lib.pn_delivery_update,
)
_delivery, _buffer, _unpack = lib.pn_delivery, ffi.from_buffer, ffi.unpack
#: The link of a delivery, by its pointer.
link_of = lib.pn_delivery_link
#: Settle a delivery, without a further state.
settle = lib.pn_delivery_settle
#: Go on to the next delivery of a link.
advance = lib.pn_link_advance
#: States of a delivery: see proton's documentation of the functions.
is_readable, is_partial = lib.pn_delivery_readable, lib.pn_delivery_partial
is_aborted, is_settled = lib.pn_delivery_aborted, lib.pn_delivery_settled
remote_state = lib.pn_delivery_remote_state


def read(link: Any, delivery: Any) -> bytes:
    """Return the bytes that have arrived of a delivery, the current one of its link."""
    count = _recv(link, _input, INPUT_BYTES)
    if count <= 0:
        return b""
    data: bytes = _unpack(_input, count)
    if count == INPUT_BYTES and (size := lib.pn_delivery_pending(delivery)) > 0:
        buffer = ffi.new("char[]", size)
        count = _recv(link, buffer, size)
        data += _unpack(buffer, count) if count > 0 else b""
    return data


def tag_of(delivery: Any) -> bytes:
    """Return the tag of a delivery."""
    tag = _tag(delivery)
    tagged: bytes = _unpack(tag.start, tag.size) if tag.size else b""
    return tagged


def has_failed(delivery: Any) -> bool:
    """Return whether a receiver that modifies a delivery has failed at it."""
    disposition = lib.pn_delivery_remote(delivery)
    return bool(
        lib.pn_disposition_is_failed(disposition)
        or lib.pn_disposition_is_undeliverable(disposition)
    )


def is_undeliverable(delivery: Any) -> bool:
    """Return whether a receiver that modifies a delivery must not get its message again."""
    return bool(lib.pn_disposition_is_undeliverable(lib.pn_delivery_remote(delivery)))


def accept(delivery: Any) -> None:
    """Settle a delivery as accepted."""
    _update(delivery, ACCEPTED)
    settle(delivery)


def update(delivery: Any, state: int, *, data: Any = None, condition: Any = None) -> None:
    """Set the state of a delivery, with its fields or its error condition."""
    wrapped = proton.Delivery.wrap(delivery)
    if data is not None:
        wrapped.local.data = data
    if condition is not None:
        wrapped.local.condition = condition
    wrapped.update(state)


def reject(delivery: Any, condition: proton.Condition) -> None:
    """Settle a delivery as rejected."""
    update(delivery, REJECTED, condition=condition)
    lib.pn_delivery_settle(delivery)


def send(link: Any, tag: bytes, data: bytes) -> Any:
    """Send a message over a link; return its delivery."""
    delivery = _delivery(link, (len(tag), _buffer(tag)))
    _send(link, _buffer(data), len(data))
    advance(link)
    return delivery
