"""More faults of a fleet: restored backups, aborted transactions, lines that come back.

As in `foreign_fleet.py`, each function records the events, and the expected findings.

"""

from __future__ import annotations

from tests.pipeline.foreign_fleet import DAY, HOUR, MIDNIGHT, MINUTE, Fleet, Host, Message, Stream


def alive(f: Fleet, source: Host, to: Host, begin: float, stream: Stream, queue: str) -> None:
    """Record events after a fault, so that the log continues."""
    for n in range(3):
        f.life(Message(source, to, queue, stream), begin + n * MINUTE)


def sender_put_back(f: Fleet, source: Host, to: Host, begin: float) -> None:
    """Restore a sender from a backup: it reuses numbers, and its receiver rejects the messages."""
    stream = Stream(source)
    for n in range(6):
        f.life(Message(source, to, "given-again", stream), begin + n * MINUTE)
    stream.number = 3
    for n in range(3):
        m, at = Message(source, to, "given-again", stream), begin + (20 + n) * MINUTE
        f.sent(m, at)
        to.record(at + 9, "duplicate", m, queue=m.queue, position=m.position, peer=source.guid)
        f.acked(m, at + 20)
        f.wrong("number_reused", m)
        f.wrong("acked_not_stored", m)
    alive(f, source, to, begin + 30 * MINUTE, stream, "given-again")


def receiver_put_back(f: Fleet, source: Host, begin: float) -> None:
    """Restore a receiver from a backup: stored messages arrive again, at the same positions."""
    to = f.host("papa")
    stream = Stream(source)
    messages = [Message(source, to, "put-back", stream) for _ in range(6)]
    for n, m in enumerate(messages):
        f.sent(m, begin + n * MINUTE)
        f.accepted(m, begin + n * MINUTE + 12)
        if n < 3:
            f.acked(m, begin + n * MINUTE + 20)
    to.put_back = (int(begin + 30 * MINUTE), int(begin + 3 * MINUTE))
    f.about_hosts.add(("restored", to.name))
    for n, m in enumerate(messages[3:]):
        at = begin + (31 + n) * MINUTE
        f.handed(m, at, to, "retransmitted")
        f.accepted(m, at + 9)
        f.acked(m, at + 20)
        f.wrong("duplicated", m)
    alive(f, source, to, begin + 40 * MINUTE, stream, "put-back")


def aborted_and_journaled(f: Fleet, source: Host, to: Host, begin: float) -> None:
    """Take a message back twice, then receive it; both journals are read.  There is no fault."""
    stream = Stream(source)
    for n in range(5):
        m, at = Message(source, to, "aborted", stream), begin + n * MINUTE
        came = f.life(m, at, received=False)
        for after in (50, 60):
            to.record(at + after, "aborted", m, queue=m.queue, leaves=came)
        f.left(came, at + 80)
        for host, queue, journal in (
            (to, m.queue, f"{m.queue};journal"),
            (source, m.destination, "system$;journal"),
        ):
            copy = host.record(at + 85, "journaled", m, queue=queue, to_queue=journal, comes=True)
            f.left(copy, at + 9000, host=host, queue=journal)


def ended_after_it_was_received(f: Fleet, source: Host, to: Host, begin: float) -> None:
    stream = Stream(source)
    for n in range(5):
        m, at = Message(source, to, "ended", stream), begin + n * MINUTE
        came = f.life(m, at)
        if n in (2, 3):
            f.left(came, at + 5000, "expired" if n == 2 else "purged")
            f.wrong("ended_twice", m)


def late_over_the_end_of_a_sequence(f: Fleet, source: Host, to: Host, begin: float) -> None:
    stream = Stream(source)
    alive(f, source, to, begin, stream, "sequences")
    f.sent(late := Message(source, to, "sequences", stream), begin + 5 * MINUTE)
    stream.sequence, stream.number = 2, 0
    f.life(Message(source, to, "sequences", stream), begin + 6 * MINUTE)
    f.left(f.accepted(late, begin + 7 * MINUTE), begin + 8 * MINUTE)
    f.acked(late, begin + 7 * MINUTE + 5)
    f.wrong("reordered", late)
    alive(f, source, to, begin + 10 * MINUTE, stream, "sequences")


def a_whole_stream(f: Fleet, source: Host, to: Host, begin: float) -> None:
    """Store no message of a stream: acknowledged messages are lost, the others wait."""
    acknowledged, waiting = Stream(source), Stream(source)
    for n in range(4):
        f.sent(m := Message(source, to, "void", acknowledged), begin + n * MINUTE)
        f.acked(m, begin + n * MINUTE + 20)
        f.wrong("acked_not_stored", m)
        f.sent(Message(source, to, "waiting", waiting), begin + n * MINUTE)
    alive(f, source, to, begin + 9 * MINUTE, Stream(source), "alive")


