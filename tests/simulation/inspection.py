"""Inspections of a running world: databases and memory are checked at critical moments."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable
from itertools import chain

from tests.simulation.database_examination import examine
from tests.simulation.memory_checks import (
    check_against,
    check_all_known,
    check_durable,
    check_known,
    check_memory,
    check_readers,
    check_ready,
    check_sums,
    check_waiters,
    is_up_to_date,
)
from tests.simulation.message_records import Found
from tests.simulation.oracle import Oracle
from tests.simulation.world import Host, World

# The probability of an inspection before a commit; nearly every one of the first commits has one.
COMMIT_PROBABILITY, FIRST_COMMITS = 0.05, 20
# The probability of an inspection when an application receives a result; likewise.
FIRST_RESULTS, RESULT_PROBABILITY = 2, 0.002
# An inspection before a commit compares the whole database; a large one only sometimes.
MANY_MESSAGES, MANY_PROBABILITY = 200, 0.1
LOG_PROBABILITY = 0.2  # that an inspection of the durable state reads the event log as well


class Inspector:
    """Inspects the hosts of a world at random critical moments, from `start` until `stop`."""

    def __init__(self, world: World, oracle: Oracle) -> None:
        self.world = world
        self.oracle = oracle
        self._sync_probability = world.random.choice((0.0, 0.0, 0.01, 0.05))
        self._commits = 0
        # Sources of their own: the world is the same with and without these inspections.
        self._commits_random = random.Random(f"commits {world.seed}")
        self._results = 0
        self._results_random = random.Random(f"told {world.seed}")
        self._host_names = {
            spelling: host.name
            for host in world.hosts.values()
            for spelling in (host.name, host.address)
        }
        #: host -> version of its disk, and its contents then.
        self._examined: dict[str, tuple[int, Found]] = {}

    def start(self) -> None:
        """Begin to inspect the world at power losses, syncs, results, starts, commits and stops."""
        world = self.world
        world.on_power_loss = lambda: world.scheduler.after(0.0, self._inspect_all, True)
        world.on_sync = self._on_sync
        world.on_result = self._on_result
        world.on_opened = self._on_opened
        world.on_commit = self._on_commit
        world.on_stopped = self._on_stopped

    def stop(self) -> None:
        """End the inspections at power losses, syncs and results."""
        self.world.on_power_loss = lambda: None
        self.world.on_result = lambda: None
        self.world.on_sync = lambda host: None

    def examine(
        self,
        host: Host,
        *,
        durable: bool = True,
        with_log: bool = False,
        thorough: bool = False,
        has_stopped: bool = False,
    ) -> Found:
        """Return the contents of a host's database; see `database_examination.examine`.

        `durable`: as a loss of power would leave it.
        """
        durable = durable or host.disk.is_settled  # then both are equal, and perhaps known
        version = host.disk.durable_version
        if durable and not with_log and self._examined.get(host.name, (-1,))[0] == version:
            return self._examined[host.name][1]
        try:
            found = examine(
                host.disk.image(durable=durable),
                host.name,
                with_log=with_log,
                thorough=with_log or thorough,
                has_stopped=has_stopped,
                copies=self.oracle.copies,
                hosts=self._host_names,
            )
            self.oracle.place_copies(found, durable=durable)
            if durable:
                self._examined[host.name] = version, found
            for contradiction in found.contradictions:
                self.world.fail(f"the log of {host.name}: {contradiction}")
            return found
        except sqlite3.Error as error:
            self.world.fail(f"the database of {host.name} cannot be read: {error}")
            return Found({}, {}, {}, {})

    # The moments.

    def _on_sync(self, host: Host) -> None:
        """Inspect the world right after a sync, whatever else is under way."""
        if self.world.random.random() < self._sync_probability:
            self.world.scheduler.after(0.0, self._inspect_all)

    def _on_result(self) -> None:
        """Check that the result that an application just received is durable."""
        self._results += 1
        probability = max(RESULT_PROBABILITY, FIRST_RESULTS / (FIRST_RESULTS + self._results))
        if not self.world.failures and self._results_random.random() < probability:
            self.oracle.check([self.examine(host) for host in self._hosts], at_the_end=False)

    def _on_opened(self, host: Host) -> None:
        """Check that a daemon that starts sees only what is durable.

        After a failed sync the page cache may show more than the disk has.
        """
        if not (self.world.failures or host.disk.is_off or host.disk.is_settled):
            shown = self.examine(host, durable=False)
            self._report(check_durable(host.name, shown, self.examine(host)))

    def _on_stopped(self, host: Host) -> None:
        """Check that the log reports the messages that were lost with the daemon's memory."""
        if not self.world.failures:
            self.examine(host, with_log=True, has_stopped=True)

    def _on_commit(self, host: Host, database: sqlite3.Connection) -> None:
        """Check before some commits that nothing in them is visible yet."""
        self._commits += 1
        probability = max(COMMIT_PROBABILITY, FIRST_COMMITS / (FIRST_COMMITS + self._commits))
        manager = host.manager
        if manager is None or host.disk.is_off or self._commits_random.random() > probability:
            return
        name = host.name
        with host.disk.faults.suspended():
            self._report(check_ready(name, manager, database))
            self._report((*check_readers(name, manager), *check_waiters(name, manager)))
            count = sum(queue.messages for queue in manager.queues.by_key.values())
            if count < MANY_MESSAGES or self._commits_random.random() < MANY_PROBABILITY:
                self._report(
                    (
                        *check_all_known(name, manager, database),
                        *check_known(name, manager, database),
                    )
                )

    def _inspect_all(self, thorough: bool = False) -> None:
        if not self.world.failures:
            with_log = self.world.random.random() < LOG_PROBABILITY
            found = [
                self.examine(host, with_log=with_log, thorough=thorough) for host in self._hosts
            ]
            self.oracle.check(found, at_the_end=False)
            self._check_memory()

    def _check_memory(self) -> None:
        """Check the counters and the memory of the running queue managers."""
        for name, host in self.world.hosts.items():
            manager = host.manager
            if manager is None:
                continue
            self._report(check_sums(name, manager))
            if is_up_to_date(manager) and not host.disk.is_off:
                found = self.examine(host, durable=False)
                self._report(
                    chain(
                        check_against(name, manager, found),
                        check_durable(name, found, self.examine(host)),
                    )
                )
                self._report(chain(check_waiters(name, manager), check_memory(name, manager)))

    def _report(self, differences: Iterable[str]) -> None:
        for difference in differences:
            self.world.fail(difference)

    @property
    def _hosts(self) -> list[Host]:
        return list(self.world.hosts.values())
