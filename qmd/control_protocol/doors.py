"""Requests that doors need besides those of all applications."""

from __future__ import annotations

from qmd.control_protocol.messages import LookupIds, Request, TransactionId, add_verbs


class StopWaiting(Request, tag="stop_waiting", frozen=True):
    """Answer the requests of this connection that wait for messages of a queue, with none.

    -> their number
    """

    queue: str


class Adopt(Request, tag="adopt", frozen=True):
    """Make messages that this connection took part of a transaction of it. -> their number

    Its commit removes them; its abort returns them to their places and counts it.
    """

    transaction: TransactionId
    queue: str
    lookup_ids: LookupIds


DoorRequest = StopWaiting | Adopt

add_verbs(DoorRequest)
