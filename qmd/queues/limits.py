"""Limits: the greatest numbers of queues; their ids have 15 bits."""

from __future__ import annotations

from typing import NamedTuple

from storage.tables.keys import QUEUE_ID_MAX
from storage.tables.queues import FIRST_USER_QUEUE_ID


class Limits(NamedTuple):
    """The limits of one queue manager; tests set lower ones."""

    queues: int = QUEUE_ID_MAX - FIRST_USER_QUEUE_ID + 1  # with subqueues and journals
    destinations: int = QUEUE_ID_MAX  # outgoing queues
