"""The reservations of a queue: runs of messages, each with one holder or several."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from protocol.names.format_name import parse_destination
from qmd.control_protocol.messages import StoredMessage
from qmd.core.number_set import Run
from qmd.message.addresses import queue_address
from qmd.queues.local_queue import LocalQueue, QueueNames, Reader
from qmd.queues.usage import Usage
from storage.tables.keys import ARRIVAL_BITS
from storage.tables.queues import QueueRow
from storage.tables.runs import runs_of

ADDRESS = queue_address(parse_destination("DIRECT=OS:.\\private$\\orders", local_host="."))
BASE = 7 << ARRIVAL_BITS


def queue_of(count: int) -> LocalQueue:
    """Return a queue with `count` messages in its window."""
    row = QueueRow(16, "private$\\orders", "", False, False, None, None, False, 0, 0)
    queue = LocalQueue(row, QueueNames("orders", ADDRESS), Usage())
    queue.count_in(count, 6 * count)
    queue.deliver([StoredMessage(BASE + number, 0, b"packet") for number in range(count)])
    return queue


def at(*runs: Run) -> list[Run]:
    return [(BASE + first, BASE + last) for first, last in runs]


def test_a_reader_gets_the_messages_that_no_other_one_has() -> None:
    queue = queue_of(3000)
    assert len(queue.take(Reader(), 3, 0)) == 3
    assert queue.hold(Reader(), BASE + 1500)
    reserved = queue.reserved

    assert reserved.add_stored(at((0, 1999)), shared=False) == at((3, 1499), (1501, 1999))
    assert reserved.add_stored(at((1990, 2009)), shared=False) == at((2000, 2009))

    assert len(reserved) == 2006
    assert reserved.unready == 2010
    assert not queue.hold(Reader(), BASE + 1800)
    assert [each.lookup_id for each in queue.take(Reader(), 1, 0)] == [BASE + 2010]


def test_a_shared_reader_stops_at_a_message_that_an_application_has() -> None:
    queue = queue_of(100)
    assert queue.hold(Reader(), BASE + 50)
    queue.reserved.add_stored(at((10, 19)), shared=True)

    assert queue.reserved.add_stored(at((0, 99)), shared=True) == at((0, 49))
    assert queue.reserved.holders(BASE + 10) == 2
    assert queue.reserved.holders(BASE + 20) == 1
    assert BASE + 51 not in queue.reserved

    queue.reserved.release(at((0, 49)), are_there=True)
    assert list(queue.reserved.busy(shared=True)._taken) == [BASE + 50]
    assert list(queue.reserved) == [BASE + number for number in range(10, 20)]
    assert queue.window.horizon == BASE  # a refill reads the others again


def test_consumed_messages_stay_away_from_others_until_their_commit() -> None:
    queue = queue_of(100)
    reserved = queue.reserved
    reserved.add_stored(at((0, 49)), shared=False)

    reserved.begin_removal(at((0, 39)))
    assert queue.is_settling
    assert len(reserved) == 10
    assert reserved.unready == 50
    assert not queue.hold(Reader(), BASE + 5)
    assert reserved.add_stored(at((0, 20)), shared=True) == []
    assert BASE + 5 in reserved.busy(shared=True)

    reserved.end_removal(at((0, 39)), 240)
    assert not queue.is_settling
    assert (queue.messages, queue.own_bytes, reserved.unready) == (60, 360, 10)


@pytest.mark.parametrize("seed", range(30))
def test_busy_messages_are_those_that_a_reader_cannot_reserve(seed: int) -> None:
    draw = random.Random(seed)
    queue = queue_of(0)
    model = Counter[int]()
    for _ in range(30):
        first = draw.randrange(3000)
        run = (BASE + first, BASE + first + draw.choice([0, 3, 1500]))
        shared = draw.random() < 0.5
        found = queue.reserved.add_stored([run], shared=shared)
        each = [number for number in range(run[0], run[1] + 1) if shared or not model[number]]
        assert found == runs_of(each)
        model.update(each)
        if draw.random() < 0.3:
            held = sorted(+model)[: draw.choice([5, 1000])]
            queue.reserved.release(runs_of(held), are_there=draw.random() < 0.5)
            model.subtract(held)
    busy = queue.reserved.busy(shared=False)
    for number in range(BASE, BASE + 5000, 7):
        assert (number in busy) == bool(model[number])
        assert busy.touches(number, number + 20) == any(model[number + at] for at in range(21))
        free = number
        while model[free]:
            free += 1
        assert busy.first_free(number) == free
    assert queue.reserved.busy(shared=True).first_free(BASE) == BASE
