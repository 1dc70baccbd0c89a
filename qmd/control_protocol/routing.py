"""What the control socket speaks about ways to other computers, and who they are."""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import Request, add_verbs


class RedirectOutgoing(Request, tag="redirect_outgoing", frozen=True):
    """What waits for a destination, or for all queues of an address, goes elsewhere from now on.

    -> [outgoing queue, ...]

    `address` is host or host:port; empty: to the addresses of their names again.  `to_another`:
    also to another queue manager than the one that may have some of it already.
    """

    destination: str
    address: Annotated[str, msgspec.Meta(max_length=300)]
    to_another: bool = False


class ForgetIdentity(Request, tag="forget_identity", frozen=True):
    """Two machines of one GUID have been put in order.  -> {queue_manager, forgotten}"""

    queue_manager: Annotated[str, msgspec.Meta(max_length=64)]


class RestartOutgoing(Request, tag="restart_outgoing", frozen=True):
    """Begin the sequence to a destination anew.

    -> {destination, queue_manager, in_doubt, sent_again, messages}

    What may have been delivered becomes dead letters; with `send_again` it is sent again.
    """

    destination: str
    send_again: bool = False


RoutingRequest = RedirectOutgoing | ForgetIdentity | RestartOutgoing

add_verbs(RoutingRequest)
