"""Answering: the connections that a peer opens to the probe, for what it sends of its own accord.

A queue manager may send acknowledgment messages, order acks and final acks over a connection of its
own, to the address in a message or in its session.  A thread accepts these, answers the handshake
as an acceptor, and acknowledges all messages; the script reads what came.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from protocol.errors import ProtocolError
from protocol.records import UserMessage
from qmd.interop.conversation import Conversation, Seen, Streams
from qmd.interop.wire import ClosedByPeer, Silent, Wire

CONNECTIONS_MAX = 16
BACKLOG = 4
_TURN_S = 0.2


class Answering:
    """The listening socket of a probe, and the sessions that were accepted from one host."""

    def __init__(self, address: str, port: int, guid: bytes, streams: Streams, timeout_s: float):
        """Listen; port 0 is one that is free.  Raises OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listening = socket.create_server((address, port), family=family, backlog=BACKLOG)
        self._listening.settimeout(_TURN_S)
        self.port = int(self._listening.getsockname()[1])
        self._guid, self._streams, self._timeout_s = guid, streams, timeout_s
        self._peers: frozenset[str] = frozenset()
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.sessions: list[Wire] = []
        self.strangers = 0  # connections of other hosts, which were closed
        self.faults: list[str] = []

    def start(
        self, peers: frozenset[str], keep: Callable[[str, Conversation, list[Seen]], None]
    ) -> None:
        """Accept connections from these addresses; `keep` records each conversation."""
        self._peers, self._keep = peers, keep
        self._begin(self._accept)

    @property
    def messages(self) -> list[UserMessage]:
        """All messages that came."""
        return [message for session in list(self.sessions) for message in list(session.messages)]

    def close(self) -> None:
        """End all sessions."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def _begin(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_over.is_set():
            try:
                accepted, other = self._listening.accept()
            except OSError:  # no connection within the turn
                continue
            host = str(other[0]).removeprefix("::ffff:")
            if host not in self._peers or len(self.sessions) >= CONNECTIONS_MAX:
                self.strangers += 1
                accepted.close()
                continue
            session = Wire(accepted, self._guid, self._streams, self._timeout_s, accepted=True)
            self.sessions.append(session)
            name = f"connection {len(self.sessions)} of the peer"
            self._keep(name, session.conversation, session.seen)
            self._begin(lambda session=session: self._serve(session))  # type: ignore[misc]

    def _serve(self, session: Wire) -> None:
        """Answer the handshake, and acknowledge messages until the session or the script ends."""
        try:
            session.answer()
            while not self._is_over.is_set():
                with contextlib.suppress(Silent):
                    session.wait(self._is_over.is_set, "packet", _TURN_S)
        except (ClosedByPeer, OSError):
            pass
        except (Silent, ProtocolError) as fault:
            self.faults.append(f"the handshake of the peer: {fault}")
        finally:
            session.close()
