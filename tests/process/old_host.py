"""A stand-in for a host with Windows that is replaced: an independent peer with its own queue.

It sends to other stand-ins directly, and to daemons by the protocol.  Its queue keeps a journal,
and `export` writes both as the scripts do.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests import windows_files
from tests.process.harness import Daemon, Hosts
from tests.process.peer import Peer
from tests.process.wire import Message

#: Seconds of the stated time between two messages of a sender: a test has less of its own.
APART_S = 30


class Copy(NamedTuple):
    """A message in the queue of a stand-in."""

    source: bytes
    number: int
    body: bytes
    sent_s: int


class OldHost:
    """One host: a sender, and the queue `orders` with a program that receives from it."""

    def __init__(self, name: str, hosts: Hosts) -> None:
        self.name, self._hosts = name, hosts
        self.remote = hosts.remote()
        self.listener = self.remote.listen()
        self.queue: deque[Copy] = deque()
        self.journal: list[Copy] = []
        self.receives = True
        self.journals = False  # as a queue that was created without a journal
        self._first_s = int(time.time()) - 10_000_000
        self._sent: dict[str, int] = {}  # by destination
        self._ways: dict[str, tuple[Peer, int, int]] = {}  # peer, sequence, last number
        self._peer: Peer | None = None

    def send(self, owner: OldHost, *, old: bool, new: Daemon | None) -> None:
        """Send the next message to the queue of `owner`: to the old host, the new one, or both."""
        count = self._sent[owner.name] = self._sent.get(owner.name, 0) + 1
        body = body_of(self.name, count)
        sent_s = self._first_s + APART_S * count
        if old:
            owner.queue.append(Copy(self.remote.guid, self.remote.next_id(), body, sent_s))
        if new is not None:
            self._send(new, body, sent_s)

    def sent_to(self, owner: OldHost) -> int:
        return self._sent.get(owner.name, 0)

    def _send(self, daemon: Daemon, body: bytes, sent_s: int) -> None:
        key = str(daemon.port)
        if key not in self._ways:
            remote = self._hosts.remote(self.remote.guid)  # it knows one daemon
            self._ways[key] = remote.connect(daemon.port), remote.new_sequence(), 0
        peer, sequence, number = self._ways[key]
        self._ways[key] = peer, sequence, number + 1
        packet = peer.owner.transactional(
            "orders", sequence, number + 1, body=body, sent_time=sent_s
        )
        peer.send(packet)

    def settle(self) -> None:
        """Wait until the daemons have acknowledged everything."""
        for peer, sequence, number in self._ways.values():
            peer.wait_order_ack(sequence, number)

    def receive(self) -> bytes | None:
        """Let the program receive one message; its copy goes to the journal, if there is one."""
        if not self.receives or not self.queue:
            return None
        copy = self.queue.popleft()
        if self.journals:
            self.journal.append(copy)
        return copy.body

    def accept(self, count: int) -> None:
        """Take messages that a daemon sends back, in their order, into the queue."""
        if self._peer is None:
            self._peer = self.listener.accept()
        messages: list[Message] = self._peer.receive_many(count)
        for message in messages:
            self.queue.append(
                Copy(message.source, message.message_id, message.body, message.sent_time)
            )
        last = messages[-1].transaction
        assert last is not None
        self._peer.order_ack(last.sequence_id, last.number)
        self._peer.wait_acknowledged()

    def export(self, path: Path, queues: Sequence[str]) -> None:
        """Write the queue, its journal, or both as `Export-MsmqMessage.ps1` does."""
        have = {"orders": self.queue, "orders\\journal$": self.journal}
        parts = [(queue, have[queue]) for queue in queues]
        path.write_bytes(
            b"".join(
                windows_files.message(
                    copy.number,
                    copy.body,
                    queue,
                    id=f"{uuid.UUID(bytes_le=copy.source)}\\{copy.number}",
                    label="",
                    application_tag=0,
                    response_queue=None,
                    sent_at_ms=1000 * copy.sent_s,
                )
                for queue, copies in parts
                for copy in copies
            )
        )


def body_of(name: str, count: int) -> bytes:
    """Return the body of a sender's message; each third one is the same text again."""
    return f"{name} {count if count % 3 else 'again'}".encode()
