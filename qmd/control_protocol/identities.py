"""Requests about the identities of other queue managers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import Request, add_verbs

Guid = Annotated[str, msgspec.Meta(max_length=64)]
Fact = Annotated[str, msgspec.Meta(max_length=200)]


class ListPeers(Request, tag="list_peers", frozen=True):
    """List the facts known about other queue managers, or about one of them.

    -> [{queue_manager, fact, origin, is_primary, bound, is_qmd, host, public_key, sessions,
    first_seen, last_seen}, ...]
    """

    queue_manager: Guid = ""


class PinPeer(Request, tag="pin_peer", frozen=True):
    """Bind a GUID to a fact: an address, or key:FINGERPRINT. -> a row as of list_peers

    Messages for the queue manager then go only over sessions with that fact. With `join` the fact
    is added to the present primary origin: it is the same machine with a new address or key.
    """

    queue_manager: Guid
    fact: Fact
    join: bool = False


class ForgetPeer(Request, tag="forget_peer", frozen=True):
    """Forget a fact about a queue manager, or all facts, also pinned ones.

    -> {queue_manager, forgotten}
    """

    queue_manager: Guid
    fact: Fact = ""


IdentityRequest = ListPeers | PinPeer | ForgetPeer

add_verbs(IdentityRequest)
