"""A sender that is restored from a backup at any moment: no message is doubled or lost silently.

Two whole queue managers run in one process, and each world has a seed.  Messages sent after a
backup that never left are lost with the folder.  All others must have arrived once and in order, or
be dead letters with a reason.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest
import uvloop

from qmd.control_protocol import messages as frames
from qmd.queues.outgoing_queue import OutgoingQueue
from tests.integration.managers import TRANSACTIONAL_DEAD_LETTERS, Host, Hosts, bodies, until

STEPS = 14
ANSWERING = {"delivery": {"order_ack_timeout_s": 0.02}}
SETTINGS = {"delivery": {"resend_s": (0.1,), "retry_first_s": 0.01, "retry_max_s": 0.05}}


class Life:
    """A sender and a receiver, and the required end of each message."""

    def __init__(self, hosts: Hosts, folder: Path, seed: int) -> None:
        self.hosts, self.folder, self.random = hosts, folder, random.Random(seed)
        self.sender: Host
        self.receiver: Host
        self.sent: list[bytes] = []  # in the history of the sender's folder
        self.in_backup: list[bytes] | None = None
        self.count = 0

    @property
    def backup(self) -> Path:
        return self.folder / "backup"

    @property
    def data(self) -> Path:
        return self.folder / "sender" / "data"

    @property
    def destination(self) -> str:
        return f"DIRECT=TCP:127.0.0.1:{self.receiver.port}\\private$\\orders"

    @property
    def outgoing(self) -> OutgoingQueue:
        return self.sender.sending_to(self.destination)

    async def begin(self) -> None:
        self.receiver = await self.hosts.start("receiver", **ANSWERING)
        await self.receiver.create("private$\\orders", transactional=True)
        self.sender = await self.hosts.start("sender", **SETTINGS)
        await self.send()

    async def step(self) -> None:
        act = self.random.choice(
            [self.send, self.send, self.rest, self.cut, self.back_up, self.put_back, self.restart]
        )
        await act()

    async def send(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            self.count += 1
            body = b"%d" % self.count
            self.sent.append(body)
            await self.sender.send(
                self.destination, body, delivery=frames.TRANSACTIONAL, dead_letter=True
            )

    async def hand_over(self, destination: str, body: bytes) -> None:
        await self.sender.send(destination, body, delivery=frames.TRANSACTIONAL, dead_letter=True)

    async def rest(self) -> None:
        await asyncio.sleep(self.random.choice([0.0, 0.01, 0.2]))

    async def cut(self) -> None:
        """Stop the receiver for a while, so that messages stay unacknowledged."""
        port = self.receiver.port
        await self.hosts.stop(self.receiver)
        if self.random.random() < 0.7:
            destination = f"DIRECT=TCP:127.0.0.1:{port}\\private$\\orders"
            self.count += 1
            self.sent.append(b"%d" % self.count)
            await self.sender.send(
                destination, self.sent[-1], delivery=frames.TRANSACTIONAL, dead_letter=True
            )
            if self.random.random() < 0.7:
                await self.back_up()
        self.receiver = await self.hosts.start("receiver", port, **ANSWERING)

    async def back_up(self) -> None:
        await self.hosts.stop(self.sender)
        shutil.rmtree(self.backup, ignore_errors=True)
        shutil.copytree(self.data, self.backup)
        self.in_backup = list(self.sent)
        self.sender = await self.hosts.start("sender", **SETTINGS)

    async def put_back(self) -> None:
        if self.in_backup is None:
            return
        await self.hosts.stop(self.sender)
        shutil.rmtree(self.data)
        shutil.copytree(self.backup, self.data)
        self.sent = list(self.in_backup)
        self.receiver.identities.forget(self.sender.id)
        self.sender = await self.hosts.start("sender", **SETTINGS)

    async def restart(self) -> None:
        await self.hosts.stop(self.sender)
        self.sender = await self.hosts.start("sender", **SETTINGS)

    async def end(self) -> None:
        """Resume everything, with the command of the operator where the sender needs it."""
        self.receiver.identities.forget(self.sender.id)
        await self.send()
        self.outgoing.link.kick()
        queue = self.outgoing
        while queue.messages:
            await until(lambda: queue.doubt or not queue.messages, "an end, or a doubt")
            if queue.doubt:
                await self.sender.sequence_renewal.restart(queue, send_again=False)
        await self.sender.settled()

    async def judge(self) -> None:
        arrived = await self.receiver.receive("orders")
        for host in (self.sender, self.receiver):  # which now gets the final acks
            await until(lambda host=host: not any(each.messages for each in host.outgoing.queues))
            await host.settled()
        dead = bodies(await self.sender.peek(TRANSACTIONAL_DEAD_LETTERS))
        assert len(set(arrived)) == len(arrived), "doubled"
        assert arrived == sorted(arrived, key=int), "out of order"
        assert set(self.sent) <= {*arrived, *dead}, "lost without a word"
        reasons = {each.reason for each in await self.sender.peek(TRANSACTIONAL_DEAD_LETTERS)}
        assert all("may have been delivered" in str(reason) for reason in reasons)


@pytest.mark.parametrize("seed", range(12))
def test_no_message_is_doubled_or_lost_silently(tmp_path: Path, seed: int) -> None:
    async def world() -> None:
        async with asyncio.timeout(100), Hosts(tmp_path) as hosts:
            life = Life(hosts, tmp_path, seed)
            await life.begin()
            for _ in range(STEPS):
                await life.step()
            await life.put_back()
            await life.end()
            await life.judge()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(world())
