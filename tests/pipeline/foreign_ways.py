"""Ways of messages between two foreign hosts: the events of normal operation, chosen at random.

`foreign_fleet.py` has fixed scenarios.  Here events and faults (`foreign_way_faults.py`) meet in
any mixture, over midnight, at the ends of sequences and of streams, at long and short intervals.
"""

from __future__ import annotations

from tests.pipeline.foreign_fleet import HOUR, Fleet, Host, Message, Stream


class Way:
    """A way from one host to another; each method is the fate of its next message or messages."""

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

    def deliver(self) -> None:
        self.f.life(self.message(), self.at, received=self.chance.random() < 0.8)

    def pause(self) -> None:
        self.at += self.chance.choice([2, 5]) * HOUR

    def end_sequence(self) -> None:
        self.stream.sequence += self.chance.choice([1, 1, 1, 5])
        self.stream.number = 0
        self.deliver()

    def restart_sender(self) -> None:
        self.stream = Stream(self.source)
        self.deliver()

    def expire(self) -> None:
        kind = self.chance.choice(["expired", "purged"])
        self.f.died(self.sent(), self.at + 10, kind, "nack_reach_queue_timeout")
        self.at += 1000

    def reject(self) -> None:
        m, why = self.sent(), "nack_access_denied"
        self.to.record(self.at + 9, "refused", m, queue=m.queue, position=m.position, why=why)
        if self.chance.random() < 0.5:
            self.f.acked(m, self.at + 20)
        self.f.died(m, self.at + 25, "final_ack_received", why)
        self.at += 1000

    def expire_at_receiver(self) -> None:
        why = "nack_receive_timeout"
        came = self.f.life(m := self.message(), self.at, received=False)
        self.f.left(came, self.at + 5000, self.chance.choice(["expired", "purged"]), why=why)
        if self.chance.random() < 0.6:
            self.f.died(m, self.at + 5020, "final_ack_received", why)

    def retransmit(self) -> None:
        m = self.sent()
        self.f.handed(m, self.at + 20, self.to, "retransmitted")
        self.f.left(self.f.accepted(m, self.at + 30), self.at + 90)
        self.to.record(
            self.at + 40, "duplicate", m, queue=m.queue, position=m.position, peer=self.source.guid
        )
        self.f.acked(m, self.at + 50)
        self.at += 100

    def acknowledge_late(self) -> None:
        m = self.sent()
        self.f.accepted(m, self.at + 9)
        if self.chance.random() < 0.5:
            self.f.acked(m, self.at + 3 * HOUR)


EVERY_DAY = (Way.deliver, Way.deliver, Way.deliver, Way.pause, Way.end_sequence, Way.restart_sender,
              Way.expire, Way.reject, Way.expire_at_receiver, Way.retransmit,
              Way.acknowledge_late)  # fmt: skip