def express_messages(f: Fleet, source: Host, to: Host, begin: float) -> None:
    """Lose one express message, which is no fault; duplicate another one."""
    for n in range(6):
        m, at = Message(source, to, "express", None), begin + n * MINUTE
        m.delivery = "express"
        f.sent(m, at)
        if n == 1:
            continue
        f.left(f.accepted(m, at + 9), at + 30)
        f.acked(m, at + 20)
        if n == 4:
            f.left(f.accepted(m, at + 5000), at + 6000)
            f.wrong("duplicated", m)


def copies_for_two(f: Fleet, source: Host, to: Host, other: Host, begin: float) -> None:
    """Send messages to two queues: one copy is lost, one is stored by both."""
    first, second = Stream(source), Stream(source)
    for n in range(6):
        at = begin + n * MINUTE
        f.life(a := Message(source, to, "copies", first), at)
        b = Message(source, other, "copies", second)
        if n == 1:
            f.left(f.accepted(a, at + 900, host=other), at + 990, host=other)
            f.wrong("duplicated", a)
        if n == 3:
            f.sent(b, at)
            f.wrong("lost", b)
        else:
            f.life(b, at)


def refused_and_sent_again(f: Fleet, source: Host, to: Host, begin: float) -> None:
    """Refuse a message and send it again, the last one too.  There is no fault."""
    stream = Stream(source)
    for n in range(6):
        m, at = Message(source, to, "refused", stream), begin + n * MINUTE
        if n not in (2, 5):
            f.life(m, at)
            continue
        f.sent(m, at)
        why = "nack_access_denied"
        to.record(at + 9, "refused", m, queue=m.queue, position=m.position, why=why)
        f.acked(m, at + 20)
        dead = f.died(m, at + 25, "final_ack_received", why)
        source.record(at + HOUR, "requeued", m, queue="system$;deadxact", leaves=dead)


def the_line_comes_back(f: Fleet, source: Host, to: Host, begin: float) -> None:
    """Store a message that has expired at its sender."""
    stream = Stream(source)
    alive(f, source, to, begin, stream, "ghosts")
    f.sent(m := Message(source, to, "ghosts", stream), begin + 4 * MINUTE)
    f.died(m, begin + 4 * MINUTE + 5000, "expired", "nack_reach_queue_timeout")
    f.left(f.accepted(m, begin + 4 * MINUTE + 9000), begin + 5 * MINUTE)
    f.wrong("delivered_and_dead", m)
    alive(f, source, to, begin + 6 * MINUTE, stream, "ghosts")


def from_the_first_on(f: Fleet, source: Host, to: Host, begin: float) -> None:
    stream = Stream(source)
    f.sent(m := Message(source, to, "first", stream), begin)
    f.wrong("lost", m)
    f.sent(m := Message(source, to, "first", stream), begin + 5)
    f.acked(m, begin + 30)
    f.wrong("acked_not_stored", m)
    alive(f, source, to, begin + MINUTE, stream, "first")
    f.findings["gap", "", stream.sequence_id, stream.number + 1] += 1
    stream.number += 1
    alive(f, source, to, begin + 9 * MINUTE, stream, "first")


def all_the_other_way_round(f: Fleet, source: Host, to: Host, begin: float) -> None:
    stream = Stream(source)
    messages = [Message(source, to, "reversed", stream) for _ in range(5)]
    for n, m in enumerate(messages):
        f.sent(m, begin + n * 1000)
    for n, m in enumerate(reversed(messages)):
        at = begin + MINUTE + n * 1000
        f.left(f.accepted(m, at), at + MINUTE)
        f.acked(m, at + 100)
    for m in messages[:-1]:
        f.wrong("reordered", m)


def more_faults(f: Fleet) -> None:
    """Record each fault once by day, and once over midnight, between changing hosts."""
    hosts = [f.host(name) for name in ("quebec", "romeo", "sierra", "tango")]
    for n, happens in enumerate(HAPPENINGS * 2):
        source, to, _ = (hosts[(n + each) % 4] for each in range(3))
        by_day = MIDNIGHT + (2 + n) * HOUR
        happens(f, source, to, by_day if n < len(HAPPENINGS) else MIDNIGHT + DAY - 7 * MINUTE)
    copies_for_two(f, *hosts[:3], MIDNIGHT + 30 * HOUR)
    receiver_put_back(f, hosts[0], MIDNIGHT + 32 * HOUR)


HAPPENINGS = (
    sender_put_back,
    aborted_and_journaled,
    ended_after_it_was_received,
    late_over_the_end_of_a_sequence,
    a_whole_stream,
    express_messages,
    refused_and_sent_again,
    the_line_comes_back,
    from_the_first_on,
    all_the_other_way_round,
)
