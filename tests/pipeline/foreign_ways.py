"""Streams in which everything happens by chance, one thing after another: fleets of a third hand.

`foreign_fleet.py` tells stories; here neighbours are struck in any mixture, over midnight, at the
ends of sequences and of streams, with much time between them or with next to none.  Whoever strikes
writes down what must be found.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.pipeline.foreign_fleet import DAY, HOUR, MIDNIGHT, MINUTE, Fleet, Host, Message, Stream


class Way:
    """From one host to another; each method is what becomes of its next message, or messages."""

    def __init__(self, f: Fleet, source: Host, to: Host, queue: str, begin: float, pace: float):
        self.f, self.chance, self.source, self.to, self.queue = f, f.chance, source, to, queue
        self.at, self.pace = begin, pace
        self.stream = Stream(source)

    def message(self) -> Message:
        self.at += self.pace * (0.2 + self.chance.random())
        return Message(self.source, self.to, self.queue, self.stream)

    def sent(self) -> Message:
        self.f.sent(m := self.message(), self.at)
        return m

    # What is well, or happens every day.

    def well(self) -> None:
        self.f.life(self.message(), self.at, received=self.chance.random() < 0.8)

    def silence(self) -> None:
        self.at += self.chance.choice([2, 5]) * HOUR

    def sequence_ends(self) -> None:
        self.stream.sequence += self.chance.choice([1, 1, 1, 5])
        self.stream.number = 0
        self.well()

    def sender_starts_anew(self) -> None:
        self.stream = Stream(self.source)
        self.well()

    def expires(self) -> None:
        kind = self.chance.choice(["expired", "purged"])
        self.f.died(self.sent(), self.at + 10, kind, "nack_reach_queue_timeout")
        self.at += 1000

    def is_refused(self) -> None:
        m, why = self.sent(), "nack_access_denied"
        self.to.tell(self.at + 9, "refused", m, queue=m.queue, position=m.position, why=why)
        if self.chance.random() < 0.5:
            self.f.acked(m, self.at + 20)
        self.f.died(m, self.at + 25, "final_ack_received", why)
        self.at += 1000

    def expires_there(self) -> None:
        why = "nack_receive_timeout"
        came = self.f.life(m := self.message(), self.at, received=False)
        self.f.left(came, self.at + 5000, self.chance.choice(["expired", "purged"]), why=why)
        if self.chance.random() < 0.6:
            self.f.died(m, self.at + 5020, "final_ack_received", why)

    def is_sent_again(self) -> None:
        m = self.sent()
        self.f.handed(m, self.at + 20, self.to, "retransmitted")
        self.f.left(self.f.accepted(m, self.at + 30), self.at + 90)
        self.to.tell(
            self.at + 40, "duplicate", m, queue=m.queue, position=m.position, peer=self.source.guid
        )
        self.f.acked(m, self.at + 50)
        self.at += 100

    def is_acknowledged_late(self) -> None:
        m = self.sent()
        self.f.accepted(m, self.at + 9)
        if self.chance.random() < 0.5:
            self.f.acked(m, self.at + 3 * HOUR)

    # What is wrong.

    def is_lost(self) -> None:
        for _ in range(self.chance.choice([1, 1, 3])):
            self.f.wrong("lost", self.sent())
        self.well()

    def is_passed_over_by_another_stream(self) -> None:
        self.f.wrong("lost", self.sent())
        self.sender_starts_anew()

    def is_acknowledged_for_nothing(self) -> None:
        self.f.acked(m := self.sent(), self.at + 20)
        self.f.wrong("acked_not_stored", m)

    def is_lost_in_front_of_a_gap(self) -> None:
        self.is_lost()
        self.is_left_out()
        self.is_acknowledged_for_nothing()

    def comes_again(self) -> None:
        self.f.life(m := self.message(), self.at)
        later = self.chance.choice([1, 50, 30 * MINUTE, 5 * HOUR])
        for n in range(self.chance.choice([1, 1, 2])):
            again = self.f.accepted(m, self.at + later + n * 7 * MINUTE)
            if self.chance.random() < 0.5:
                self.f.left(again, again["at"] + 99)
        self.f.wrong("duplicated", m)

    def is_overtaken(self) -> None:
        late = self.sent()
        if self.chance.random() < 0.4:
            self.sequence_ends()
        for _ in range(self.chance.randint(1, 4)):
            self.well()
        self.f.left(self.f.accepted(late, self.at + 40), self.at + 300)
        self.f.acked(late, self.at + 50)
        self.f.wrong("reordered", late)
        self.at += 1000

    def is_left_out(self) -> None:
        if self.chance.random() < 0.4:
            self.stream.sequence += 1
            self.stream.number = 0
        self.f.findings["gap", "", self.stream.sequence_id, self.stream.number + 1] += 1
        self.stream.number += self.chance.choice([1, 1, 7])
        self.well()

    def is_stored_and_dead(self) -> None:
        m = self.sent()
        self.f.died(m, self.at + 30, "expired", "nack_reach_queue_timeout")
        self.f.accepted(m, self.at + self.chance.choice([10, 5000]))
        self.f.wrong("delivered_and_dead", m)
        self.at += 6000

    def is_received_and_dead(self) -> None:
        self.f.life(m := self.message(), self.at)
        self.f.died(m, self.at + HOUR, "final_ack_received", "nack_receive_timeout")
        self.f.wrong("delivered_and_dead", m)

    def leaves_twice(self) -> None:
        came = self.f.life(m := self.message(), self.at)
        later, kind = self.chance.choice([200, 9 * HOUR]), ["received", "expired", "purged"]
        self.f.left(came, self.at + later, self.chance.choice(kind))
        self.f.wrong("ended_twice", m)

    def is_of_nobody(self) -> None:
        self.f.accepted(m := self.message(), self.at + 12)
        self.f.wrong("never_sent", m)

    def has_a_number_that_was_given(self) -> None:
        self.well()
        self.stream.number -= 1
        self.f.life(m := self.message(), self.at)
        self.f.wrong("number_reused", m)

    def changes_numbers_with_the_next(self) -> None:
        for other in (1, -1):
            m = self.sent()
            position = (m.position[0], m.position[1] + other)
            self.f.accepted(m, self.at + 9, position=position)
            self.f.acked(m, self.at + 20)
            self.f.wrong("wrong_number", m)


_EVERY_DAY = (Way.well, Way.well, Way.well, Way.silence, Way.sequence_ends, Way.sender_starts_anew,
              Way.expires, Way.is_refused, Way.expires_there, Way.is_sent_again,
              Way.is_acknowledged_late)  # fmt: skip
_WRONG = (Way.is_lost, Way.is_passed_over_by_another_stream, Way.is_acknowledged_for_nothing,
          Way.is_lost_in_front_of_a_gap, Way.comes_again, Way.is_overtaken, Way.is_left_out,
          Way.is_stored_and_dead, Way.is_received_and_dead, Way.leaves_twice, Way.is_of_nobody,
          Way.has_a_number_that_was_given, Way.changes_numbers_with_the_next)  # fmt: skip


def fleet_of_ways(folder: Path, seed: int, ways: int = 12) -> Fleet:
    """Writes the logs; returns what an audit of them has to find."""
    f = Fleet(random.Random(seed))
    names = ("alpha", "bravo", "charlie", "delta", "golf", "hotel", "india", "lima")
    hosts = [f.host(name) for name in names]
    chance = f.chance
    f.host("lima").ahead_ms = chance.choice([-1, 1]) * chance.choice([7000, 40 * MINUTE, 6 * HOUR])
    f.about_hosts.add(("clock", "lima"))
    for source in hosts:
        for to in hosts:
            if source is not to and chance.random() < 0.6:
                stream = Stream(source) if chance.random() < 0.8 else None
                for n in range(chance.randint(5, 25)):
                    at = MIDNIGHT + HOUR + n * 100 * MINUTE + chance.random() * MINUTE
                    f.life(Message(source, to, "usual" if stream else "plain", stream), at)
    for n in range(ways):
        begin = chance.choice([2 * HOUR, 9 * HOUR, DAY - 5 * MINUTE, DAY - 3000, DAY + 8 * HOUR])
        pace = chance.choice([30, 2000, MINUTE, 10 * MINUTE])
        way = Way(f, *chance.sample(hosts, 2), f"way{n}", MIDNIGHT + begin, pace)
        for _ in range(chance.randint(3, 14)):
            if way.at < MIDNIGHT + 2 * DAY - 8 * HOUR:
                chance.choice(_WRONG if chance.random() < 0.5 else _EVERY_DAY)(way)
        way.well()
        if chance.random() < 0.4:
            way.is_acknowledged_for_nothing()  # the last one of all
    f.write(folder, without=set(), hole=(hosts[0], 0, 0))
    return f
