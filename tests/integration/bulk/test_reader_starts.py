"""Where readers begin and end, queues that are added to a run, and readers that expire."""

from __future__ import annotations

import asyncio
import time

from qmd.bulk.reserve_next import Bounds
from tests.integration.bulk.reader import numbered, opened
from tests.integration.bulk.refusals import refused
from tests.integration.managers import PATIENCE_S, Host, Hosts, hosted, until

ARRIVAL_BITS = 44
BEYOND = f"time:{1 << 63}"


async def arrivals(host: Host, queue: str = "orders") -> list[tuple[int, int]]:
    """Return number and time of arrival of each message, in the order of arrival."""
    found = [
        (message.lookup_id & ((1 << ARRIVAL_BITS) - 1), message.arrived_at_ms)
        for message in await host.peek(queue)
    ]
    return sorted(found)


async def clock_after(at_ms: int) -> None:
    """Wait until the wall clock shows a later millisecond."""
    await until(lambda: time.time() * 1000 > at_ms + 1, "a later millisecond")


@hosted
async def test_a_reader_begins_at_a_position_or_a_time(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *numbered(4))
    await clock_after((await arrivals(a))[-1][1])
    await a.send("orders", *numbered(4, 4))
    there = await arrivals(a)

    by_position = await opened(a, "position", start=f"position:{there[2][0]}", shared=True)
    by_time = await opened(a, "time", start=f"time:{there[4][1]}", shared=True)
    existing = await opened(a, "existing", start=f"existing:{there[4][1]}", shared=True)
    assert await existing.reserve(0)
    assert await existing.read(0) == numbered(4, 4)
    late = await opened(a, "late", start=f"time:{there[-1][1] + 1_000_000}", shared=True)

    assert (await by_position.reserve(0))["messages"] == 6
    assert await by_position.read(0) == numbered(6, 2)
    assert (await by_time.reserve(0))["messages"] == 4
    assert await by_time.read(0) == numbered(4, 4)
    assert (await late.reserve(0))["messages"] == 0


@hosted
async def test_a_queue_may_have_a_start_of_its_own(hosts: Hosts) -> None:
    a = await hosts.start()
    for queue in ("orders", "invoices"):
        await a.create(queue)
        await a.send(queue, *numbered(3))

    run = await a.reservations.open(
        "two", ["orders", "invoices"], shared=False, start="oldest", starts={"invoices": "newest"}
    )

    counts = [
        (await a.reservations.reserve("two", run["fence"], one["queue"], 0, 10, 0))["messages"]
        for one in run["queues"]
    ]
    assert counts == [3, 0]


@hosted
async def test_another_start_is_refused(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    for start in ("", "first", "position:", "position:-1", "position:1x", "time:1e3", BEYOND):
        assert await refused(opened(a, start=start)) == "bad_reader_start"


@hosted
async def test_a_position_that_no_message_has_had_is_refused(hosts: Hosts) -> None:
    """Its reader would skip all messages that come until then."""
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *numbered(2))
    last = (await arrivals(a))[-1][0]

    following = await opened(a, "following", start=f"position:{last + 1}")
    await a.send("orders", *numbered(1, 2))
    assert (await following.reserve(0))["messages"] == 1
    assert await refused(opened(a, "far", start=f"position:{last + 1000}")) == "bad_reader_start"
    assert a.readers.get("far") is None


@hosted
async def test_a_reader_that_needs_a_message_leaves_nothing_without_one(hosts: Hosts) -> None:
    a = await hosts.start()
    for queue in ("orders", "invoices"):
        await a.create(queue)
    await a.send("orders", *numbered(1))
    for start in ("existing:0", "oldest"):  # of the queue that has a message
        opening = a.reservations.open(
            "strict", ["orders", "invoices"], shared=False, start=start,
            starts={"invoices": "existing:0"},
        )  # fmt: skip
        assert await refused(opening) == "bad_reader_start"

    assert a.readers.get("strict") is None


@hosted
async def test_only_messages_within_the_bounds_are_reserved(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    await a.send("orders", *numbered(6))
    there = await arrivals(a)
    run = await opened(a)

    async def reserve(bounds: Bounds) -> int:
        reserved = await a.reservations.reserve(
            run.name, run.fence, run.queue, 0, 100, 0, bounds=bounds
        )
        return int(reserved["end"])

    assert await reserve(Bounds(at_ms=there[0][1] - 1)) == 0
    assert await reserve(Bounds(arrival=there[3][0])) == 4
    assert await reserve(Bounds(at_ms=there[-1][1])) == 6


@hosted
async def test_a_queue_is_added_to_a_current_run_and_to_no_older_one(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    run = await opened(a)
    await a.create("invoices")
    await a.send("invoices", *numbered(2))

    added = await a.reservations.open(
        run.name, ["orders", "invoices"], shared=False, start="oldest", fence=run.fence
    )

    assert added["fence"] == run.fence
    queue = added["queues"][1]["queue"]
    reserved = await a.reservations.reserve(run.name, run.fence, queue, 0, 10, 0)
    assert reserved["messages"] == 2
    await opened(a)  # a newer run
    again = a.reservations.open(run.name, ["orders"], shared=False, start="oldest", fence=run.fence)
    assert await refused(again) == "reader_fenced"


@hosted
async def test_a_reader_that_nobody_uses_ends_after_a_warning(hosts: Hosts) -> None:
    a = await hosts.start(pipeline={"reader_age_s": 1e-9})
    await a.create("orders")
    await a.send("orders", *numbered(2))
    run = await opened(a)
    await run.reserve(0)
    sweep = a.retention.tasks["end unused readers"]

    await sweep()

    assert a.readers.get("archive") is not None, "it has ended without a warning"
    deadline = time.monotonic() + PATIENCE_S
    while a.readers.get("archive") is not None:  # the loop's clock has whole milliseconds
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)
        await sweep()
    assert await refused(run.reserve(0)) == "no_such_reader"
    assert await a.receive("orders") == numbered(2)
    a = await hosts.restart(a)
    assert a.readers.get("archive") is None


@hosted
async def test_a_used_reader_never_ends(hosts: Hosts) -> None:
    a = await hosts.start(pipeline={"reader_age_s": 3600.0})
    await a.create("orders")
    await opened(a)
    for _ in range(3):
        await a.retention.tasks["end unused readers"]()
    assert a.readers.get("archive") is not None
