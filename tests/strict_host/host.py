"""A strict host: the state that its sessions share, and the door to it for tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.strict_host.decoding import Arrived
from tests.strict_host.encoding import Draft, Name, direct
from tests.strict_host.manner import Manner
from tests.strict_host.receiving import Receiving
from tests.strict_host.sending import Item, Sending
from tests.strict_host.session import NEVER, Session
from tests.strict_host.verdict import Verdict

TRACE_MAX = 4000


class StrictHost:
    """A queue manager that keeps every rule, uses each freedom of `manner`, and judges its peer.

    `now`: a clock that only goes forward, in seconds; `wall`: the time since 1970.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float],
        wall: Callable[[], float],
        seed: int = 1,
        manner: Manner | None = None,
        guid: bytes = b"",
    ) -> None:
        self.now, self.wall = now, wall
        self.random = random.Random(seed)
        self.guid = guid or self.random.randbytes(16)
        self.manner = manner or Manner()
        self.verdict = Verdict()
        self.sessions: list[Session] = []
        self.ended: list[Session] = []
        self.sending = Sending(self)
        self.sending.timestamp = int(wall())
        self.receiving = Receiving(self)
        self.peer_guid = b""
        self.peer_address = "127.0.0.1"
        self.has_gaps = False  # kills and expiry leave gaps in the numbers of a sequence
        self._ids = 0
        self.traces: list[str] = []

    # -- sessions --

    def accept(self, own_address: str = "127.0.0.1") -> Session:
        """Return the session of a connection that arrived."""
        return self._add(Session(self, is_initiator=False, own_address=own_address))

    def initiate(self, server: bytes = bytes(16), own_address: str = "127.0.0.1") -> Session:
        """Return the session of a connection that this host made."""
        return self._add(Session(self, is_initiator=True, own_address=own_address, server=server))

    def _add(self, session: Session) -> Session:
        self.sessions.append(session)
        return session

    def session_opened(self, session: Session) -> None:
        self.pump()

    def session_ended(self, session: Session) -> None:
        if session in self.sessions:
            self.sessions.remove(session)
            self.ended.append(session)
        self.sending.session_ended(session)

    def meets(self, guid: bytes) -> None:
        """Judge that the peer keeps its GUID."""
        known = self.peer_guid or guid
        self.verdict.require(known == guid, "MQ 2.2.18.1.3", "the peer changed its GUID")
        self.peer_guid = known

    @property
    def open_initiated(self) -> list[Session]:
        """Return the sessions for this host's own messages: those that it has opened."""
        return [each for each in self.sessions if each.is_initiator and each.state == "OPEN"]

    # -- behaviour --

    def behave(self, manner: Manner) -> None:
        """Go on in another manner; a smaller window binds the peer from the next session on."""
        self.manner = manner
        for session in list(self.sessions):
            if session.unacked and not manner.sleeps:
                session.acknowledge()
        self.pump()

    def draw(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    # -- messages --

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def draft(self, queue: str | Name, body: bytes = b"", **fields: Any) -> Draft:
        """Return a message to a private queue of the peer, or to any name."""
        text = f"TCP:{self.peer_address}\\private$\\{queue}"
        to = queue if isinstance(queue, Name) else direct(text)
        fields.setdefault("untidy", self.manner.untidy)
        fields.setdefault("sent_time", int(self.wall()))
        return Draft(source=self.guid, message_id=self.next_id(), to=to, body=body, **fields)

    def send(self, queue: str | Name, body: bytes = b"", **fields: Any) -> Item:
        """Send a message without a transaction."""
        item = self.sending.add(self.draft(queue, body, **fields))
        self.pump()
        return item

    def send_in_order(self, queue: str, body: bytes = b"", **fields: Any) -> Item:
        """Send a transactional message: it takes the next place of the sequence to its queue."""
        flags = fields.pop("flags", 0xC)
        item = self.sending.add(self.draft(queue, body, **fields), queue, flags)
        self.pump()
        return item

    def pump(self) -> None:
        self.sending.pump(self.open_initiated)

    def take(self, session: Session, arrived: Arrived) -> None:
        """Take a user message of an open session: QB 3.1.5.8."""
        require = self.verdict.require
        if arrived.is_order_ack or arrived.is_final_ack:
            require(arrived.source == session.peer, "QB 2.2.4", "SourceQueueManager")
            self._judge_order_address(session, arrived)
        if arrived.is_order_ack:
            self.sending.take_order_ack(arrived, session)
        elif arrived.is_final_ack:
            self.sending.take_final_ack(arrived)
        elif arrived.message_class >= 2 and arrived.message_class != 0xFF:
            self.sending.take_admin_ack(arrived)
        else:
            self.receiving.take(session, arrived)

    def _judge_order_address(self, session: Session, arrived: Arrived) -> None:
        if arrived.to.kind == 7:
            expected = f"TCP:{session.own_address}\\PRIVATE$\\order_queue$"
            good = arrived.to.text.lower() == expected.lower()
            self.verdict.require(good, "QB 3.1.7.17", f"addressed to {arrived.to.text}")
        else:
            good = arrived.address == self.guid
            self.verdict.require(good, "QB 3.1.7.17", "QueueManagerAddress is not of this host")

    def bodies(self, queue: str) -> list[bytes]:
        """Return the bodies that a queue of this host has accepted."""
        return [each.body for each in self.receiving.queues.get(queue, [])]

    # -- time --

    def due(self) -> float:
        """Return the time at which `tick` has something to do, or infinity."""
        times = [session.due() for session in self.sessions]
        return min([*times, self.sending.due(), self.receiving.due()], default=NEVER)

    def tick(self) -> None:
        """Handle all timers that are over."""
        for session in list(self.sessions):
            session.tick()
        self.receiving.tick()
        self.sending.tick()
        self.pump()

    # -- what happened --

    def trace(self, act: str, session: Session, data: bytes) -> None:
        """Keep the last packets for the report of a failed test."""
        number = (self.sessions + self.ended).index(session) if session in self.sessions else -1
        shown = data[:96].hex() if act != "ends" else data.decode()
        self.traces.append(f"{self.now():.3f} {act} on {number} {len(data)} {shown}")
        del self.traces[:-TRACE_MAX]

    def restart(self) -> None:
        """Lose everything that need not survive a restart: sessions and express messages."""
        for session in list(self.sessions):
            session.close("this host restarts")
        self.sending.table = [
            item for item in self.sending.table if item.is_recoverable and not item.is_internal
        ]
