"""The position of an inward bridge, in a real daemon, with an end in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from qmd.bridge.ends import Arrival, DoesNotFit, Position
from qmd.bridge.inward import Inward, position_queue
from qmd.client import QueueManagerError, connect
from qmd.client.connection import open_connection
from qmd.client.errors import TransactionAborted
from qmd.client.new_message import new_message
from qmd.control_protocol.access import ActFor
from qmd.control_protocol.messages import NewMessage, Send
from qmd.control_protocol.operations import CreateQueue
from tests.attack.test_access import Link
from tests.process.harness import Daemon, Hosts
from tests.process.remote import RemoteQueueManager
from tests.users import connect_as, needs_root


class Numbers:
    """An end with the messages 1 to `last`; the position is the number of the last one."""

    guarantee = "exactly once"

    def __init__(self, last: int) -> None:
        self._last = last
        self._at = 0

    async def open(self, position: Position) -> None:
        self._at = position or 0

    async def fetch(self, limit: int, wait_s: float, queue: str) -> Sequence[Arrival]:
        first, self._at = self._at + 1, min(self._at + limit, self._last)
        return [
            Arrival(str(n), new_message(queue, b"%d" % n, delivery="transactional"), n, b"")
            for n in range(first, self._at + 1)
        ]

    async def done(self) -> None:
        pass

    async def close(self) -> None:
        pass


def inward() -> Inward:
    return Inward("in", "inbox", "numbers", 10, Numbers(20))


def test_two_first_starts_at_the_same_time_have_one_position(daemon: Daemon):
    """Both see an empty queue; with two positions, both would bring all messages."""
    daemon.create("inbox", transactional=True)

    async def act() -> None:
        socket = daemon.folder / "qmd.sock"
        async with connect(socket) as one, connect(socket) as two:
            first, second = inward(), inward()
            await asyncio.gather(first.open(one), second.open(two))
            assert (await one.show_queue(position_queue("in")))["messages"] == 1
            assert await first.turn(one) == 10
            with pytest.raises(TransactionAborted, match="another process runs the bridge"):
                await second.turn(two)
            again = inward()
            await again.open(two)
            assert await again.turn(two) == 10

    asyncio.run(act())
    assert daemon.bodies("inbox") == [b"%d" % n for n in range(1, 21)]


def test_a_second_message_in_the_queue_of_the_position_is_refused(daemon: Daemon):
    daemon.create("inbox", transactional=True)

    async def act() -> None:
        async with connect(daemon.folder / "qmd.sock") as qm:
            await inward().open(qm)
            await qm.send(position_queue("in"), b"another", delivery="transactional")
            with pytest.raises(DoesNotFit, match="2 visible messages"):
                await inward().open(qm)

    asyncio.run(act())


def test_other_senders_cannot_use_the_queues_of_a_bridge(hosts: Hosts, remote: RemoteQueueManager):
    """A second position would stop the bridge: by a host, by a client of a door."""
    daemon = hosts.daemon()
    daemon.create("inbox", transactional=True)
    path = daemon.folder / "qmd.sock"

    async def act() -> None:
        async with connect(path) as qm:
            await inward().open(qm)
            door = await open_connection(path)
            await door.ask(ActFor, ["anonymous"])
            for name in ("bridge.in", "bridge.in.refused"):
                with pytest.raises(QueueManagerError, match="right send"):
                    await door.ask(Send, [NewMessage(name, b"forged")])
                peer = remote.connect(daemon.port)
                peer.send(remote.transactional(name, remote.new_sequence(), 1))
                peer.wait_stored()
            await door.close()
            again = inward()
            await again.open(qm)
            assert await again.turn(qm) == 10

    asyncio.run(act())


@needs_root
def test_a_queue_that_another_user_made_first_is_not_trusted(hosts: Hosts):
    """Its owner could state a position, so that messages are left out or come again."""
    daemon = hosts.daemon(control={"mode": "0666"})
    daemon.create("inbox", transactional=True)
    path = daemon.folder / "qmd.sock"
    other = Link(connect_as(64_001, path))
    other.done(CreateQueue, position_queue("in"), True)
    other.close()

    async def act() -> None:
        async with connect(path) as qm:
            with pytest.raises(DoesNotFit, match="belongs to user:64001"):
                await inward().open(qm)
            await qm.access.set_owner(position_queue("in"))
            await inward().open(qm)

    asyncio.run(act())
