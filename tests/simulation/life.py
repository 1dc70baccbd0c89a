"""The life of one seed's world: it is drawn, lives through its mischief, heals, and is judged.

live(seed) ─► a world is drawn ─► mischief, with a look at what is lost ─► everything heals
  ─► whatever was promised is where it belongs, and the books are right
  ─► the power goes everywhere ─► the same again
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol.identifiers import guid_text
from tests.simulation.applications import Facts, Listener, Mover, Operator, Reader, Writer
from tests.simulation.books import (
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
from tests.simulation.disk import PowerLoss
from tests.simulation.draw import UNREAD, DrawnWorld
from tests.simulation.fault_injector import Mischief
from tests.simulation.foreign_receiver import StrangeQueue
from tests.simulation.foreign_sender import Stranger
from tests.simulation.isolation import isolated, one_source, turned
from tests.simulation.loop import Stuck
from tests.simulation.oracle import Found, Oracle, Totals, compare, examine
from tests.simulation.world import Host

HEALING_S_MAX = 900.0
QUIET_ROUNDS = 3
# That a commit is looked at before it begins: of the first ones nearly each.
COMMIT_PROBABILITY, FIRST_COMMITS = 0.05, 20
# That it is looked at what is durable when an application was just told something: likewise.
FIRST_TOLD, TOLD_PROBABILITY = 2, 0.002
# All that its database has is compared then; where it has much, sometimes.
MANY_MESSAGES, MANY_PROBABILITY = 200, 0.1
LOG_PROBABILITY = 0.2  # that a look at what is durable reads the log of events as well


@dataclass(slots=True)
class Life:
    """How it went.  `failures` is empty when every promise was kept."""

    seed: int
    failures: list[str]
    messages: int = 0
    received: int = 0  # by applications
    taken_over: int = 0  # by queue managers from others, for good; by the log of each
    pieces: int = 0  # that the network carried
    turns: int = 0
    seconds: float = 0.0  # of virtual time
    cpu_s: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)

    @property
    def deliveries(self) -> int:
        """Messages that somebody was given: an application, or another queue manager."""
        return self.received + self.taken_over


def live(seed: int, *, trace: bool = False, is_last: bool = False) -> Life:
    """Live through one seed; `is_last`: the process ends with it."""
    lines: list[str] | None = [] if trace else None
    seen: Counter[str] = Counter()
    with isolated(lines, seen, is_last=is_last):
        life = _live(seed, lines, is_last=is_last)
    life.seen.update(seen)
    return life


def _live(seed: int, trace: list[str] | None, *, is_last: bool) -> Life:
    draw = DrawnWorld(seed, trace)
    with one_source(draw.world.random), turned(draw.knobs):
        story = Story(draw)
        try:
            story.tell()
        except Stuck as stuck:
            story.world.fail(f"no end in sight: {stuck}")
        life = story.over()
        if not is_last:
            story.world.end()
        return life


class Story:
    """One world and those in it."""

    def __init__(self, draw: DrawnWorld) -> None:
        self._draw = draw
        self.world = world = draw.world
        self.oracle = Oracle(
            world.fail,
            # A stranger never dies.
            life_of=lambda name: world.hosts[name].daemon_life if name in world.hosts else 0,
            was_full=lambda name: name in world.hosts and world.hosts[name].disk.was_full,
        )
        self._roads = roads = draw.roads
        if roads is not None:
            self.oracle.relays = roads.relays
            self.oracle.is_order_of_plain_kept = not roads.is_straight
        self.operators: dict[str, Operator] = {}
        self.writers: list[Writer] = []
        self.readers: list[Reader | Mover | Listener] = []
        self.stranger: Stranger | None = None
        self.strange_queue: StrangeQueue | None = None
        self._queue_names = [queue.name for queue in draw.queues]
        draw.populate(self)
        self.mischief = Mischief(
            world,
            may_wipe=world.random.random() < 0.5,
            patience=draw.patience,
            give_order=self._give_order,
        )
        self._look_probability = world.random.choice((0.0, 0.0, 0.01, 0.05))
        self._commits = 0
        self._of_commits = random.Random(f"commits {world.seed}")  # all else is as without
        self._tellings = 0
        self._of_tellings = random.Random(f"told {world.seed}")
        self.mischief.wipe = self.lose_disk
        self._mischief_s = draw.mischief_s
        self._host_names = {
            spelling: host.name
            for host in world.hosts.values()
            for spelling in (host.name, host.address)
        }
        self._quiet_rounds = 0
        self._taken_over = 0
        self._examined: dict[str, tuple[int, Found]] = {}  # and at which version of the disk
        self._paused: dict[str, set[str]] = {name: set() for name in world.hosts}

    # The phases.

    def tell(self) -> None:
        world = self.world
        for host in world.hosts.values():
            host.start()
        for stranger in (self.stranger, self.strange_queue):
            if stranger is not None:
                stranger.start()
        self.mischief.start()
        for when, name, queue in self._draw.deletions():
            world.scheduler.at(when, self._delete, name, queue)
        if (forgets := self._draw.amnesia()) is not None:
            world.scheduler.at(forgets[0], self._forget, world.hosts[forgets[1]])
        for one, other in self._roads.straight if self._roads is not None else ():
            source, target = world.hosts[one].address, world.hosts[other].address
            world.network.build_wall(source, target, self._mischief_s)
        # Whenever somebody has lost its power is a good time to look what is left.
        world.on_power_loss = lambda: world.scheduler.after(0.0, self._look, True)
        world.on_sync = self._synced
        world.on_told = self._was_told
        world.on_opened = self._has_opened
        world.on_commit = self._begins_to_commit
        world.on_stopped = self._has_stopped
        world.run(self._mischief_s)
        world.on_power_loss = lambda: None
        world.on_told = lambda: None
        world.on_sync = lambda host: None
        self.heal()
        self.judge()
        if not world.failures and world.random.random() < 0.3:
            for host in world.hosts.values():
                host.lose_power(PowerLoss.NONE, back_after_s=1.0)
            self._wait_for_rest()
            self.judge()

    def _synced(self, host: Host) -> None:
        """And right after something has become durable, whatever else is under way."""
        if self.world.random.random() < self._look_probability:
            self.world.scheduler.after(0.0, self._look)

    def _was_told(self) -> None:
        """What an application was told is durable already: the power might go this very moment."""
        self._tellings += 1
        probability = max(TOLD_PROBABILITY, FIRST_TOLD / (FIRST_TOLD + self._tellings))
        if not self.world.failures and self._of_tellings.random() < probability:
            self.oracle.check([self.examine_host(host) for host in self._hosts], at_the_end=False)

    def _has_opened(self, host: Host) -> None:
        """What a start finds may be in the page cache only, after a sync that failed."""
        if not (self.world.failures or host.disk.is_off or host.disk.is_settled):
            shown = self.examine_host(host, durable=False)
            for difference in check_durable(host.name, shown, self.examine_host(host)):
                self.world.fail(difference)

    def _has_stopped(self, host: Host) -> None:
        """What it took with it, it has told."""
        if not self.world.failures:
            self.examine_host(host, with_log=True, has_stopped=True)

    def _begins_to_commit(self, host: Host, database: sqlite3.Connection) -> None:
        """And now and then when something is about to be written: nobody may know of it yet."""
        self._commits += 1
        probability = max(COMMIT_PROBABILITY, FIRST_COMMITS / (FIRST_COMMITS + self._commits))
        manager = host.manager
        if manager is None or host.disk.is_off or self._of_commits.random() > probability:
            return
        with host.disk.unnoticed():
            for difference in check_ready(host.name, manager, database):
                self.world.fail(difference)
            for difference in (
                *check_readers(host.name, manager),
                *check_waiters(host.name, manager),
            ):
                self.world.fail(difference)
            count = sum(queue.messages for queue in manager.queues.by_key.values())
            if count < MANY_MESSAGES or self._of_commits.random() < MANY_PROBABILITY:
                for difference in (
                    *check_all_known(host.name, manager, database),
                    *check_known(host.name, manager, database),
                ):
                    self.world.fail(difference)

    def _look(self, thorough: bool = False) -> None:
        if not self.world.failures:
            with_log = self.world.random.random() < LOG_PROBABILITY
            found = [
                self.examine_host(host, with_log=with_log, thorough=thorough)
                for host in self._hosts
            ]
            self.oracle.check(found, at_the_end=False)
            self._audit()

    def _audit(self) -> None:
        """What running queue managers have counted."""
        for name, host in self.world.hosts.items():
            manager = host.manager
            if manager is None:
                continue
            for difference in check_sums(name, manager):
                self.world.fail(difference)
            if is_up_to_date(manager) and not host.disk.is_off:
                found = self.examine_host(host, durable=False)
                for difference in (
                    *check_against(name, manager, found),
                    *check_durable(name, found, self.examine_host(host)),
                ):
                    self.world.fail(difference)
                for difference in (*check_waiters(name, manager), *check_memory(name, manager)):
                    self.world.fail(difference)

    def heal(self) -> None:
        """From here on nothing goes wrong, and so everything must arrive."""
        world = self.world
        if world.failures:
            return
        world.note("*** healing")
        self.mischief.stop()
        for stranger in (self.stranger, self.strange_queue):
            if stranger is not None:
                stranger.stop()
        for writer in self.writers:
            writer.stop()
        for reader in self.readers:
            if isinstance(reader, Reader):
                reader.naps = None
        for name, operator in self.operators.items():
            operator.is_watching = True
            # Whatever else would wake a queue is not to be relied on.
            operator.orders = [("resume", there) for there in sorted(self._paused[name])]
        self._wait_for_rest()

    def _wait_for_rest(self) -> None:
        self._quiet_rounds = 0
        for operator in self.operators.values():
            operator.facts = None
        rests = self.world.run_until(self._is_quiet, seconds_max=HEALING_S_MAX)
        if not rests and not self.world.failures:
            self.world.fail(f"no rest after {HEALING_S_MAX:g} s: {self._unrest()}")

    def judge(self) -> None:
        """Everything is where it belongs, and what is told about it is true."""
        world = self.world
        if world.failures:
            return
        found = {name: self.examine_host(host, with_log=True) for name, host in world.hosts.items()}
        for name, operator in self.operators.items():
            facts = operator.facts
            assert facts is not None
            for difference in self._compare(name, facts.queues, facts.outgoing, found[name]):
                world.fail(difference)
            if any(queue.endswith(" for others") for queue in facts.outgoing):
                world.happened("messages passed on", name)
            told = facts.status["bytes"]
            kept = sum(totals.bytes for totals in found[name].awaiting.values())
            if facts.awaiting_bytes != kept:
                world.fail(f"{name} says that {facts.awaiting_bytes} bytes wait, and {kept} do")
            total = sum(t.bytes for t in (*facts.queues.values(), *facts.outgoing.values())) + kept
            if told != total:
                world.fail(f"{name} says that it has {told} bytes, and its queues have {total}")
        self.oracle.check(list(found.values()), at_the_end=True)
        told = Counter[str]()
        for each in found.values():
            told.update(each.told)
        self._taken_over = told["accepted"] + told["relayed on its way"]
        world.seen.update({f"told: {kind}": count for kind, count in told.items()})

    def over(self) -> Life:
        world = self.world
        world.seen["a session counted beyond its 16 bits"] += self._draw.has_wrapped()
        life = Life(
            world.seed,
            list(world.failures),
            messages=len(self.oracle.messages),
            received=sum(len(message.received) for message in self.oracle.messages.values()),
            taken_over=self._taken_over,
            pieces=world.network.delivered_count,
            turns=world.scheduler.steps,
            seconds=world.now,
            seen=+world.seen,  # what did not happen is left out
        )
        if world.trace is not None:
            digests = {name: host.disk.digest for name, host in world.hosts.items()}
            world.note("disks", digests)
            life.trace = world.trace
        return life

    # What mischief needs to know of us.

    def lose_disk(self, host: Host) -> None:
        """The host's disk is replaced by an empty one; nobody reaches it before it has queues."""
        if not host.is_on:
            return
        self.world.happened("disk lost", host.name)
        if self._roads is not None:
            relays = self._roads.relays
            self.world.seen["disk lost on a way over others"] += 1
            self.world.seen["disk lost on a way over two others"] += len(relays) > 1
            self.world.seen["disk of a relay lost"] += host.name in relays
        self.oracle.lost_disk(host.name, self.examine_host(host, durable=False))
        host.lose_power(PowerLoss.NONE, back_after_s=None)
        host.disk.wipe()
        host.interface.is_fenced = True
        self.world.scheduler.after(1.0, host.return_power)

    def _give_order(self, host: Host) -> None:
        source = self.world.random
        orders = self.operators[host.name].orders
        destinations = self._destinations_from(host.name)
        verb = source.choice(("pause", "resume", "resume", "kick", "peek", "purge", "delete"))
        scratch = source.choice(("scratch", "scratch_orders"))
        if verb == "peek":
            orders.append((verb, source.choice(self._queue_names)))
        elif verb == "purge":
            orders.append((verb, scratch))
        elif verb == "delete":
            orders += [(verb, scratch), ("create", scratch)]
        elif destinations:
            there = source.choice(destinations)
            orders.append((verb, there))
            if verb == "pause":
                self._paused[host.name].add(there)

    def _delete(self, name: str, queue: str) -> None:
        self.operators[name].orders += [("delete", queue), ("create", queue)]

    def _forget(self, host: Host) -> None:
        self.mischief.may_wipe = True
        if not self.mischief.is_over:
            self.mischief.lose_disk(host)

    def _destinations_from(self, name: str) -> list[str]:
        return sorted(
            {
                element.format_name
                for writer in self.writers
                if writer.host.name == name
                for destination in writer.destinations
                for element in destination.elements
                if element.host != name
            }
        )

    # How things stand.

    @property
    def _hosts(self) -> list[Host]:
        return list(self.world.hosts.values())

    def examine_host(
        self,
        host: Host,
        *,
        durable: bool = True,
        with_log: bool = False,
        thorough: bool = False,
        has_stopped: bool = False,
    ) -> Found:
        durable = durable or host.disk.is_settled  # the same, and looked at already, perhaps
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

    def _is_quiet(self) -> bool:
        """Thrice in a row: what one host told may have been sent to another that told before,
        and from there to a third."""
        if any(operator.facts is None for operator in self.operators.values()):
            return False
        if self._unrest(first_only=True):
            self._quiet_rounds = 0
        else:
            self._quiet_rounds += 1
            if self._quiet_rounds == QUIET_ROUNDS:
                return True
        for operator in self.operators.values():
            operator.facts = None
        return False

    def _unrest(self, *, first_only: bool = False) -> list[str]:
        """What still goes on."""
        unrest: list[str] = []
        for host in self.world.hosts.values():
            operator = self.operators[host.name]
            facts = operator.facts or operator.last_facts
            if host.daemon is None or facts is None:
                unrest.append(f"{host.name} is down")
            elif operator.orders:
                unrest.append(f"{host.name} has orders {operator.orders}")
            else:
                unrest += self._rest_of(host.name, facts.queues, facts.outgoing)
                unrest += self._still_awaited(host, facts)
            unrest += [
                f"{writer.name} writes"
                for writer in self.writers
                if writer.host is host and writer.name in host.programs
            ]
            if unrest and first_only:
                break
        if self.stranger is not None and not self.stranger.is_done:
            unrest.append(f"a stranger waits for {self.stranger.unfinished}")
        if self.strange_queue is not None and self.strange_queue.unfinished:
            unrest.append(f"a stranger has {self.strange_queue.unfinished} things to say")
        return unrest

    def _rest_of(
        self, name: str, queues: dict[str, Totals], outgoing: dict[str, Totals]
    ) -> list[str]:
        read = {reader.queue.key for reader in self.readers if reader.host.name == name}
        read |= {queue.key for queue in UNREAD}  # what comes there has a time to live
        return [
            f"{queue}@{name} has {totals.messages}"
            for queue, totals in queues.items()
            if totals.messages and queue.removesuffix(";sorted") in read  # but not in journals
        ] + [
            f"{name} has {totals.messages} for {destination}"
            for destination, totals in outgoing.items()
            if totals.messages and self._can_be_reached(destination)
        ]

    def _still_awaited(self, host: Host, facts: Facts) -> Iterator[str]:
        """Of what has arrived somewhere its source hears what became of it; not from a host that
        has lost its disk."""
        manager = host.manager
        if manager is None:
            yield f"{host.name} does not listen"
            return
        awaited = sum(queue.awaiting.messages for queue in manager.outgoing.queues)
        if awaited and not self.oracle.disk_lives.total():
            yield f"{host.name} waits to hear of {awaited} messages"
        elif facts.status["bytes"] != manager.usage.bytes:
            yield f"{host.name} has {manager.usage.bytes} bytes, and told of others"
        held = manager.relay_store.usage.bytes
        if held and not self.oracle.disk_lives.total():
            yield f"{host.name} holds {held} bytes for others"

    def _can_be_reached(self, destination: str) -> bool:
        """A final ack is for one queue manager: it waits until that comes by itself, where its
        address is not known, and for ever for one that has lost its disk."""
        if destination.startswith("PRIVATE="):
            return False
        via = destination.partition(" via ")[2]
        managers = [host.manager for host in self.world.hosts.values()]
        return not via or via in [
            guid_text(each.services.id) for each in managers if each is not None
        ]

    def _compare(
        self,
        name: str,
        queues: dict[str, Totals],
        outgoing: dict[str, Totals],
        found: Found,
    ) -> Iterator[str]:
        """Express messages are nowhere on disk, so that their queues have to be empty."""
        yield from compare(name, queues, found.queues)
        yield from compare(name, outgoing, found.outgoing)
