"""Streams of transactional messages: identified by the name that the source uses for the queue."""

from __future__ import annotations

import sqlite3
from collections import Counter

import structlog.testing

from qmd.queues import incoming_sequences as incoming_streams
from storage.tables.sequences import encode_sequence_id
from tests.integration.managers import Host, Hosts, hosted, until
from tests.integration.remote import Remote, dial, guid, listening, packet

SOURCE = guid(9)
EARLIER, KNOWN, LATER = (seconds << 32 | 1 for seconds in (100, 200, 300))
#: Two spellings of one queue are two different names in packets.
ONE, OTHER = "orders", "ORDERS"


async def _with_a_stream_of_an_older_version(hosts: Hosts) -> tuple[Host, Remote]:
    """Start a host that has accepted number 3 of a sequence under an unknown name of the queue.

    Returns the host, and a session of the source.
    """
    a = await hosts.start()
    queue = await a.create("orders", transactional=True)
    row = (SOURCE, queue.id, encode_sequence_id(KNOWN))
    await a.storage.batch.run(
        lambda db: (
            db.execute(
                "INSERT INTO incoming_sequence (source, queue_id, sequence_id, number, last_seen_s)"
                " VALUES (?, ?, ?, 3, 0)",
                row,
            ).rowcount
        )
    )
    a = await hosts.restart(a)
    return a, await dial(a, SOURCE)


class _Source:
    """A source that sends single messages and returns whether each was accepted."""

    def __init__(self, host: Host, remote: Remote) -> None:
        self._host, self._remote = host, remote
        self._number = 0

    async def takes(self, name: str, sequence_id: int, number: int) -> bool:
        before = self._host.queue("orders").messages
        self._number += 1
        position = (sequence_id, number, number - 1)
        sent = packet(b"", source=SOURCE, number=self._number, queue=name, position=position)
        self._remote.send(sent)
        await until(lambda: sent in self._remote.acknowledged, "the session's acknowledgment")
        await self._host.settled()
        return self._host.queue("orders").messages > before


@hosted
async def test_an_earlier_sequence_is_rejected_while_the_name_of_the_stream_is_unknown(
    hosts: Hosts,
) -> None:
    a, remote = await _with_a_stream_of_an_older_version(hosts)
    source = _Source(a, remote)

    assert not await source.takes(ONE, EARLIER, 1), "it may have been taken before"
    assert not await source.takes(OTHER, KNOWN, 3)
    assert await source.takes(OTHER, KNOWN, 4)
    assert await source.takes(ONE, EARLIER, 1), "a sequence of its own, as is known now"


@hosted
async def test_a_named_stream_is_not_renamed(hosts: Hosts) -> None:
    a, remote = await _with_a_stream_of_an_older_version(hosts)
    source = _Source(a, remote)

    assert await source.takes(ONE, KNOWN, 4)
    assert await source.takes(OTHER, LATER, 1)
    assert await source.takes(ONE, KNOWN, 5), "the other name's sequence is later, and not its own"

    a = await hosts.restart(a)
    source = _Source(a, await dial(a, SOURCE))
    source._number = 100
    assert await source.takes(ONE, KNOWN, 6)
    assert await source.takes(OTHER, LATER, 2)


@hosted
async def test_a_later_sequence_gives_a_stream_its_name(hosts: Hosts) -> None:
    a, remote = await _with_a_stream_of_an_older_version(hosts)
    a.origins.pin(SOURCE, "127.0.0.1")
    source = _Source(a, remote)

    assert await source.takes(ONE, LATER, 1)
    assert not await source.takes(ONE, KNOWN, 4), "it has been given up"
    assert await source.takes(OTHER, KNOWN, 1), "another name, another stream"


@hosted
async def test_a_sequence_is_given_up_also_if_its_origin_is_unknown(hosts: Hosts) -> None:
    a, remote = await _with_a_stream_of_an_older_version(hosts)
    source = _Source(a, remote)

    assert await source.takes(ONE, LATER, 1), "of a source without a primary origin"
    assert not await source.takes(ONE, KNOWN, 4), "it has been given up"
    assert await source.takes(ONE, LATER, 2)


