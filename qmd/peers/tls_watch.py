"""TLS watch: reads changed files of TLS again, and ends the sessions that they no longer permit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmd.peers.sessions import Peers
    from qmd.peers.tls_peers import TlsPeers
    from qmd.runtime.services import Services

# Every so many checks of the files the open sessions are judged again: certificates expire.
JUDGE_EVERY_S = 60.0


class TlsWatch:
    """The periodic check; `run` is a task of the daemon."""

    def __init__(self, services: Services, tls: TlsPeers, peers: Peers) -> None:
        self._services = services
        self._tls = tls
        self._peers = peers
        self._judged_at = services.loop.time()
        tls.on_bound = self.judge_sessions

    async def run(self) -> None:
        """Check the files until the task is cancelled."""
        while True:
            self.check()
            await asyncio.sleep(self._services.settings.tls.reload_s)

    def check(self) -> None:
        """Read changed files again; end the sessions with peers that may no longer have one."""
        if not self._tls.is_enabled:
            return
        now = self._services.loop.time()
        if not self._tls.reload() and now < self._judged_at + JUDGE_EVERY_S:
            return
        self._judged_at = now
        self.judge_sessions()

    def judge_sessions(self) -> None:
        """End the open sessions that would not be accepted now."""
        for connection in list(self._peers.connections):
            proof, session = connection.proof, connection.session
            if proof is not None and (reason := self._tls.judge_again(proof)):
                self._tls.refused(connection.host, reason)
                connection.close(reason)
                continue
            guid = None if session is None else session.remote_id
            if proof is not None or guid is None:
                continue
            # Its queue manager may have been pinned, or met over TLS, meanwhile.
            hindrance = self._tls.judge(connection, guid)
            if hindrance is not None:
                connection.close(hindrance)
