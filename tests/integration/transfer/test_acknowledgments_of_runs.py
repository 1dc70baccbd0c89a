"""Session acks and commits: no stored message is acknowledged before its commit, alone or in a run.

A run forms if a trusted connection brings enough like messages in one read, so that these tests
send some messages first.  They hold the disk, so that no commit succeeds, and send an express
message behind the others.  Its acknowledgment shows what a session ack says at that time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from protocol import UserMessage
from protocol.like_packets import Run
from qmd.control_protocol.messages import EXPRESS
from qmd.core.session import RUN_MIN
from qmd.peers.reputation import TRUST
from qmd.queues.incoming_stream import IncomingStream
from qmd.queues.local_queue import LocalQueue, Reader
from qmd.transfer.arrivals import Arrivals
from qmd.transfer.turn import Turn
from tests.integration.disk import held_disk
from tests.integration.managers import Host, Hosts, hosted, until
from tests.integration.remote import Remote, dial, guid, packet

REMOTE = guid(7)
SENT_S = time.time()
LAST = TRUST + 8 * RUN_MIN


def transactional(number: int, label: str = "") -> bytes:
    return packet(
        b"%d" % number,
        source=REMOTE,
        number=number,
        position=(1 << 32, number, number - 1),
        dead_letter=False,
        label=label,
        sent_s=SENT_S,
    )


def like(number: int) -> bytes:
    return transactional(number)


def unlike(number: int) -> bytes:
    return transactional(number, label=f"number {number}")


@contextmanager
def accepted_runs() -> Iterator[list[Run]]:
    """Yield the runs that are accepted meanwhile."""
    runs: list[Run] = []
    accept_run = Arrivals.accept_run

    def accept(
        self: Arrivals,
        turn: Turn,
        queue: LocalQueue,
        stream: IncomingStream,
        message: UserMessage,
        run: Run,
    ) -> None:
        runs.append(run)
        accept_run(self, turn, queue, stream, message, run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arrivals, "accept_run", accept)
        yield runs


async def sender_and_receiver(hosts: Hosts) -> tuple[Remote, Host]:
    """Return a trusted session with a queue manager that has its first messages."""
    host = await hosts.start()
    await host.create("orders", transactional=True)
    await host.create("news")
    remote = await dial(host, REMOTE)
    remote.send(*map(like, range(1, TRUST + 1)))
    await until(lambda: len(remote.acknowledged) == TRUST)
    return remote, host


async def check_order(remote: Remote, host: Host, form: Callable[[int], bytes]) -> list[int]:
    """Send messages while nothing is committed; return the lengths of the runs that they form."""
    sent = [form(number) for number in range(TRUST + 1, LAST + 1)]
    behind = packet(source=REMOTE, number=LAST + 1, queue="news", delivery=EXPRESS)
    with accepted_runs() as runs, held_disk(host):
        remote.send(*sent, behind)
        await until(lambda: behind in remote.acknowledged, "the express message")

        assert host.incoming.received_count == LAST + 1
        assert remote.acknowledged[TRUST:] == [behind]
        assert all(number <= TRUST for _, number in remote.order_acks)
        readable = await host.take(reader := Reader(), "orders", LAST)
        assert host.give_back(reader, "orders", readable) == len(readable) == TRUST

    await until(lambda: len(remote.acknowledged) == LAST + 1, "the others")
    assert remote.acknowledged[TRUST + 1 :] == sent
    assert await host.receive("orders") == [b"%d" % number for number in range(1, LAST + 1)]
    return [len(run.packets) for run in runs]


@hosted
async def test_no_message_of_a_run_is_acknowledged_before_its_commit(hosts: Hosts) -> None:
    lengths = await check_order(*await sender_and_receiver(hosts), like)
    assert sum(lengths) >= RUN_MIN


@hosted
async def test_no_message_alone_is_acknowledged_before_its_commit(hosts: Hosts) -> None:
    lengths = await check_order(*await sender_and_receiver(hosts), unlike)
    assert not lengths
