"""Demands: the rights that an action needs, and the things on which it needs them."""

from __future__ import annotations

from typing import NamedTuple

from qmd.core.access import PEEK, PURGE, RECEIVE, SEND

READ, WRITE, ADMIN = "read", "write", "admin"
ANY = ""  # no scope is required


class Thing(NamedTuple):
    """The object of a right: a queue, by its key in grants, and as the client wrote it.

    `by_entry`: only the directory knows which queue the name stands for.
    """

    key: str
    shown: str
    by_entry: bool = False


EVERYTHING = Thing("", "all queues")
# A token that is not for all queues is refused these too.
NO_QUEUE = Thing("", "no queue")  # the request concerns none
NOT_A_NAME = Thing("", "a name that is not valid")  # the verb refuses it


class Demand(NamedTuple):
    """The rights that an action needs on each of its things.

    A token needs the scope; every other client needs all of `rights`, on the host itself if
    `of_host` is true.
    """

    scope: str
    rights: tuple[str, ...]
    of_host: bool = False


TO_SEND = Demand(WRITE, (SEND,))
TO_RECEIVE = Demand(READ, (RECEIVE, PEEK))
TO_PEEK = Demand(READ, (PEEK,))
TO_SEND_AGAIN = Demand(ADMIN, (SEND,))
TO_RELEASE = Demand(ADMIN, (PURGE,))
