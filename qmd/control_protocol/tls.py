"""Requests about TLS between queue managers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from qmd.control_protocol.messages import Request, add_verbs


class ListTlsPeers(Request, tag="list_tls_peers", frozen=True):
    """List the queue managers and the addresses that were met over TLS. -> [peer, ...]"""


class ForgetTlsPeer(Request, tag="forget_tls_peer", frozen=True):
    """Forget that a GUID or an address (`host:port`) was met over TLS. -> {peer, forgotten}

    It is then believed without TLS, or with another key, again.
    """

    peer: Annotated[str, msgspec.Meta(max_length=300)]


TlsRequest = ListTlsPeers | ForgetTlsPeer

add_verbs(TlsRequest)
