"""Requests that doors need besides those of all applications."""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.access import Principal
from qmd.control_protocol.locks import LockId
from qmd.control_protocol.messages import LookupIds, Request, add_verbs

LinkAddress = Annotated[str, msgspec.Meta(max_length=400)]


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


class RejectOutgoing(Request, tag="reject_outgoing", frozen=True):
    """End a message that the other end of a link will never accept. -> the number of messages

    `link` is the address of the link, such as `http://hostb:80`; the message has been handed to its
    session, and is not acknowledged. It becomes a dead letter with the class and the reason.
    """

    link: LinkAddress
    source: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    message_number: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    message_class: Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
    reason: str


class EndLinkSession(Request, tag="end_link_session", frozen=True):
    """End the session of a link, which is tried again later. -> whether it had one

    The reason is shown by `qmd outgoing list`, and in dead letters of messages that expire.
    """

    link: LinkAddress
    reason: str


class AnnounceSession(Request, tag="announce_session", frozen=True):
    """Announce that the next connection from an address and a port is for another host. -> None

    The connection is one to the port for queue managers. `principals` are those that the door has
    proven, of the kind `cert`; `is_encrypted`: the host sends its messages over TLS; `token` is
    the one that it has sent, which the daemon checks.
    """

    address: Annotated[str, msgspec.Meta(max_length=100)]
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    host: Annotated[str, msgspec.Meta(max_length=100)]
    principals: Annotated[list[Principal], msgspec.Meta(max_length=16)]
    is_encrypted: bool = False
    token: Annotated[str, msgspec.Meta(max_length=200)] = ""


add_verbs(AnnounceSession | StopWaiting | Note | RejectOutgoing | EndLinkSession)
