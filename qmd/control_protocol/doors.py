"""Requests that doors need besides those of all applications."""

from __future__ import annotations

from qmd.control_protocol.locks import LockId
from qmd.control_protocol.messages import LookupIds, Request, add_verbs


class StopWaiting(Request, tag="stop_waiting", frozen=True):
    """Answer the requests of this connection that wait for messages of a queue, with none.

    With a lock: the requests that wait for messages under it. -> their number
    """

    queue: str
    lock: LockId = b""


class Note(Request, tag="note", frozen=True):
    """Record a text in the history of messages of a queue, taken ones too. -> their number

    A client is not believed: the event names it. The text has at most 1000 characters.
    """

    queue: str
    lookup_ids: LookupIds
    text: str


add_verbs(StopWaiting | Note)
