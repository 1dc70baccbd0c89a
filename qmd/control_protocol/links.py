"""Requests of doors whose clients resume links: the deliveries that were committed."""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import MESSAGES_MAX, NewMessage, Request, add_verbs

LINK_BYTES = 16
DELIVERY_BYTES_MAX = 64
AT_ONCE_MAX = 1024  # messages, and links: they are sent in one turn of the event loop

Link = Annotated[bytes, msgspec.Meta(min_length=LINK_BYTES, max_length=LINK_BYTES)]
Delivery = Annotated[bytes, msgspec.Meta(max_length=DELIVERY_BYTES_MAX)]
Position = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class LinkDeliveries(msgspec.Struct, array_like=True, frozen=True):
    """Deliveries of one link: the position of the first on it, and all of them in their order.

    The sender has settled all deliveries of rows before `kept_from`.
    """

    link: Link
    position: Position
    kept_from: Position
    deliveries: Annotated[list[Delivery], msgspec.Meta(max_length=MESSAGES_MAX)]


class SendOverLinks(Request, tag="send_over_links", frozen=True):
    """Store all of the messages or none, as `Send`, and record their deliveries. -> None

    The deliveries are recorded in the commit that stores the messages, for `ResumeLink`.

    A client that does not wait for the answer numbers its requests with `turn`.  A request is
    refused unless the one of the turn `after` was the last that was not refused on this connection:
    no message overtakes one that was refused and is sent again.  With 0 it follows none.
    """

    messages: Annotated[list[NewMessage], msgspec.Meta(max_length=AT_ONCE_MAX)]
    links: Annotated[list[LinkDeliveries], msgspec.Meta(max_length=AT_ONCE_MAX)]
    turn: Position = 0
    after: Position = 0


class ResumeLink(Request, tag="resume_link", frozen=True):
    """Return the recorded deliveries of a link. -> [next position, [delivery, ...]], or None

    The answer is complete: a message of this link that still arrives over an older connection is
    refused.
    """

    link: Link


class ForgetLink(Request, tag="forget_link", frozen=True):
    """Delete the recorded deliveries of a link, which begins anew or ends. -> None

    A message of this link that still arrives over an older connection is refused.
    """

    link: Link


add_verbs(SendOverLinks | ResumeLink | ForgetLink)
