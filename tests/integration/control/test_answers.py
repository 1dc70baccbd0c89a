"""Answers of the control socket: when they are written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from qmd.client import connect
from tests.integration.managers import Hosts, hosted


class Recorded:
    """A transport that notes what is written."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.written: list[bytes] = []

    def writelines(self, buffers: Sequence[bytes]) -> None:
        self.written.append(b"".join(buffers))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@hosted
async def test_an_answer_leaves_at_once_if_no_other_can_join_it(hosts: Hosts) -> None:
    host = await hosts.start("a")
    async with connect(host.socket):
        (connection,) = host.control.connections
        transport: Any = Recorded(connection._transport)
        connection._transport = transport

        connection._count_request(1)
        connection.done(1)
        assert len(transport.written) == 1

        connection._count_request(3)
        connection.done(2)
        connection.done(3)
        assert len(transport.written) == 1, "the last of three will join them"
        connection.done(4)
        assert len(transport.written) == 2
        await asyncio.sleep(0)
        assert len(transport.written) == 2

        connection._count_request(2)
        connection.done(5)
        await asyncio.sleep(0)
        assert len(transport.written) == 3, "it waits for one turn of the loop only"
