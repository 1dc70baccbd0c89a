"""Planned acknowledgments: built, and not sent yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from protocol.names.format_name import FormatName
    from qmd.queues.answer_limits import AskedFor


class Aim(NamedTuple):
    """An administration queue, and the way to it."""

    name: FormatName
    asked: AskedFor | None  # the host that asks for the acknowledgment; None: an application here
    #: GUID of the queue manager with a session to the queue; None: the name, or `asked`, leads
    #: there.
    via: bytes | None


class Planned(NamedTuple):
    """The acknowledgments of the end of one message to its administration queues."""

    source: bytes  # the GUID of the queue manager that the message comes from
    number: int  # of the message
    message_class: int
    packets: list[tuple[Aim, bytes]]
    not_made: list[tuple[FormatName, str]]  # of a message of another host, with the reasons
    left_out: int  # the number of administration queues beyond the allowance of its host
