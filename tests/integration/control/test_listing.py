"""Lists of many queues: they are described in parts, between which others are served."""

from __future__ import annotations

import asyncio

from qmd.control import listing
from tests.integration.managers import Hosts, hosted
from tests.process.control_client import ControlClient

QUEUES = listing.FEW + 10


@hosted
async def test_a_client_is_served_while_many_queues_are_listed(hosts: Hosts) -> None:
    a = await hosts.start()
    names = [f"many{number}" for number in range(QUEUES)]
    await asyncio.gather(*map(a.create, names))

    def ask() -> None:
        with ControlClient(a.socket) as client:
            client.done("hello")
            listed, later = client.send("list_queues"), client.send("hello")
            first = client.read()
            assert (first[0], first[1]) == ("done", later)
            _, number, queues = client.read()
            assert number == listed
            assert {each["name"] for each in queues} == {f"private$\\{each}" for each in names}

    await asyncio.to_thread(ask)
