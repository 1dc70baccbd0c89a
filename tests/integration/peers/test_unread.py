"""A peer that sends and does not read: its acknowledgments do not fill the memory."""

from __future__ import annotations

from typing import Any

from qmd.peers.connection import UNREAD_BYTES_MAX
from tests.integration.managers import Hosts, hosted, until

SOON = {"retry_first_s": 0.05, "retry_max_s": 0.1}


class FullTransport:
    """The transport of a connection whose other end takes nothing: all is in its buffer."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.is_aborted = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def get_write_buffer_size(self) -> int:
        return 2 * UNREAD_BYTES_MAX

    def abort(self) -> None:
        self.is_aborted = True
        self._transport.abort()


@hosted
async def test_a_peer_that_reads_no_acknowledgments_is_ended(hosts: Hosts) -> None:
    a, b = await hosts.start("a", delivery=SOON), await hosts.start("b")
    await b.create("orders")
    name = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    await a.send(name, b"first")
    await until(lambda: not a.sending_to(name).messages, "the acknowledgment")
    (connection,) = b.peers.connections
    connection._transport = full = FullTransport(connection._transport)

    await a.send(name, b"second")
    await until(lambda: full.is_aborted, "the end of the connection")
    await until(lambda: not a.sending_to(name).messages, "another session")

    assert await b.receive("orders") == [b"first", b"second"]


@hosted
async def test_the_event_of_a_transmission_follows_the_write(hosts: Hosts) -> None:
    a, b = await hosts.start("a", delivery=SOON), await hosts.start("b")
    await b.create("orders")
    name = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    await a.send(name, b"first")
    await until(lambda: not a.sending_to(name).messages, "the acknowledgment")
    (connection,) = a.peers.connections
    sent, noted = connection.bytes_sent, list[int]()
    recorded = a.recorder.transmitted

    def record(*values: Any) -> None:
        noted.append(connection.bytes_sent)
        recorded(*values)

    a.recorder.transmitted = record  # type: ignore[method-assign]
    await a.send(name, b"second")
    await until(lambda: noted, "the event")

    assert noted[0] > sent, "the packet was with the socket"
