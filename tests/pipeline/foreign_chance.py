"""Fleets of foreign hosts with random mixtures of faults on the way of their messages."""

from __future__ import annotations

import random
from pathlib import Path

from tests.pipeline.foreign_fleet import DAY, HOUR, MIDNIGHT, MINUTE, Fleet, Message, Stream
from tests.pipeline.foreign_way_faults import FAULTS, acknowledge_unstored
from tests.pipeline.foreign_ways import EVERY_DAY, Way


def fleet_of_ways(folder: Path, seed: int, ways: int = 12) -> Fleet:
    """Write the logs; return the findings that an audit of them must have."""
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
                chance.choice(FAULTS if chance.random() < 0.5 else EVERY_DAY)(way)
        way.deliver()
        if chance.random() < 0.4:
            acknowledge_unstored(way)  # the last message of all
    f.write(folder, without=set(), hole=(hosts[0], 0, 0))
    return f
