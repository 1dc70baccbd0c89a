"""Services: the environment that every component of a queue manager takes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from qmd.config.settings import Settings
from qmd.runtime.budget import Budget, Gate, MemoryProbe
from qmd.runtime.clock import Clock
from qmd.runtime.environment import Environment
from qmd.runtime.id_allocator import Ids
from qmd.runtime.identity_key import IdentityKey
from qmd.runtime.lifecycle import Lifecycle
from qmd.runtime.log import LimitedLog
from qmd.runtime.timers import Timers
from storage import Storage

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Memory:
    """Budgets in bytes for all data that waits in memory. docs/configuration.md, [memory]"""

    packets: Gate  # incomplete packets from peers
    requests: Gate  # incomplete requests from applications
    answers: Budget  # unwritten answers to applications
    transactions: Budget  # uncommitted transactions
    probe: MemoryProbe


@dataclass(frozen=True, slots=True)
class Services:
    """The services of one run of one queue manager."""

    id: bytes  # 16: the GUID of the queue manager, as on the wire
    name: str  # of the computer
    key: IdentityKey
    settings: Settings
    environment: Environment
    storage: Storage
    loop: asyncio.AbstractEventLoop
    clock: Clock
    timers: Timers
    ids: Ids
    memory: Memory
    lifecycle: Lifecycle
    listening: list[tuple[str, int]]  # (address, port) of each listener
    limited_log: LimitedLog

    def use_settings(self, settings: Settings) -> None:
        """Replace the settings: the daemon has read its configuration again."""
        object.__setattr__(self, "settings", settings)

    def log_limited(self, event: str, about: str, **values: object) -> None:
        """Log an event that a peer can cause at will, rate-limited."""
        self.limited_log.log("info", event, key=about, now=self.loop.time(), **values)


def create_services(
    settings: Settings, environment: Environment, storage: Storage, name: str
) -> Services:
    """Return the services of a queue manager after its storage was opened.

    Needs a running event loop.
    """
    loop = asyncio.get_running_loop()
    timers = Timers(loop)
    limits = settings.memory.of(environment.memory_bytes())
    return Services(
        id=storage.identity.queue_manager_id,
        name=name,
        key=IdentityKey(storage.identity.seed),
        settings=settings,
        environment=environment,
        storage=storage,
        loop=loop,
        clock=Clock(environment, storage, downtime_max_s=settings.delivery.downtime_max_s),
        timers=timers,
        ids=Ids(storage),
        memory=Memory(
            packets=Gate(limits.packets, loop, timers),
            requests=Gate(limits.requests, loop, timers),
            answers=Budget(limits.requests),
            transactions=Budget(limits.transactions),
            probe=MemoryProbe(loop),
        ),
        lifecycle=Lifecycle(loop),
        listening=[],
        limited_log=LimitedLog(log),
    )
