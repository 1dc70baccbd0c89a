"""Limits of one client of the door."""

from __future__ import annotations

from typing import NamedTuple


class ClientLimits(NamedTuple):
    """The limits of one connection; each has an error condition in docs/amqp.md."""

    frame_bytes: int
    message_bytes: int
    sessions: int
    links: int
    credit: int  # messages that a client may send before the first is accepted
    unsettled: int  # messages that a client has received and not settled
    unsettled_bytes: int  # the same
    waiting_bytes: int  # of messages that wait for their commit
    idle_s: float
