"""A connection that is made in the turn in which the time for it ends.

uvloop then closes it, and its protocol does not hear of that.
"""

from __future__ import annotations

import asyncio
import time

from qmd.control_protocol.messages import RECOVERABLE
from qmd.core.session import Session
from qmd.peers.connection import PeerConnection
from qmd.peers.dialer import TOO_LATE
from tests.integration.managers import Host, Hosts, hosted, until

LIMIT_S = 0.05


def busy_at_first(host: Host) -> list[PeerConnection]:
    """Let the loop be busy while the first connection is made; return it in a list."""
    made: list[PeerConnection] = []
    admit = host.peers.admit

    def slowly(connection: PeerConnection) -> Session | None:
        if not made:
            time.sleep(2 * LIMIT_S)
        made.append(connection)
        return admit(connection)

    host.peers.admit = slowly  # type: ignore[method-assign]
    return made


@hosted
async def test_it_ends_and_the_next_one_brings_the_message(hosts: Hosts) -> None:
    a = await hosts.start("a", delivery={"connect_timeout_s": LIMIT_S, "retry_max_s": 0.1})
    b = await hosts.start("b")
    await b.create("orders")
    made = busy_at_first(a)
    destination = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    await a.send(destination, b"x", delivery=RECOVERABLE)

    await until(lambda: made, "the first connection")
    await until(lambda: not made[0].is_open, "its end")
    assert made[0] not in a.peers.connections
    results = [each.result for each in a.sending_to(destination).link.retry.history]
    assert f"the connection was lost: {TOO_LATE}" in results
    made[0].flush_soon()  # as an acknowledgment does
    await asyncio.sleep(0)
    await until(lambda: b.queue("orders").messages == 1, "the message")
    await until(lambda: not a.sending_to(destination).messages, "its acknowledgment")
    assert len(made) >= 2


@hosted
async def test_it_ends_with_an_attempt_that_is_cancelled(hosts: Hosts) -> None:
    a = await hosts.start("a")
    b = await hosts.start("b")
    made = busy_at_first(a)
    await a.send(f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders", b"x")
    link = a.sending_to(f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders").link
    admit = a.peers.admit

    def stopped(connection: PeerConnection) -> Session | None:
        session = admit(connection)
        link.stop()
        return session

    a.peers.admit = stopped  # type: ignore[method-assign]
    await until(lambda: made and not made[0].is_open, "its end")
    assert TOO_LATE in str([each.result for each in link.retry.history])
    assert made[0] not in a.peers.connections
