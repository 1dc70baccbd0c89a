"""Both ends of a transactional sequence in a world of faults.

`qmd.core.sequence` is the real code.  Disks, crashes, the network and time are simulated, and every
choice comes from one seed: `SEED=123 pytest tests/simulation` replays one.
"""

import os
import random
from collections import Counter, deque
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pytest

from qmd.core.sequence import IncomingSequence, OrderAckSettings, OutgoingSequence, Position

FIRST_ID = 0x65000000_00000001
IN_FLIGHT_MAX = 8


class Packet(NamedTuple):
    """A message on its way."""

    sequence_id: int
    number: int
    previous: int
    message: int  # its serial number among all messages of the world


class Sender:
    """An outgoing queue; `stored`, `row` and `unproven_from` are its disk; a crash loses the rest.

    A unit of work is a function that changes the disk and returns a callback for the time after the
    commit.
    """

    def __init__(self, seen):
        self.seen = seen
        self.row = (FIRST_ID, 0, 1)
        self.unproven_from = 0  # base + the first number after a start, until an order ack arrives
        self.stored = {}  # position -> message on disk
        self.released = set()  # messages
        self.removed = set()
        self.start()

    def start(self):
        self.waiting = deque()
        self.removing = set()  # positions with an uncommitted removal
        self.done = 0  # the last position that was transmitted in this pass
        sequence_id, base, next_number = self.row
        assert all(base < position < base + next_number for position in self.stored)
        self.sequence = OutgoingSequence(
            sequence_id,
            base,
            next_number,
            len(self.stored),
            resend_intervals_s=(1.0, 2.0, 5.0),
            unproven_from=max(0, self.unproven_from - base),
        )
        if self.sequence.is_unproven:
            self.waiting.append(partial(self.set_unproven, base + self.sequence.first_unproven))

    def set_unproven(self, position):
        self.unproven_from = position

    def append(self, message):
        before = self.sequence.sequence_id
        position = self.sequence.append() + self.sequence.base
        self.seen["new sequence"] += self.sequence.sequence_id != before
        row = (self.sequence.sequence_id, self.sequence.base, self.sequence.next_number)

        def work():
            if self.row[0] != row[0]:
                self.unproven_from = 0
            self.row = row
            self.stored[position] = message

        self.waiting.append(work)

    def remove(self, position, now):
        """Remove a message that expired or was refused."""
        if position in self.removing or position not in self.stored:
            return
        self.removing.add(position)

        def work():
            message = self.stored.pop(position, None)
            if message is None:
                return lambda: self.removing.discard(position)
            self.removed.add(message)

            def report():
                self.removing.discard(position)
                if self.sequence.remove(position - self.sequence.base):
                    self.seen["linked to what was removed"] += 1
                    self.sequence.hasten(now)

            return report

        self.waiting.append(work)

    def acknowledge(self, ack, now):
        highest = max(self.sequence.in_flight, default=0)
        self.seen["ack of an older sequence"] += 0 < ack.sequence_id < self.sequence.sequence_id
        if self.sequence.may_answer_earlier_run(*ack):
            self.seen["ack for an earlier run"] += 1
            return
        number = self.sequence.acknowledge(ack.sequence_id, ack.number, now)
        if ack.sequence_id == self.sequence.sequence_id and self.sequence.is_unproven:
            self.waiting.append(self.prove)
        if number is None:
            return
        self.seen["late ack in a new pass"] += number > highest
        last = number + self.sequence.base

        def work():
            gone = [position for position in self.stored if position <= last]
            self.released.update(self.stored.pop(position) for position in gone)
            return lambda: self.sequence.released(len(gone))

        self.waiting.append(work)

    def prove(self):
        """Store that an order ack has arrived since the start; later numbers wait for that."""
        sequence_id = self.sequence.sequence_id
        self.set_unproven(0)

        def report():
            if self.sequence.sequence_id == sequence_id:
                self.sequence.is_unproven = False

        return report

    def write(self, units):
        return [self.waiting.popleft()() for _ in range(units)]

    def commit(self, units):
        for callback in self.write(units):
            if callback:
                callback()

    def transmit(self, now):
        """Transmit the next message, unless the window is full or the message is being removed."""
        base = self.sequence.base
        first = max(self.done, base + self.sequence.acknowledged)
        position = min((each for each in self.stored if each > first), default=None)
        if position is None or position in self.removing:
            return None
        if len(self.sequence.in_flight) == IN_FLIGHT_MAX:
            return None
        number = position - base
        if not self.sequence.may_transmit(number):
            self.seen["wait for a first order ack"] += 1
            return None
        previous = self.sequence.transmit(number, now)
        self.seen["hole bridged"] += 0 < previous < number - 1
        self.seen["pass begun with 0"] += previous == 0 and number > 1
        self.done = position
        return Packet(self.sequence.sequence_id, number, previous, self.stored[position])

    def new_pass(self):
        self.sequence.restart()
        self.done = 0


