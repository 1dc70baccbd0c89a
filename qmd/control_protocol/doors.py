"""Requests that doors need besides those of all applications."""

from __future__ import annotations

from qmd.control_protocol.locks import LockId
from qmd.control_protocol.messages import Request, add_verbs


class StopWaiting(Request, tag="stop_waiting", frozen=True):
    """Answer the requests of this connection that wait for messages of a queue, with none.

    With a lock: the requests that wait for messages under it. -> their number
    """

    queue: str
    lock: LockId = b""


add_verbs(StopWaiting)
