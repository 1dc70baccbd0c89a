"""A reader of a pipeline, called as its client calls it."""

from __future__ import annotations

from typing import Any

from qmd.client.pipeline import each_message
from qmd.control_protocol.bulk import EVERYTHING
from tests.integration.managers import Host, bodies

Value = dict[str, Any]


class Pipeline:
    """One run of a pipeline: a reader of one queue."""

    def __init__(self, host: Host, opened: Value) -> None:
        self.host = host
        self.name: str = opened["reader"]
        self.fence: int = opened["fence"]
        [queue] = opened["queues"]
        self.queue: str = queue["queue"]
        self.position: int = queue["position"]
        self.reserved: int = queue["reserved"]

    async def reserve(self, start: int, limit: int = 1000, bytes_max: int = 0) -> Value:
        return await self.host.reservations.reserve(
            self.name, self.fence, self.queue, start, limit, bytes_max
        )

    async def read(self, after: int, until: int = 0) -> list[bytes]:
        found: list[bytes] = []
        following: int | None = after
        while following is not None:
            rows = await self.host.reservations.read(
                self.name,
                self.queue,
                following,
                until,
                limit=7,
                bytes_max=1 << 20,
                wanted=EVERYTHING,
                bodies=True,
            )
            found += bodies([message for _, message in each_message(rows)])
            following = rows.next
        return found

    async def consume(self, end: int) -> Value:
        return await self.host.reservations.consume(self.name, self.fence, {self.queue: end})


async def opened(host: Host, name: str = "archive", queue: str = "orders", **how: Any) -> Pipeline:
    how = {"shared": False, "start": "oldest", **how}
    return Pipeline(host, await host.reservations.open(name, [queue], **how))


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]
