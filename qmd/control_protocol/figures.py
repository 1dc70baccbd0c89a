"""Requests of figures for monitoring.

A queue manager may have ten thousand queues, so figures come in pages: each is made at once, and
the requests of other clients are answered between two of them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import Request, add_verbs

ROWS_MAX = 256  # of one page
SCAN_MAX = 2048  # queues of which one page has the changes
OLDEST_MAX = 256  # queues and destinations of one request

Names = Annotated[list[str], msgspec.Meta(max_length=OLDEST_MAX)]
Place = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class HostFigures(Request, tag="host_figures", frozen=True):
    """Return the figures of the queue manager as a whole; counts are since its start.

    -> {status fields without those of queues, dead_letters_by_class: {class: count}, commits:
    histogram, ...}; a histogram is
    {bounds, counts, sum, examples: [[value, message id] or null, ...]}
    """


class QueueFigures(Request, tag="queue_figures", frozen=True):
    """Return figures of the queues, from the place `start` of the list on.

    -> {rows: [[name, kind, messages, bytes, arrived, left, taken, readers, quota_bytes], ...],
    next: the place of the next page, or null}.  `kind`: queue, subqueue, journal or system.

    With `changes`, the rows are those that differ from the ones that this connection has received
    with `changes` before, and the last page has `gone` besides: the names of queues that it has
    received and that were deleted.
    """

    start: Place = 0
    changes: bool = False


class DestinationFigures(Request, tag="destination_figures", frozen=True):
    """Return figures of the outgoing queues, from the place `start` of the list on.

    -> {rows: [[destination, state, messages, bytes, unacknowledged, awaiting, handed, resent,
    round_trip_s or null, in_doubt, heartbeat or null], ...], next}.  `heartbeat`: [sent, lost,
    missed, latency_s or null]
    """

    start: Place = 0


class OldestMessages(Request, tag="oldest_messages", frozen=True):
    """Return when the oldest message of each named queue and destination came.

    -> {queues: [milliseconds since 1970 or null, ...], destinations: [...]}
    """

    queues: Names = []  # noqa: RUF012 (msgspec copies empty defaults)
    destinations: Names = []  # noqa: RUF012


FigureRequest = HostFigures | QueueFigures | DestinationFigures | OldestMessages

add_verbs(FigureRequest)
