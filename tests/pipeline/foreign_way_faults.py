"""Faults on the way of a message between two foreign hosts; each records its expected finding."""

from __future__ import annotations

from tests.pipeline.foreign_fleet import HOUR, MINUTE
from tests.pipeline.foreign_ways import Way


def lose(way: Way) -> None:
    for _ in range(way.chance.choice([1, 1, 3])):
        way.f.wrong("lost", way.sent())
    way.deliver()


def lose_before_another_stream(way: Way) -> None:
    way.f.wrong("lost", way.sent())
    way.restart_sender()


def acknowledge_unstored(way: Way) -> None:
    way.f.acked(m := way.sent(), way.at + 20)
    way.f.wrong("acked_not_stored", m)


def lose_before_a_gap(way: Way) -> None:
    lose(way)
    skip_numbers(way)
    acknowledge_unstored(way)


def duplicate(way: Way) -> None:
    way.f.life(m := way.message(), way.at)
    later = way.chance.choice([13, 50, 30 * MINUTE, 5 * HOUR])
    for n in range(way.chance.choice([1, 1, 2])):
        again = way.f.accepted(m, way.at + later + n * 7 * MINUTE)
        if way.chance.random() < 0.5:
            way.f.left(again, again["at"] + 99)
    way.f.wrong("duplicated", m)


def reorder(way: Way) -> None:
    late = way.sent()
    if way.chance.random() < 0.4:
        way.end_sequence()
    for _ in range(way.chance.randint(1, 4)):
        way.deliver()
    way.f.left(way.f.accepted(late, way.at + 40), way.at + 300)
    way.f.acked(late, way.at + 50)
    way.f.wrong("reordered", late)
    way.at += 1000


def skip_numbers(way: Way) -> None:
    if way.chance.random() < 0.4:
        way.stream.sequence += 1
        way.stream.number = 0
    way.f.findings["gap", "", way.stream.sequence_id, way.stream.number + 1] += 1
    way.stream.number += way.chance.choice([1, 1, 7])
    way.deliver()


def store_and_expire(way: Way) -> None:
    m = way.sent()
    way.f.died(m, way.at + 30, "expired", "nack_reach_queue_timeout")
    way.f.accepted(m, way.at + way.chance.choice([10, 5000]))
    way.f.wrong("delivered_and_dead", m)
    way.at += 6000


def receive_and_expire(way: Way) -> None:
    way.f.life(m := way.message(), way.at)
    way.f.died(m, way.at + HOUR, "final_ack_received", "nack_receive_timeout")
    way.f.wrong("delivered_and_dead", m)


def end_twice(way: Way) -> None:
    came = way.f.life(m := way.message(), way.at)
    later, kind = way.chance.choice([200, 9 * HOUR]), ["received", "expired", "purged"]
    way.f.left(came, way.at + later, way.chance.choice(kind))
    way.f.wrong("ended_twice", m)


def accept_unsent(way: Way) -> None:
    way.f.accepted(m := way.message(), way.at + 12)
    way.f.wrong("never_sent", m)


def reuse_a_number(way: Way) -> None:
    way.deliver()
    way.stream.number -= 1
    way.f.life(m := way.message(), way.at)
    way.f.wrong("number_reused", m)


def exchange_numbers(way: Way) -> None:
    for other in (1, -1):
        m = way.sent()
        position = (m.position[0], m.position[1] + other)
        way.f.accepted(m, way.at + 9, position=position)
        way.f.acked(m, way.at + 20)
        way.f.wrong("wrong_number", m)


FAULTS = (
    lose,
    lose_before_another_stream,
    acknowledge_unstored,
    lose_before_a_gap,
    duplicate,
    reorder,
    skip_numbers,
    store_and_expire,
    receive_and_expire,
    end_twice,
    accept_unsent,
    reuse_a_number,
    exchange_numbers,
)
