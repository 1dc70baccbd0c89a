"""Heartbeats between queue managers in one process."""

from __future__ import annotations

from protocol import parse_user_message
from qmd.control import peer_status
from qmd.control_protocol.messages import RECOVERABLE
from qmd.core.internal_names import HEARTBEAT_QUEUE
from qmd.doors.metrics.collection import Collector
from qmd.peers.connection import EXPRESS_MAX
from qmd.transfer.heartbeats import ANSWERS_MAX
from tests.integration.managers import Host, Hosts, hosted, until
from tests.integration.remote import guid, listening
from tests.process.remote import RemoteQueueManager

SOON = {"retry_first_s": 0.05, "retry_max_s": 0.1}


async def joined(hosts: Hosts) -> tuple[Host, Host, str]:
    """Return two hosts, of which the first has sent to the second, and the destination."""
    a, b = await hosts.start("a", delivery=SOON), await hosts.start("b")
    await b.create("orders")
    name = f"DIRECT=TCP:127.0.0.1:{b.port}\\private$\\orders"
    await a.send(name, b"x", delivery=RECOVERABLE)
    await until(lambda: not a.sending_to(name).messages, "the acknowledgment")
    return a, b, name


@hosted
async def test_a_heartbeat_is_answered_and_measured_and_nothing_is_stored(hosts: Hosts) -> None:
    a, b, name = await joined(hosts)
    link = a.sending_to(name).link
    assert a.heartbeats.status(link) is None

    a.heartbeats.beat()
    await until(lambda: a.heartbeats.pulse(link).arrived == 1, "the answer")

    found = peer_status.outgoing_queue(a.components, a.sending_to(name))["heartbeat"]
    assert (found["sent"], found["lost"], found["missed"]) == (1, 0, 0)
    assert found["latency_s"] > 0
    assert all(queue.name != HEARTBEAT_QUEUE for queue in b.queues.by_key.values())
    assert await b.receive("orders") == [b"x"]
    collector = Collector(a.socket, 5, 5)
    (row,) = (await collector.collect()).destinations
    await collector.close()
    assert row.heartbeat == [1, 0, 0, found["latency_s"]]


@hosted
async def test_answers_to_a_flood_of_heartbeats_are_bounded(hosts: Hosts) -> None:
    _, b, _ = await joined(hosts)
    (connection,) = b.peers.connections
    heartbeat = parse_user_message(RemoteQueueManager().message(HEARTBEAT_QUEUE, b""))
    before = connection.session.sent_count

    for _ in range(20 * ANSWERS_MAX):  # in one commit
        b.heartbeats.received(connection, heartbeat)
    await b.storage.batch.barrier()
    await until(lambda: connection.session.sent_count > before, "the answers")
    assert connection.session.sent_count - before + len(connection.owed_express) <= ANSWERS_MAX

    for _ in range(20 * EXPRESS_MAX):  # that a peer which acknowledges nothing leaves
        connection.owe_express(b"")
    assert len(connection.owed_express) <= EXPRESS_MAX
    connection.owed_express.clear()


@hosted
async def test_heartbeats_are_lost_without_a_session_and_open_one(hosts: Hosts) -> None:
    a, _, name = await joined(hosts)
    link = a.sending_to(name).link
    for connection in list(a.peers.connections):
        connection.close("the test ends it")
    await until(lambda: link.connection is None, "the end of the session")

    def has_session() -> bool:
        a.heartbeats.beat()
        return link.connection is not None

    await until(has_session, "a session")
    await until(lambda: a.heartbeats.pulse(link).arrived > 0, "the answer")

    found = a.heartbeats.pulse(link)
    assert found.lost > 0
    assert found.missed == 0


@hosted
async def test_a_queue_manager_that_is_not_qmd_gets_no_heartbeat(hosts: Hosts) -> None:
    a = await hosts.start()
    async with listening(guid(7)) as listener:
        name = listener.name("q")
        await a.send(name, b"1", delivery=RECOVERABLE)
        remote = await listener.session()
        await until(lambda: len(remote.messages) == 1, "the message")

        a.heartbeats.beat()
        await a.send(name, b"2", delivery=RECOVERABLE)
        await until(lambda: len(remote.messages) == 2, "the next message")

        assert a.heartbeats.status(a.sending_to(name).link) is None


@hosted
async def test_an_answer_over_another_session_counts_for_nothing(hosts: Hosts) -> None:
    a, b, name = await joined(hosts)
    link = a.sending_to(name).link
    a.heartbeats.beat()
    pulse = a.heartbeats.pulse(link)
    pulse.connection = None  # the session of the heartbeat is another one than that of its answer

    await until(lambda: b.heartbeats._answers == 0, "the answer")
    a.heartbeats.beat()
    await until(lambda: pulse.arrived == 1, "the second answer")

    assert (pulse.sent, pulse.lost) == (2, 1)
