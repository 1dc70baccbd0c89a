"""A stand-in for a host with Windows that is replaced: an independent peer with its own queue.

It sends to other stand-ins directly, and to daemons by the protocol.  Its queue keeps a journal,
and `export` writes both as the scripts do.
"""

from __future__ import annotations

import uuid
from collections import deque
from pathlib import Path
from typing import NamedTuple

from tests import windows_files
from tests.process.harness import Daemon, Hosts
from tests.process.peer import Peer
from tests.process.wire import Message


class Copy(NamedTuple):
    """A message in the queue of a stand-in."""

    source: bytes
    number: int
    body: bytes


class OldHost:
    """One host: a sender, and the queue `orders` with a program that receives from it."""

    def __init__(self, name: str, hosts: Hosts) -> None:
        self.name, self._hosts = name, hosts
        self.remote = hosts.remote()
        self.listener = self.remote.listen()
        self.queue: deque[Copy] = deque()
        self.journal: list[Copy] = []
        self.receives = True
        self._sent: dict[str, int] = {}  # by destination
        self._ways: dict[str, tuple[Peer, int, int]] = {}  # peer, sequence, last number
        self._peer: Peer | None = None

    def send(self, owner: OldHost, *, old: bool, new: Daemon | None) -> None:
        """Send the next message to the queue of `owner`: to the old host, the new one, or both."""
        count = self._sent[owner.name] = self._sent.get(owner.name, 0) + 1
        body = f"{self.name} {count}".encode()
        if old:
            owner.queue.append(Copy(self.remote.guid, self.remote.next_id(), body))
        if new is not None:
            self._send(new, body)

    def sent_to(self, owner: OldHost) -> int:
        return self._sent.get(owner.name, 0)

    def _send(self, daemon: Daemon, body: bytes) -> None:
        key = str(daemon.port)
        if key not in self._ways:
            remote = self._hosts.remote(self.remote.guid)  # it knows one daemon
            self._ways[key] = remote.connect(daemon.port), remote.new_sequence(), 0
        peer, sequence, number = self._ways[key]
        self._ways[key] = peer, sequence, number + 1
        peer.send(peer.owner.transactional("orders", sequence, number + 1, body=body))

    def settle(self) -> None:
        """Wait until the daemons have acknowledged everything."""
        for peer, sequence, number in self._ways.values():
            peer.wait_order_ack(sequence, number)

    def receive(self) -> bytes | None:
        """Let the program receive one message; its copy goes to the journal."""
        if not self.receives or not self.queue:
            return None
        copy = self.queue.popleft()
        self.journal.append(copy)
        return copy.body

    def accept(self, count: int) -> None:
        """Take messages that a daemon sends back, in their order, into the queue."""
        if self._peer is None:
            self._peer = self.listener.accept()
        messages: list[Message] = self._peer.receive_many(count)
        for message in messages:
            self.queue.append(Copy(message.source, message.message_id, message.body))
        last = messages[-1].transaction
        assert last is not None
        self._peer.order_ack(last.sequence_id, last.number)
        self._peer.wait_acknowledged()

    def export(self, path: Path) -> Path:
        """Write the queue and its journal as `Export-MsmqMessage.ps1` does."""
        parts = (("orders", self.queue), ("orders\\journal$", self.journal))
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
                )
                for queue, copies in parts
                for copy in copies
            )
        )
        return path
