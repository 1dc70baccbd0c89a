"""A scenario: a world without random faults, for tests that define every event.

    with Scenario("anna", "bert") as scenario:
        scenario.act("anna", lambda qm: qm.send("DIRECT=OS:bert\\private$\\orders", b"..."))
        scenario.wait(5)
        assert scenario.bodies("bert", "orders") == [b"..."]

Time is virtual, so that five seconds cost nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from qmd.client import QueueManager, connect
from tests.simulation.applications import Queue
from tests.simulation.isolation import isolated, one_source
from tests.simulation.queue_operator import Operator
from tests.simulation.world import Host, World

T = TypeVar("T")

ACT_S_MAX = 60.0


class Scenario:
    """Hosts with queues; their applications run one after the other."""

    def __init__(
        self,
        *names: str,
        queues: tuple[Queue, ...] = (Queue("orders", True), Queue("news", False)),
        configuration: str = "",
        configurations: Mapping[str, str] | None = None,
    ) -> None:
        """`configurations` has those of hosts that differ from `configuration`, by their names."""
        self._names = names
        self._queues = queues
        self._configuration = configuration
        self._configurations = configurations or {}
        self._acts = 0
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> Scenario:
        self._resources.enter_context(isolated(None))
        self.world = World(0, delay_s=(0.001, 0.001), fragmentation=0.0)
        self._resources.enter_context(one_source(self.world.random))
        for name in self._names:
            configuration = self._configurations.get(name, self._configuration)
            host = self.world.add_host(name, configuration, stall_probability=0.0)
            host.interface.is_fenced = True
            host.programs["operator"] = Operator(host, list(self._queues)).run
            host.start()
        self.wait(1.0)
        assert not any(host.interface.is_fenced for host in self.world.hosts.values())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        failures = self.world.failures
        self.world.end()
        del self.world
        self._resources.close()
        assert error is not None or not failures, failures

    def host(self, name: str) -> Host:
        """Return a host."""
        return self.world.hosts[name]

    def wait(self, seconds: float) -> None:
        """Run the world for some virtual seconds."""
        self.world.run(self.world.now + seconds)

    def act(self, name: str, act: Callable[[QueueManager], Awaitable[T]]) -> T:
        """Run `act` in an application on a host, and return its result."""
        host = self.host(name)
        results: list[T] = []

        async def run() -> None:
            async with connect(host.control_socket) as client:
                results.append(await act(client))

        self._acts += 1
        host.run_application(f"act-{self._acts}", run)
        self.world.run_until(lambda: bool(results), seconds_max=ACT_S_MAX)
        assert results, f"no result in {ACT_S_MAX:g} s: {self.world.failures}"
        return results[0]

    def bodies(self, name: str, queue: str) -> list[bytes]:
        """Return the bodies of the messages in a queue, without receiving them."""
        found = self.act(name, lambda client: client.peek(queue, limit=1000))
        return [message.body for message in found]

    def outgoing(self, name: str) -> dict[str, Any]:
        """Return the number of waiting messages of each destination."""
        queues = self.act(name, lambda client: client.list_outgoing())
        return {queue["destination"]: queue["messages"] for queue in queues}
