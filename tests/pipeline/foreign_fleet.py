"""Event logs that are written one event at a time, independently of the generator.

`pipeline.generator` and the audit could be wrong in the same way.  This module shares only the
columns of docs/events.md with them: a host records an event with its time, and the expected
finding is recorded where the event is made.

"""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from qmd.cli.event_files import arrow_schema

HOUR, DAY = 3_600_000, 86_400_000
MIDNIGHT = 20_780 * DAY  # in November 2026
MINUTE = 60_000
Event = dict[str, Any]


class Host:
    def __init__(self, name: str, chance: random.Random) -> None:
        self.name = name
        self.guid = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        self.ahead_ms = 0  # error of its clock
        self.later_name = (1 << 62, name)
        self.put_back = (1 << 62, 0)  # time of the backup, and time of its restoration
        self.events: list[Event] = []
        self.messages = self.streams = 0

    def record(self, at: float, kind: str, message: Message | None = None, **more: Any) -> Event:
        event = {"at": int(at), "kind": kind, "message": message, **more}
        self.events.append(event)
        return event

    def rows(self) -> list[Event]:
        """Return the rows of its log: events within some milliseconds are one block."""
        rows: list[Event] = []
        block = index = arrivals = 0
        last = -DAY
        restored, of_backup = self.put_back
        known = (0, 0)
        for event in sorted(self.events, key=lambda each: each["at"]):
            if event["at"] < of_backup:
                known = block, arrivals
            if event["at"] >= restored:
                (block, arrivals), restored = known, 1 << 62
            block, index = (block + 1, 0) if event["at"] - last > 3 else (block, index + 1)
            last = event["at"]
            place = None
            if event.get("comes"):
                arrivals += 1
                place = event["place"] = 7 << 44 | arrivals
            elif "leaves" in event:
                place = event["leaves"]["place"]
            message, position = event["message"], event.get("position", (None, None))
            since, name = self.later_name
            at_ms = event["at"] + self.ahead_ms
            rows.append(
                {
                    "schema": 1,
                    "host": name if event["at"] >= since else self.name,
                    "queue_manager": self.guid,
                    "cursor": f"{block}.{index}",
                    "block": block,
                    "index": index,
                    "time": at_ms,
                    "at_ms": at_ms,
                    "kind": event["kind"],
                    "message_id": message.id if message else "",
                    "queue": event.get("queue", ""),
                    "peer": event.get("peer", ""),
                    "lookup_id": place,
                    "sequence_id": None if position[0] is None else Decimal(position[0]),
                    "sequence_number": position[1],
                    "class": event.get("why"),
                    "delivery": event.get("delivery", ""),
                    "bytes": event.get("bytes", 700),
                    **dict.fromkeys(("reason", "transaction", "label", "correlation_id"), ""),
                    "to_queue": event.get("to_queue", ""),
                }
            )
        return rows


class Stream:
    def __init__(self, source: Host) -> None:
        source.streams += 1
        self.high, self.sequence, self.number = 1_790_000_000 + 7 * source.streams, 1, 0

    @property
    def sequence_id(self) -> int:
        return self.high << 32 | self.sequence

    def next(self) -> tuple[int, int]:
        self.number += 1
        return self.sequence_id, self.number


class Message:
    def __init__(self, source: Host, to: Host, queue: str, stream: Stream | None) -> None:
        source.messages += 1
        self.source, self.to, self.stream = source, to, stream
        self.id = f"{source.guid}\\{source.messages}"
        self.queue = f"private$\\{queue}"
        self.destination = f"DIRECT=OS:{to.name}\\{self.queue}"
        self.position = stream.next() if stream else (None, None)
        self.delivery = "transactional" if stream else "recoverable"


