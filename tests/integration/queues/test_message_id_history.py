"""Duplicates of non-transactional messages: detected as long as the source may resend them."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from qmd.config.route_rules import parse_pattern
from qmd.queues import message_id_history as known_messages
from tests.integration.managers import Host, Hosts, bodies, hosted, until
from tests.integration.remote import dial, packet

DAY_S = 86400
WINDOW = 50
FROM_RELAYS: dict[str, Any] = {"relays": (parse_pattern("127.0.0.0/8").network,)}
FLOOD = 10_100  # more than the 10,000 that Windows keeps for all sources together


def letters(source: bytes, numbers: range, **properties: Any) -> Iterator[bytes]:
    for number in numbers:
        yield packet(b"%d" % number, source=source, number=number, **properties)


async def deliver(host: Host, via: bytes, packets: list[bytes], **settings: Any) -> None:
    """Send packets over a new session, and wait until all are acknowledged."""
    remote = await dial(host, via, **settings)
    for at in range(0, len(packets), WINDOW):
        some = packets[at : at + WINDOW]
        remote.send(*some)
        await until(lambda: len(remote.acknowledged) >= at + len(some), "their acknowledgments")  # noqa: B023
    remote.close()
    await remote.closed.wait()


@hosted
async def test_a_busy_source_does_not_displace_the_history_of_others(hosts: Hosts) -> None:
    a, busy = await hosts.start("a"), await hosts.start("busy")
    await a.create("orders")
    quiet = bytes([7]) * 16
    await deliver(a, quiet, list(letters(quiet, range(1, WINDOW + 1))))
    for _ in range(10):
        await busy.send(
            f"DIRECT=TCP:127.0.0.1:{a.port}\\private$\\orders", *[b"busy"] * (FLOOD // 10)
        )
    await until(lambda: a.queue("orders").messages == WINDOW + FLOOD, "the busy one's")

    again = list(letters(quiet, range(1, WINDOW + 2)))
    await deliver(a, quiet, again)

    assert a.queue("orders").messages == WINDOW + FLOOD + 1
    assert a.incoming.duplicate_count == WINDOW

    a = await hosts.restart(a)
    await deliver(a, quiet, again)
    assert a.queue("orders").messages == WINDOW + FLOOD + 1


@hosted
async def test_a_source_that_returns_after_days_is_still_known(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    source, endless = bytes([7]) * 16, {"time_to_reach_queue_s": 0xFFFFFFFF}
    again = list(letters(source, range(1, WINDOW + 1), **endless))
    await deliver(a, source, again)
    for _ in range(3):
        a.world.ahead_s += DAY_S
        await a.retention.forget_old()
        a = await hosts.restart(a)

    await deliver(a, source, again)

    assert a.queue("orders").messages == WINDOW


@hosted
async def test_duplicates_of_overtaken_messages_are_detected(hosts: Hosts) -> None:
    """The same source sends every other number to another queue manager."""
    a = await hosts.start()
    await a.create("orders")
    source = bytes([7]) * 16
    again = list(letters(source, range(1, 2 * WINDOW, 2), priority=0))
    await deliver(a, source, again)
    await deliver(a, source, list(letters(source, range(1000, 1000 + 2 * 2000, 2), priority=7)))

    await deliver(a, source, again)

    assert a.queue("orders").messages == WINDOW + 2000


@hosted
async def test_a_duplicate_is_detected_over_any_session(hosts: Hosts) -> None:
    """The duplicate may come over another relay, or directly from its source."""
    a = await hosts.start(peers=FROM_RELAYS)
    await a.create("orders")
    source = bytes([7]) * 16
    again = list(letters(source, range(1, 4)))
    for via in (bytes([8]) * 16, bytes([9]) * 16, source):
        await deliver(a, via, again)
        a = await hosts.restart(a)

    assert bodies(await a.peek("orders")) == [b"1", b"2", b"3"]


@hosted
async def test_invented_sources_displace_only_each_other(hosts: Hosts) -> None:
    """Of a relay that is not honest; from other hosts they are refused."""
    a = await hosts.start(peers=FROM_RELAYS)
    await a.create("orders")
    a.known_messages._bytes_max = 50_000
    honest, outsider = bytes([7]) * 16, bytes([9]) * 16
    again = list(letters(honest, range(1, WINDOW + 1)))
    await deliver(a, honest, again)

    made_up = [b"made up!" + number.to_bytes(8, "big") for number in range(1000)]
    await deliver(a, outsider, [packet(source=each, number=1) for each in made_up])
    await deliver(a, honest, again)

    assert a.queue("orders").messages == WINDOW + 1000
    assert a.known_messages.bytes <= 50_000
    assert a.known_messages.has(made_up[-1], 1, "")
    assert not a.known_messages.has(made_up[0], 1, "")
    (rows,) = await a.storage.read(
        lambda db: db.execute("SELECT count(*) FROM message_id_history").fetchone()
    )
    assert rows < 50

    known = [each for each in made_up if a.known_messages.has(each, 1, "")]
    a = await hosts.restart(a)
    assert [each for each in made_up if a.known_messages.has(each, 1, "")] == known
    await deliver(a, honest, again)
    assert a.queue("orders").messages == WINDOW + 1000


@hosted
async def test_untrusted_sources_with_sessions_leave_a_known_source_its_share(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    a.known_messages._bytes_max = 100_000
    honest = bytes([7]) * 16
    again = list(letters(honest, range(1, 2 * WINDOW, 2)))
    await deliver(a, honest, again)

    for number in range(1, 21):
        made_up = b"made up!" + number.to_bytes(8, "big")
        await deliver(a, made_up, list(letters(made_up, range(1, 4 * 600, 4))))
    await deliver(a, honest, again)

    assert a.queue("orders").messages == WINDOW + 20 * 600
    assert a.known_messages.bytes <= 110_000  # the newest segment is never cut


@hosted
async def test_a_forgotten_identity_may_reuse_its_numbers(hosts: Hosts) -> None:
    """An operator does this with a machine that was restored from an older state."""
    a = await hosts.start()
    await a.create("orders")
    source = bytes([7]) * 16
    await deliver(a, source, list(letters(source, range(1, 4))))

    a.identities.forget(source)
    await deliver(a, source, list(letters(source, range(1, 4))))
    a = await hosts.restart(a)
    await deliver(a, source, list(letters(source, range(1, 4))))

    assert a.queue("orders").messages == 6


@hosted
async def test_the_memory_of_histories_is_counted(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders")
    known = a.known_messages
    assert known.bytes == 0
    for number in range(1, 4):
        source = bytes([number]) * 16
        await deliver(a, source, list(letters(source, range(1, 300, number))))
    counted = sum(each.measured() for each in known._histories.values())
    assert counted == known.bytes == sum(each.bytes for each in known._histories.values())
    a = await hosts.restart(a)
    assert a.known_messages.bytes == counted
    assert counted < known_messages.BYTES_MAX
    last = next(each.bytes for each in a.known_messages._histories.values() if each.is_newest(3))
    for number in range(1, 3):
        a.known_messages.forget_source(bytes([number]) * 16)
    assert a.known_messages.bytes == last


@hosted
async def test_a_history_takes_what_is_counted_for_it(hosts: Hosts) -> None:
    """And nothing of the batch that its numbers went to disk with: its source may never return."""
    a = await hosts.start()
    known = a.known_messages

    async def come(sources: range) -> None:
        for number in sources:
            made_up = number.to_bytes(16, "big")
            outsider: Any = SimpleNamespace(
                host="127.0.0." + str(number % 200),
                session=SimpleNamespace(remote_id=made_up),
                origin_for=lambda source: "127.0.0.1",
            )
            for at in range(1, 200, 2):
                known.add(outsider, made_up, at)
        await a.settled()

    await come(range(1, 101))  # what tables and caches take once
    tracemalloc.start()
    try:
        counted_before = known.bytes
        for first in range(101, 1101, 100):
            await come(range(first, first + 100))
        await come(range(1, 2))  # a source that is known, in a batch of its own
        gc.collect()
        took, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    counted = known.bytes - counted_before
    assert len(known._histories) == 1100
    assert took < 1.1 * counted
