"""Requests about routes to other computers, and about their identities."""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import Request, add_verbs


class RedirectOutgoing(Request, tag="redirect_outgoing", frozen=True):
    """Redirect the messages for a destination, or for all queues of an address, to another address.

    -> [outgoing queue, ...]

    `address` is host or host:port; empty: back to the addresses of their names. `to_another`: also
    to a different queue manager than the one that may already have some of the messages.
    """

    destination: str
    address: Annotated[str, msgspec.Meta(max_length=300)]
    to_another: bool = False


class ForgetIdentity(Request, tag="forget_identity", frozen=True):
    """Forget a conflict of identities after it was resolved. -> {queue_manager, forgotten}

    Such a conflict exists when two machines have the same GUID.
    """

    queue_manager: Annotated[str, msgspec.Meta(max_length=64)]


class RestartOutgoing(Request, tag="restart_outgoing", frozen=True):
    """Restart the sequence to a destination.

    -> {destination, queue_manager, in_doubt, sent_again, messages}

    Messages that may have been delivered become dead letters; with `send_again` they are sent
    again.
    """

    destination: str
    send_again: bool = False


RoutingRequest = RedirectOutgoing | ForgetIdentity | RestartOutgoing

add_verbs(RoutingRequest)