class Receiver:
    """A queue; `durable` and `delivered` are its disk, `lives` are those of all its disks."""

    def __init__(self, settings):
        self.settings = settings
        self.durable = Position()
        self.delivered = []
        self.lives = [self.delivered]
        self.start()

    def start(self):
        self.accepted = deque()
        self.sequence = IncomingSequence(*self.durable, settings=self.settings)

    def lose_disk(self):
        self.durable = Position()
        self.delivered = []
        self.lives.append(self.delivered)
        self.start()

    def receive(self, packet, now):
        if self.sequence.offer(packet.sequence_id, packet.number, packet.previous, now):
            self.accepted.append(packet)

    def write(self, packets):
        for _ in range(packets):
            packet = self.accepted.popleft()
            self.delivered.append(packet.message)
            self.durable = Position(packet.sequence_id, packet.number)

    def commit(self, packets, now):
        """Commit packets; return the order ack that is sent at once, if any."""
        self.write(packets)
        return self.sequence.durable if self.sequence.mark_durable(*self.durable, now) else None


class World:
    """A world of one seed, which draws the rate of each fault, so that no fault hides another."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.seen = Counter()
        chance = self.random.random
        self.weights = {fault: self.random.choice((0, 0, 0.3, 1)) * chance() for fault in FAULTS}
        self.weights |= {action: 0.2 + chance() for action in ACTIONS}
        self.weights[World.send] *= self.random.choice((0.1, 0.3, 1))
        self.refusals = self.random.choice((0, 0, 0.05, 0.3))
        self.messages_max = self.random.randrange(1, 120)
        self.pace_s = self.random.choice((0.01, 0.1, 0.5))
        self.now = 0.0
        self.given = 0
        self.promised = set()  # messages with a completed commit
        self.refused = set()  # messages that the receiver refuses
        self.sender = Sender(self.seen)
        self.receiver = Receiver(OrderAckSettings(at_once=self.random.random() < 0.5))
        self.packets = []
        self.acks = []
        self.refusals_under_way = []  # messages

    def step(self):
        self.now += self.random.expovariate(1 / self.pace_s)
        actions = list(self.weights)
        action = self.random.choices(actions, [self.weights[each] for each in actions])[0]
        action(self)
        self.check()

    # Regular actions.

    def send(self):
        if self.given < self.messages_max:
            self.given += 1
            if self.random.random() < self.refusals:
                self.refused.add(self.given)
            self.sender.append(self.given)

    def transmit(self):
        packet = self.sender.transmit(self.now)
        if packet is not None:
            self.packets.append(packet)

    def receive(self, index=0):
        if not self.packets:
            return
        packet = self.packets.pop(index)
        if packet.message in self.refused:
            self.refusals_under_way.append(packet.message)
        else:
            self.receiver.receive(packet, self.now)

    def receive_ack(self, index=0):
        if self.acks:
            self.sender.acknowledge(self.acks.pop(index), self.now)

    def receive_refusal(self):
        if self.refusals_under_way:
            message = self.refusals_under_way.pop(0)
            for position, stored in self.sender.stored.items():
                if stored == message:
                    self.sender.remove(position, self.now)
                    break

    def commit_sender(self, units=None):
        waiting = len(self.sender.waiting)
        self.sender.commit(self.random.randint(0, waiting) if units is None else units)
        self.promised.update(self.sender.stored.values())

    def commit_receiver(self, packets=None):
        accepted = len(self.receiver.accepted)
        packets = self.random.randint(0, accepted) if packets is None else packets
        if packets:
            self.acks += filter(None, [self.receiver.commit(packets, self.now)])

    def tick(self):
        if self.receiver.sequence.handle_timer(self.now):
            self.acks.append(self.receiver.sequence.durable)
        if self.sender.sequence.handle_timer(self.now):
            self.seen["resend timer"] += 1
            self.sender.new_pass()

    def heal(self):
        """Run without faults, so that everything must arrive."""
        for _ in range(400):
            self.commit_sender(len(self.sender.waiting))
            self.transmit()
            while self.packets:
                self.receive()
            self.commit_receiver(len(self.receiver.accepted))
            while self.refusals_under_way:
                self.receive_refusal()
            while self.acks:
                self.receive_ack()
            self.check()
            if not self.sender.stored and not self.sender.waiting:
                return
            self.now += 0.2
            self.tick()
        raise AssertionError(f"{len(self.sender.stored)} messages never arrived")

    def check(self):
        delivered = self.receiver.delivered
        assert all(a < b for a, b in pairwise(delivered[-20:])), "twice, or out of order"
        everything = set().union(*self.receiver.lives)
        assert self.sender.released <= everything, "released before it was on the other disk"
        assert not everything & self.refused

    def check_end(self):
        everything = set().union(*self.receiver.lives)
        assert self.promised <= everything | self.sender.removed
        assert self.refused & self.promised <= self.sender.removed
        if self.receiver.durable.number:
            assert self.receiver.durable == self.receiver.sequence.durable
        for life in self.receiver.lives:
            assert life == sorted(set(life))


# Faults.


def reconnect(world):
    world.sender.new_pass()


def expire(world):
    if world.sender.stored:
        world.sender.remove(world.random.choice(list(world.sender.stored)), world.now)


def reorder(world):
    if world.packets:
        world.receive(world.random.randrange(len(world.packets)))


def lose(world):
    if world.packets:
        world.packets.pop(world.random.randrange(len(world.packets)))


def lose_all(world):
    world.packets.clear()


def duplicate(world):
    if world.packets:
        world.packets.append(world.random.choice(world.packets))


def reorder_acks(world):
    if world.acks:
        world.receive_ack(world.random.randrange(len(world.acks)))


def lose_ack(world):
    if world.acks:
        world.acks.pop(world.random.randrange(len(world.acks)))


def duplicate_ack(world):
    if world.acks:
        world.acks.append(world.random.choice(world.acks))


def lose_refusal(world):
    if world.refusals_under_way:
        world.refusals_under_way.pop(0)


def crash_sender(world):
    """Crash the sender; its last commit may have reached the disk without being reported."""
    world.sender.write(world.random.randint(0, len(world.sender.waiting)))
    world.sender.start()


def crash_receiver(world):
    world.receiver.write(world.random.randint(0, len(world.receiver.accepted)))
    world.receiver.start()


def lose_the_receivers_state(world):
    world.seen["lost state while something was outstanding"] += bool(world.sender.stored)
    world.receiver.lose_disk()


ACTIONS = (
    World.send,
    World.transmit,
    World.receive,
    World.receive_ack,
    World.receive_refusal,
    World.commit_sender,
    World.commit_receiver,
    World.tick,
)
FAULTS = (
    reconnect,
    expire,
    reorder,
    lose,
    lose_all,
    duplicate,
    reorder_acks,
    lose_ack,
    duplicate_ack,
    lose_refusal,
    crash_sender,
    crash_receiver,
    lose_the_receivers_state,
)

SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else range(300)


def run_world(seed):
    world = World(seed)
    for _ in range(world.random.randrange(2000)):
        world.step()
    world.heal()
    world.check_end()
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_every_message_arrives_once_and_in_order(seed):
    """Safety during faults, liveness after them."""
    run_world(seed)


def test_every_kind_of_event_happens():
    """Check that enough seeds have each kind of event."""
    seen = Counter()
    for seed in range(100):
        seen += run_world(seed).seen

    for event in (
        "new sequence",
        "linked to what was removed",
        "ack of an older sequence",
        "late ack in a new pass",
        "hole bridged",
        "pass begun with 0",
        "resend timer",
        "lost state while something was outstanding",
        "wait for a first order ack",
    ):
        assert seen[event] >= 20, f"{event}: {seen[event]} times"
    assert seen["ack for an earlier run"] >= 3
