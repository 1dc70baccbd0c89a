"""Outgoing messages in the overview for operators: the figures of exactly-once delivery.

[MC-MQAC] 3.10.4.1.2, docs/cli.md "What is on its way".
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
import socket
from collections.abc import Iterator

from qmd.control import peer_status
from qmd.control_protocol.messages import TRANSACTIONAL
from tests.integration.managers import Hosts, hosted, until
from tests.integration.remote import guid, listening
from tests.patience import END_S


@hosted
async def test_the_figures_follow_the_acknowledgments(hosts: Hosts) -> None:
    a = await hosts.start(delivery={"resend_s": (60.0, 120.0)})
    async with listening(guid(7)) as listener:
        name = listener.name("q")
        await a.send(name, b"1", b"2", b"3", delivery=TRANSACTIONAL)
        remote = await listener.session()
        await until(lambda: len(remote.messages) == 3, "the messages")

        shown = (await peer_status.outgoing_details(a.components, a.sending_to(name)))["sequence"]
        assert (shown["first_unacknowledged"], shown["last_unacknowledged"]) == (1, 3)
        assert (shown["unacknowledged"], shown["sent_unacknowledged"]) == (3, 3)
        assert (shown["last_ack"], shown["last_ack_count"]) == (None, 0)
        assert shown["next_number"] == 4
        assert shown["resend_interval_s"] == 60.0
        assert 0 < shown["resend_in_s"] <= 60

        remote.acknowledge()
        for _ in range(2):
            remote.order_ack(remote.messages[1])
        await until(lambda: a.sending_to(name).sequence.ack_count == 2, "the order acks")

        shown = (await peer_status.outgoing_details(a.components, a.sending_to(name)))["sequence"]
        assert (shown["first_unacknowledged"], shown["last_unacknowledged"]) == (3, 3)
        assert (shown["unacknowledged"], shown["sent_unacknowledged"]) == (1, 1)
        assert (shown["last_ack"], shown["last_ack_count"]) == (2, 2)
        at = datetime.datetime.fromisoformat(shown["last_ack_time"])
        assert abs((datetime.datetime.now(datetime.UTC) - at).total_seconds()) < END_S

        remote.order_ack(remote.messages[2])
        await until(lambda: not a.sending_to(name).messages, "the last order ack")

        shown = (await peer_status.outgoing_details(a.components, a.sending_to(name)))["sequence"]
        assert (shown["first_unacknowledged"], shown["unacknowledged"]) == (None, 0)
        assert shown["resend_time"] is None
        (listed,) = peer_status.sequences(a.components)
        assert listed["explanation"] == "None of 3 messages is unacknowledged."


@hosted
async def test_the_history_of_a_connection_names_its_addresses(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(guid(7)) as listener:
        name = listener.name("q")
        await a.send(name, b"1", delivery=TRANSACTIONAL)
        remote = await listener.session()
        await until(lambda: remote.messages, "the message")
        port = listener.port
    await until(lambda: a.sending_to(name).link.retry.failures >= 3, "failed attempts")

    shown = (await peer_status.outgoing_details(a.components, a.sending_to(name)))[
        "connection_history"
    ]

    assert [each["status"] for each in reversed(shown)][:3] == [
        "InProcess",
        "EstablishPacketReceived",
        "Established",
    ]
    assert shown[-3]["result"] == "connected"
    assert {each["address"] for each in shown} == {f"127.0.0.1:{port}"}
    assert any(each["times"] > 1 and each["first_time"] < each["time"] for each in shown)


@hosted
async def test_a_program_that_never_answers_is_named(hosts: Hosts) -> None:
    """A stopped daemon, or another program: the kernel accepts, and no answer comes."""
    a = await hosts.start()
    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        await a.send(rf"DIRECT=TCP:127.0.0.1:{port}\private$\q", b"1", delivery=TRANSACTIONAL)
        await until(lambda: accepted, "the connection")
        queue = next(iter(a.components.outgoing.queues))
        await until(lambda: queue.link.attempt is not None, "the attempt")

        shown = peer_status.outgoing_queue(a.components, queue)

        assert re.search(
            rf" A connection to 127\.0\.0\.1:{port} was made \d+ s ago; the program there has not"
            r" answered the handshake yet\.$",
            shown["explanation"],
        )
        assert "Last attempt" not in shown["explanation"]
    finally:
        for each in accepted:
            each.close()
        server.close()


@hosted
async def test_an_attempt_under_way_is_shown(hosts: Hosts) -> None:
    a = await hosts.start()
    with dropping_address() as (host, port):
        await a.send(rf"DIRECT=TCP:{host}:{port}\private$\q", b"1", delivery=TRANSACTIONAL)
        queue = next(iter(a.components.outgoing.queues))
        await until(lambda: queue.link.retry.step is not None, "the attempt")

        shown = peer_status.outgoing_queue(a.components, queue)

        assert re.search(r"An attempt to connect began \d+ s ago\.$", shown["explanation"])


@contextlib.contextmanager
def dropping_address() -> Iterator[tuple[str, int]]:
    """Yield an address whose kernel drops connections: its backlog is full."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            each = stack.enter_context(socket.socket())
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                each.connect(full.getsockname())
        yield full.getsockname()
