"""Quiescence: whether everything has arrived, and nothing is under way any more."""

from __future__ import annotations

from collections.abc import Iterator

from protocol.identifiers import guid_text
from tests.simulation.message_records import Totals
from tests.simulation.oracle import Oracle
from tests.simulation.population import Population
from tests.simulation.queue_catalogue import UNREAD
from tests.simulation.queue_operator import ReportedState
from tests.simulation.world import Host, World

QUIET_ROUNDS = 3


class Quiescence:
    """Watches the states that the operators of all hosts read until no activity is left."""

    def __init__(self, world: World, oracle: Oracle, population: Population) -> None:
        self._world = world
        self._oracle = oracle
        self._population = population
        self._quiet_rounds = 0

    def reset(self) -> None:
        """Discard the states that were read so far."""
        self._quiet_rounds = 0
        for operator in self._population.operators.values():
            operator.state = None

    def is_quiet(self) -> bool:
        """Return whether no host was active in three rounds in a row.

        A message that is gone from one host's state may have reached another host after that host's
        state was read, and a third one after that.
        """
        if any(operator.state is None for operator in self._population.operators.values()):
            return False
        if self.activity(first_only=True):
            self._quiet_rounds = 0
        else:
            self._quiet_rounds += 1
            if self._quiet_rounds == QUIET_ROUNDS:
                return True
        for operator in self._population.operators.values():
            operator.state = None
        return False

    def activity(self, *, first_only: bool = False) -> list[str]:
        """Return a sentence for each activity that is left; `first_only`: of one host at most."""
        activity: list[str] = []
        population = self._population
        for host in self._world.hosts.values():
            operator = population.operators[host.name]
            state = operator.state or operator.last_state
            if host.daemon is None or state is None:
                activity.append(f"{host.name} is down")
            elif operator.commands:
                activity.append(f"{host.name} has commands {operator.commands}")
            else:
                activity += self._undelivered(host.name, state.queues, state.outgoing)
                activity += self._awaited(host, state)
                if state.status["delayed_messages"]:
                    activity.append(f"{host.name} has {state.status['delayed_messages']} delayed")
            activity += [
                f"{writer.name} writes"
                for writer in population.writers
                if writer.host is host and writer.name in host.programs
            ]
            if activity and first_only:
                break
        sender, receiver = population.foreign_sender, population.foreign_receiver
        if sender is not None and not sender.is_done:
            activity.append(f"the foreign sender waits for {sender.unfinished}")
        if receiver is not None and receiver.unfinished:
            activity.append(f"the foreign receiver has {receiver.unfinished} packets to send")
        return activity

    def _undelivered(
        self, name: str, queues: dict[str, Totals], outgoing: dict[str, Totals]
    ) -> list[str]:
        read = {reader.queue.key for reader in self._population.readers if reader.host.name == name}
        read |= {queue.key for queue in UNREAD}  # their messages expire
        return [
            f"{queue}@{name} has {totals.messages}"
            for queue, totals in queues.items()
            if totals.messages
            and queue.removesuffix(";sorted").removesuffix(";retry") in read  # but not in journals
        ] + [
            f"{name} has {totals.messages} for {destination}"
            for destination, totals in outgoing.items()
            if totals.messages and self._can_be_reached(destination)
        ]

    def _awaited(self, host: Host, state: ReportedState) -> Iterator[str]:
        """Yield what a source still waits to learn about its messages.

        A host that has lost its disk may never report it.
        """
        manager = host.manager
        if manager is None:
            yield f"{host.name} does not listen"
            return
        has_lost_disk = self._oracle.state.has_lost_disk
        awaited = sum(queue.awaiting.messages for queue in manager.outgoing.queues)
        if awaited and not has_lost_disk:
            yield f"{host.name} waits for the end of {awaited} messages"
        elif state.status["bytes"] != manager.usage.bytes:
            yield f"{host.name} has {manager.usage.bytes} bytes, and reported another number"
        held = manager.relay_store.usage.bytes
        if held and not has_lost_disk:
            yield f"{host.name} holds {held} bytes for others"

    def _can_be_reached(self, destination: str) -> bool:
        """Return whether messages for a destination can be delivered.

        A final ack is for one queue manager.  Where its address is not known, the final ack waits
        until that queue manager connects; if it has lost its disk, it never does.
        """
        if destination.startswith("PRIVATE="):
            return False
        via = destination.partition(" via ")[2]
        managers = [host.manager for host in self._world.hosts.values()]
        return not via or via in [
            guid_text(each.services.id) for each in managers if each is not None
        ]