@dataclass
class Fleet:
    """Hosts, and the findings that an audit must have."""

    chance: random.Random
    hosts: dict[str, Host] = field(default_factory=dict)
    findings: Counter[tuple[str, str, int, int]] = field(default_factory=Counter)
    about_hosts: set[tuple[str, str]] = field(default_factory=set)

    def host(self, name: str) -> Host:
        if name not in self.hosts:
            made = self.hosts[name] = Host(name, self.chance)
            made.record(MIDNIGHT + 1, "started")
            made.record(MIDNIGHT + 2 * DAY - 1000, "started")
        return self.hosts[name]

    def wrong(self, kind: str, message: Message) -> None:
        self.findings[kind, message.id, 0, 0] += 1

    # The stages of a message.

    def sent(self, m: Message, at: float) -> None:
        m.source.record(
            at, "sent", m, queue=m.destination, position=m.position, delivery=m.delivery
        )
        self.handed(m, at + 1, m.to)

    def handed(self, m: Message, at: float, peer: Host, kind: str = "transmitted") -> None:
        m.source.record(at, kind, m, queue=m.destination, position=m.position, peer=peer.guid)

    def accepted(self, m: Message, at: float, **other: Any) -> Event:
        """Accept a message at its destination, unless `other` names host, peer or position."""
        return (other.get("host") or m.to).record(
            at, "accepted", m, queue=m.queue, position=other.get("position", m.position),
            delivery=m.delivery, comes=True, peer=(other.get("peer") or m.source).guid,
        )  # fmt: skip

    def acked(self, m: Message, at: float, peer: Host | None = None) -> None:
        kind = "order_acknowledged" if m.stream else "session_acknowledged"
        m.source.record(
            at, kind, m, queue=m.destination, position=m.position, peer=(peer or m.to).guid
        )

    def left(self, came: Event, at: float, kind: str = "received", **other: Any) -> None:
        m = came["message"]
        host = other.get("host") or m.to
        host.record(
            at, kind, m, queue=other.get("queue", m.queue), leaves=came, why=other.get("why")
        )

    def life(self, m: Message, at: float, *, received: bool = True) -> Event:
        self.sent(m, at)
        came = self.accepted(m, at + 12)
        self.acked(m, at + 22)
        if received:
            self.left(came, at + 80)
        return came

    def died(self, m: Message, at: float, kind: str, why: str) -> Event:
        """End a message at its source, which keeps it as a dead letter."""
        m.source.record(at, kind, m, queue=m.destination, why=why)
        return m.source.record(
            at + 1, "dead_lettered", m, queue=m.destination, why=why, comes=True,
            to_queue="system$;deadxact",
        )  # fmt: skip

    def write(self, folder: Path, *, without: set[str], hole: tuple[Host, float, float]) -> None:
        """Write the hosts in different ways: by day, two in a file, unordered, twice, as text."""
        for host in self.hosts.values():
            rows = host.rows()
            if host is hole[0]:
                gone = {
                    row["block"]
                    for row in rows
                    if hole[1] <= row["at_ms"] - host.ahead_ms < hole[2]
                }
                rows = [row for row in rows if row["block"] not in gone]
            if host.name in without:
                continue
            if host.name == "bravo":
                folder.mkdir(parents=True, exist_ok=True)
                texts = [json.dumps(row, default=int) for row in rows]
                (folder / "bravo.ndjson").write_text("\n".join([*texts, ""]))
            elif host.name == "charlie":
                self.chance.shuffle(rows)
                _write(folder / "somewhere" / "c.parquet", rows)
            else:
                for day in {(row["at_ms"] - MIDNIGHT) // DAY for row in rows}:
                    some = [row for row in rows if (row["at_ms"] - MIDNIGHT) // DAY == day]
                    file = folder / f"day={day}" / f"host={host.name}" / "events.parquet"
                    _write(file, some)
                    if host.name == "delta":
                        _write(file.with_name("again.parquet"), some)
        _write(folder / "empty.parquet", [])
        (folder / "empty.ndjson").write_text("")


def _write(path: Path, rows: list[Event]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows, schema=arrow_schema()), path)


def several_in_one_stream(f: Fleet, source: Host, to: Host, begin: float) -> None:
    """Give neighbours different faults, one after the other."""
    stream = Stream(source)
    at = begin

    def message() -> Message:
        nonlocal at
        at += MINUTE
        return Message(source, to, "many-faults", stream)

    def good(count: int = 1) -> None:
        for _ in range(count):
            f.life(message(), at)

    good(3)
    for _ in range(2):
        f.sent(m := message(), at)
        f.wrong("lost", m)
    good()
    f.life(m := message(), at)
    f.accepted(m, at + 5000)
    f.wrong("duplicated", m)
    f.sent(late := message(), at)
    good(2)
    f.accepted(late, at + 100)
    f.acked(late, at + 110)
    f.wrong("reordered", late)
    f.findings["gap", "", stream.sequence_id, stream.number + 1] += 1
    stream.number += 3
    good()
    f.sent(m := message(), at)
    f.acked(m, at + 9)
    f.wrong("acked_not_stored", m)
    f.life(m := message(), at)
    f.died(m, at + 7000, "expired", "nack_reach_queue_timeout")
    f.wrong("delivered_and_dead", m)
    f.sent(m := message(), at)  # the last one of its sequence
    f.wrong("lost", m)
    stream.sequence, stream.number = 2, 0
    good(3)
    for other in (1, -1):  # two messages with each other's numbers
        f.sent(m := message(), at)
        f.accepted(m, at + 9, position=(m.position[0], m.position[1] + other))
        f.acked(m, at + 20)
        f.wrong("wrong_number", m)
    came = f.life(m := message(), at)
    f.left(came, at + 30_000)
    f.wrong("ended_twice", m)
    f.accepted(m := message(), at)
    f.wrong("never_sent", m)
    good()
    stream.number -= 1
    f.life(m := message(), at)
    f.wrong("number_reused", m)
    good(2)
    f.sent(m := message(), at)  # the last message of all
    f.acked(m, at + 9)
    f.wrong("acked_not_stored", m)
    after = Stream(source)
    for n in range(3):  # the log of the destination continues
        f.life(Message(source, to, "others", after), at + (n + 5) * MINUTE)


def a_restart_sends_again(f: Fleet, source: Host, to: Host, begin: float) -> None:
    """Restart a sender: under another sequence id it resends stored messages of the first one."""
    stream = Stream(source)
    for n in range(4):
        f.life(m := Message(source, to, "again", stream), begin + n * MINUTE)
    source.record(begin + 10 * MINUTE, "started")
    stream = Stream(source)
    f.handed(m, begin + 11 * MINUTE, to, "retransmitted")
    f.accepted(m, begin + 11 * MINUTE + 9, position=stream.next())
    f.wrong("duplicated", m)
    for n in range(4):
        f.life(Message(source, to, "again", stream), begin + (12 + n) * MINUTE)


def dead_letters_are_read(f: Fleet, source: Host, to: Host, begin: float) -> None:
    """Read dead letters by a program, or send them again as new messages: there is no fault."""
    stream, again = Stream(source), Stream(source)
    for n in range(6):
        m, at = Message(source, to, "dead", stream), begin + n * MINUTE
        if n == 1:
            f.sent(m, at)
            dead = f.died(m, at + 5000, "expired", "nack_reach_queue_timeout")
            f.left(dead, at + HOUR, host=source, queue="system$;deadxact")
            f.life(Message(source, to, "requeued", again), at + HOUR + 2)
        elif n == 2:
            came = f.life(m, at, received=False)
            f.left(came, at + 9000, "expired", why="nack_receive_timeout")
            dead = f.died(m, at + 9020, "final_ack_received", "nack_receive_timeout")
            f.left(dead, at + HOUR, host=source, queue="system$;deadxact")
        else:
            f.life(m, at)


def moved_and_redirected(f: Fleet, source: Host, to: Host, other: Host, begin: float) -> None:
    """Move messages to a subqueue and back; redirect them from the tenth on.  No fault."""
    stream = Stream(source)
    for n in range(20):
        m, at = Message(source, to, "moved", stream), begin + n * MINUTE
        host = to if n < 10 else other
        f.sent(m, at)
        came = f.accepted(m, at + 10, host=host)
        f.acked(m, at + 20, host)
        host.record(at + 99, "moved", m, queue=m.queue, to_queue=f"{m.queue};locked", leaves=came)
        f.left(came, at + 200, host=host, queue=f"{m.queue};locked")


def two_relays(f: Fleet, source: Host, to: Host, begin: float) -> None:
    """Send plain messages over two relays: one expires there, one is lost behind the second."""
    first, second = f.host("relay1"), f.host("relay2")
    for n in range(8):
        m, at = Message(source, to, "far", None), begin + n * MINUTE
        queue = f"{m.destination} for others"
        f.sent(m, at)
        first.record(at + 10, "relayed", m, queue=queue, delivery="recoverable", peer=source.guid)
        f.acked(m, at + 20, first)
        if n == 2:
            first.record(at + 5000, "expired", m, queue=queue, why="nack_reach_queue_timeout")
            continue
        second.record(at + 40, "relayed", m, queue=queue, delivery="recoverable", peer=first.guid)
        first.record(at + 50, "session_acknowledged", m, queue=queue, peer=second.guid)
        second.record(at + 80, "session_acknowledged", m, queue=queue, peer=to.guid)
        if n == 4:
            f.wrong("acked_not_stored", m)
        else:
            f.left(f.accepted(m, at + 70, peer=second), at + 99)


def a_relay_without_a_log(f: Fleet, source: Host, to: Host, begin: float) -> None:
    """Omit the log of a relay: messages that it kept are undecided, and not lost."""
    relay = f.host("relay3")
    for n in range(6):
        m, at = Message(source, to, "farther", None), begin + n * MINUTE
        m.source.record(at, "sent", m, queue=m.destination, delivery=m.delivery)
        f.handed(m, at + 1, relay)
        f.acked(m, at + 20, relay)
        if n != 3:
            f.left(f.accepted(m, at + 70, peer=relay), at + 99)
    f.about_hosts.add(("no_log", relay.guid))


def renamed(f: Fleet, source: Host, begin: float) -> None:
    """Rename a computer; it is asked under both names for the messages that it acknowledged."""
    to = f.host("kilo")
    to.later_name = (int(begin) + HOUR, "kilo-new")
    stream = Stream(source)
    for n in range(10):
        f.life(Message(source, to, "renamed", stream), begin + n * 15 * MINUTE)
    for queue in ("renamed", "never-seen"):
        m = Message(source, to, queue, stream if queue == "renamed" else Stream(source))
        f.sent(m, begin + 3 * HOUR)
        f.acked(m, begin + 3 * HOUR + 30)
        f.wrong("acked_not_stored", m)


def foreign_fleet(
    folder: Path, seed: int = 1, more: Callable[[Fleet], None] = lambda fleet: None
) -> Fleet:
    """Write the logs; return the findings that an audit of them must have."""
    f = Fleet(random.Random(seed))
    alpha, bravo, charlie, delta, echo, lima, mike, november = map(
        f.host, ("alpha", "bravo", "charlie", "delta", "echo", "lima", "mike", "november")
    )
    lima.ahead_ms, mike.ahead_ms = 3 * HOUR, -5 * HOUR
    f.about_hosts |= {("clock", "lima"), ("clock", "mike"), ("log_hole", "november")}
    ways = [(source, to) for source in f.hosts.values() for to in f.hosts.values()]
    for source, to in ways:
        if source is not to and f.chance.random() < 0.7:
            stream = Stream(source)
            for n in range(30):
                f.life(Message(source, to, "usual", stream), MIDNIGHT + HOUR + n * 90 * MINUTE)
    several_in_one_stream(f, alpha, bravo, MIDNIGHT + 3 * HOUR)
    several_in_one_stream(f, charlie, delta, MIDNIGHT + DAY - 15 * MINUTE)
    several_in_one_stream(f, lima, mike, MIDNIGHT + 30 * HOUR)
    several_in_one_stream(f, november, echo, MIDNIGHT + 20 * HOUR)
    a_restart_sends_again(f, echo, alpha, MIDNIGHT + 6 * HOUR)
    dead_letters_are_read(f, bravo, charlie, MIDNIGHT + 10 * HOUR)
    moved_and_redirected(f, delta, echo, alpha, MIDNIGHT + 14 * HOUR)
    two_relays(f, alpha, charlie, MIDNIGHT + 16 * HOUR)
    a_relay_without_a_log(f, bravo, delta, MIDNIGHT + 18 * HOUR)
    renamed(f, alpha, MIDNIGHT + 20 * HOUR)
    lone = Message(alpha, bravo, "one", Stream(alpha))
    f.sent(lone, MIDNIGHT + 9 * HOUR)
    f.acked(lone, MIDNIGHT + 9 * HOUR + 100)
    f.wrong("acked_not_stored", lone)
    more(f)
    hole = (november, MIDNIGHT + 10 * HOUR, MIDNIGHT + 12 * HOUR)
    f.write(folder, without={"relay3"}, hole=hole)
    return f
