"""Figures for monitoring, read from a whole queue manager as the door for metrics reads them."""

from __future__ import annotations

import asyncio
import time

from qmd.control.verbs import HANDLERS
from qmd.control_protocol.figures import ROWS_MAX, DestinationFigures, HostFigures, QueueFigures
from qmd.control_protocol.messages import EXPRESS, RECOVERABLE, TRANSACTIONAL
from qmd.doors.metrics.collection import Collector
from tests.integration.managers import Host, Hosts, hosted

ELSEWHERE = "DIRECT=TCP:127.0.0.1:1\\private$\\q"


def counting(host: Host) -> list[type]:
    """Return a list to which each request of the control socket adds its verb."""
    asked: list[type] = []

    def handler(verb: type) -> object:
        def handle(connection: object, request: object) -> None:
            asked.append(verb)
            HANDLERS[verb](connection, request)  # type: ignore[arg-type]

        return handle

    host.control.handlers = {verb: handler(verb) for verb in HANDLERS}  # type: ignore[misc]
    return asked


@hosted
async def test_many_queues_come_in_pages_and_all_of_them_are_counted(hosts: Hosts) -> None:
    a = await hosts.start()
    count = 2 * ROWS_MAX + 10
    for number in range(count):
        await a.create(f"private$\\q{number}")
    asked, collector = counting(a), Collector(a.socket, 5, 5)

    found = await collector.collect()
    await collector.close()

    own = [each for each in (*found.queues, *found.other_queues) if each.kind == "queue"]
    assert len({each.name for each in own}) == len(own) == count
    assert len([each for each in found.queues if each.kind != "system"]) == 5
    assert asked.count(QueueFigures) == -(-len(a.queues.by_key) // ROWS_MAX)


@hosted
async def test_a_later_collection_reads_only_the_queues_that_have_changed(hosts: Hosts) -> None:
    a = await hosts.start()
    for number in range(10):
        await a.create(f"private$\\q{number}")
    collector = Collector(a.socket, 100, 5)
    await collector.collect()
    await a.send("private$\\q3", b"1", delivery=RECOVERABLE)
    await a.settled()
    await a.queue_deletion.delete(a.queue("q4"))
    await a.create("private$\\q10")

    answer = await collector.ask(QueueFigures, 0, True)
    collector.forget()
    # These changes were given to the connection, and lost: the collection needs another one.
    await collector.close()
    found = await collector.collect()

    # A queue of the system may have changed too.
    own = {row[0]: row for row in answer["rows"] if row[1] != "system"}
    assert set(own) == {"private$\\q3", "private$\\q10"}
    assert answer["gone"] == ["private$\\q4"]
    shown = {each.name: each.messages for each in found.queues if each.kind != "system"}
    assert shown == {f"private$\\q{n}": int(n == 3) for n in range(10) if n != 4} | {
        "private$\\q10": 0
    }
    collector.forget()
    await a.queue_deletion.delete(a.queue("q3"))
    again = await collector.collect()
    assert "private$\\q3" not in {each.name for each in again.queues}
    await collector.close()


@hosted
async def test_many_scrapes_are_one_collection(hosts: Hosts) -> None:
    a = await hosts.start()
    asked, collector = counting(a), Collector(a.socket, 5, 5)

    results = await asyncio.gather(*(collector.collect() for _ in range(50)))
    await collector.close()

    assert len(results) == 50
    assert asked.count(HostFigures) <= 1 + round(results[0].took_s)


@hosted
async def test_the_oldest_messages_have_ages_in_memory_and_on_disk(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("private$\\stored")
    await a.create("private$\\express")
    before = time.time()
    await a.send("private$\\stored", b"1", delivery=RECOVERABLE)
    await a.send("private$\\express", b"1", delivery=EXPRESS)
    await a.send(ELSEWHERE, b"1", delivery=TRANSACTIONAL)
    await a.settled()
    collector = Collector(a.socket, 5, 5)

    found = await collector.collect()
    await collector.close()

    most = time.time() - before + 1  # the sent time of a packet is in seconds
    for name in ("private$\\stored", "private$\\express"):
        assert 0 < found.queue_ages_s[name] <= most
    (destination,) = found.destinations
    assert (destination.messages, destination.state) == (1, "waiting")
    assert 0 < found.destination_ages_s[destination.name] <= most


@hosted
async def test_a_place_beyond_the_end_is_an_empty_page(hosts: Hosts) -> None:
    a = await hosts.start()
    collector = Collector(a.socket, 5, 5)

    for verb in (QueueFigures, DestinationFigures):
        assert await collector.ask(verb, 1 << 31) == {"rows": [], "next": None}
    await collector.close()
