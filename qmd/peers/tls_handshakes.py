"""Handshakes of TLS that peers have begun: a limited number, fair between addresses.

If there are too many, the oldest one of the address with the most of them is closed. Connections
that send nothing therefore keep no other address out; and a session is made, with all its memory,
only after the handshake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from qmd.tls.channel import Proof, TlsChannel

if TYPE_CHECKING:
    from qmd.peers.connection import PeerConnection
    from qmd.peers.tls_peers import TlsPeers
    from qmd.runtime.fair_scheduler import FairScheduler
    from qmd.runtime.services import Services


class TlsHandshakes:
    """The accepted connections of which the handshake has not ended; they own their channels."""

    def __init__(
        self,
        services: Services,
        tls: TlsPeers,
        turns: FairScheduler,
        make_connection: Callable[[], PeerConnection],
    ) -> None:
        self._services = services
        self._tls = tls
        self._turns = turns
        self._make_connection = make_connection
        self._by_host: dict[str, dict[TlsChannel, None]] = {}
        self._count = 0

    def make_channel(self) -> TlsChannel:
        """Return the protocol of a connection that was accepted."""
        return TlsChannel(
            self._services.loop,
            self._tls.credentials,
            self._turns,
            self,
            is_dialled=False,
            timeout_s=self._services.settings.tls.handshake_timeout_s,
        )

    def began(self, channel: TlsChannel) -> None:
        """Count a connection; close another one if there are too many."""
        if self._count >= self._services.settings.tls.handshakes_max:
            self._close_one()
        self._by_host.setdefault(channel.host, {})[channel] = None
        self._count += 1

    def judge(self, channel: TlsChannel, proof: Proof) -> str:
        """Return why the certificate of a peer is refused, or ""."""
        return self._tls.judge_certificate(channel.host, proof, None)

    def ready(self, channel: TlsChannel) -> PeerConnection:
        """Return the session of a connection after its handshake."""
        self._remove(channel)
        return self._make_connection()

    def failed(self, channel: TlsChannel, reason: str) -> None:
        """Log the end of a connection before the end of its handshake."""
        self._remove(channel)
        self._tls.handshake_failed(channel, reason)

    def close(self) -> None:
        """End all handshakes."""
        for channels in list(self._by_host.values()):
            for channel in list(channels):
                channel.abort()

    def _close_one(self) -> None:
        most = max(self._by_host.values(), key=len)
        oldest = next(iter(most))
        self._services.log_limited("too_many_handshakes", oldest.host, address=oldest.host)
        oldest.refuse("too many connections have not finished their handshake")

    def _remove(self, channel: TlsChannel) -> None:
        channels = self._by_host.get(channel.host, {})
        if channels.pop(channel, 0) is None:
            self._count -= 1
            if not channels:
                del self._by_host[channel.host]