@hosted
async def test_the_log_names_the_limit_of_streams_that_was_reached(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    remote = await dial(a, SOURCE)
    names = [
        "".join(c.upper() if bits >> place & 1 else c for place, c in enumerate("orders"))
        for bits in range(64)
    ]
    before, incoming_streams.NAMES_MAX = incoming_streams.NAMES_MAX, len(names) - 1
    try:
        with structlog.testing.capture_logs() as logs:
            for number, name in enumerate(names):
                position = (KNOWN + (number << 32), 1, 0)
                remote.send(
                    packet(b"", source=SOURCE, number=number + 1, queue=name, position=position)
                )
            await until(lambda: len(remote.acknowledged) == len(names), "the acknowledgments")
    finally:
        incoming_streams.NAMES_MAX = before

    (line,) = [each for each in logs if each["event"].startswith("too_many")]
    assert line["event"] == "too_many_names_of_a_queue"
    assert line["limit"] == len(names) - 1
    await until(lambda: a.queue("orders").messages == len(names) - 1)
    assert not remote.closed.is_set(), "its other messages are not held up"


@hosted
async def test_made_up_sources_displace_each_other_only(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    before, incoming_streams.STREAMS_MAX = incoming_streams.STREAMS_MAX, 20

    async def takes_from(source: bytes, body: bytes) -> Remote:
        remote = await dial(a, source)
        sent = packet(body, source=source, number=1, position=(KNOWN, 1, 0))
        remote.send(sent)
        await until(lambda: sent in remote.acknowledged, "the session's acknowledgment")
        return remote

    try:
        async with listening(SOURCE) as listener:
            # A queue manager that this one has dialled.
            await a.send(listener.name("q"), b"hello")
            await listener.session()
            genuine = await takes_from(SOURCE, b"genuine")
            for made_up in range(100, 150):
                (await takes_from(guid(made_up), b"made up")).close()
                assert len(a.incoming_streams.all()) <= 20

            newcomer = await takes_from(guid(200), b"newcomer")
            genuine.send(packet(b"again", source=SOURCE, number=2, position=(KNOWN, 2, 1)))
            await until(lambda: a.queue("orders").messages == 53, "all messages")
            await a.settled()
            sources = [stream.source for stream in a.incoming_streams.all()]
            assert {SOURCE, guid(200)} <= set(sources)
            assert await _rows(a) == len(sources) <= 20
            newcomer.close()
            genuine.close()

        a = await hosts.restart(a)
        assert {SOURCE, guid(200)} <= {stream.source for stream in a.incoming_streams.all()}
    finally:
        incoming_streams.STREAMS_MAX = before


@hosted
async def test_a_full_table_forgets_streams_of_the_address_with_the_most(hosts: Hosts) -> None:
    a = await hosts.start()
    await a.create("orders", transactional=True)
    queue, streams = a.queue("orders"), a.incoming_streams
    before, incoming_streams.STREAMS_MAX = incoming_streams.STREAMS_MAX, 20

    def begin(source: int, host: str) -> bool:
        if streams.limit(guid(source), queue, host) is not None:
            return False
        streams.begin(guid(source), queue, (7, b"name"), host, host)
        return True

    try:
        assert all(begin(each, "10.0.0.1") for each in range(1, 5))
        assert all(begin(each, "10.0.0.2") for each in range(5, 21))
        assert all(begin(each, "10.0.0.3") for each in range(21, 25))

        found = Counter(stream.host for stream in streams.all())
        assert (found["10.0.0.1"], found["10.0.0.3"]) == (4, 4)
        assert found["10.0.0.2"] <= 12
        await a.settled()
    finally:
        incoming_streams.STREAMS_MAX = before


async def _rows(host: Host) -> int:
    def count(db: sqlite3.Connection) -> int:
        return int(db.execute("SELECT count(*) FROM incoming_sequence").fetchone()[0])

    return await host.storage.read(count)
