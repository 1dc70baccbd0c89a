"""Requests about delayed messages: those that are stored and will be sent at a later time."""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import MESSAGES_MAX, Amount, Request, add_verbs


class ListDelayed(Request, tag="list_delayed", frozen=True):
    """List delayed messages, in the order of their ids.

    -> {messages: [{id, ids, queue, destination, due_at_ms, by_own_clock, sent_at_ms, bytes, label,
    delivery, priority, body}, ...], next: where the next page starts, or None}

    `queue` is a destination of this computer or another one; "" means all. `body` is None unless
    `bodies` is true.
    """

    queue: str = ""
    start: Amount = 0
    limit: int = 100
    bodies: bool = False


class CancelDelayed(Request, tag="cancel_delayed", frozen=True):
    """Cancel delayed messages: they are removed, and never sent. -> [id, ...]

    The answer has the ids that were cancelled. An id that is missing in the answer belongs to no
    delayed message: it was sent already, or cancelled. The id of any copy of a message to several
    queues cancels all of its copies.
    """

    ids: Annotated[list[str], msgspec.Meta(max_length=MESSAGES_MAX)]


DelayedRequest = ListDelayed | CancelDelayed

add_verbs(DelayedRequest)
