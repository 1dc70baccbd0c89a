"""Reconnecting, and the requests that were outstanding when the connection broke."""

import asyncio

import pytest

from qmd.client import NoSuchQueue, NotConnected, OutcomeUnknown, QueueManagerError, connect
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames
from tests.integration.client.peer import Peer


def test_the_first_connection_is_not_retried(tmp_path):
    async def scenario():
        async with connect(tmp_path / "socket", reconnect_s=1000):
            pass

    with pytest.raises(NotConnected):
        asyncio.run(scenario())


def test_a_request_that_changes_nothing_is_repeated(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", b"1")
            peer.before.append(frames.Peek)

            (message,) = await qm.peek("orders")

            assert message.stored.packet == b"1"
            assert len(peer.requests_of(frames.Hello)) == 2

    asyncio.run(scenario())


def test_a_daemon_that_was_restarted_is_found_again(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            await peer.stop()
            listing = asyncio.create_task(qm.list_queues())
            await asyncio.sleep(0)
            await peer.listen()

            assert await listing == []

    asyncio.run(scenario())


def test_reconnecting_ends_after_its_time_limit(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path, reconnect_s=0.1) as qm:
            await peer.stop()

            with pytest.raises(NotConnected):
                await qm.list_queues()

    asyncio.run(scenario())


def test_a_daemon_that_stops_is_waited_for(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.refusals[operator_frames.PurgeQueue] = frames.Refused(0, "stopping", "it stops")
            peer.put("orders", b"1")

            assert await qm.purge_queue("orders") == 1

    asyncio.run(scenario())


def test_a_change_with_a_lost_reply_raises_an_error_that_permits_repetition(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.after.append(operator_frames.PurgeQueue)

            with pytest.raises(OutcomeUnknown) as caught:
                await qm.purge_queue("orders")

            assert caught.value.safe_to_retry
            assert await qm.purge_queue("orders") == 0

    asyncio.run(scenario())


def test_a_send_without_retry_raises_an_error_that_forbids_repetition(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.after.append(frames.Send)

            with pytest.raises(OutcomeUnknown) as caught:
                await qm.send("orders", b"1", retry=False)

            assert not caught.value.safe_to_retry

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("code", "kind", "id"),
    [
        ("no_such_queue", NoSuchQueue, "QM-1201"),
        ("no_such_outgoing_queue", NoSuchQueue, "QM-1203"),
        ("new", QueueManagerError, ""),
    ],
)
def test_a_refusal_raises_the_exception_of_its_family(tmp_path, code, kind, id):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.refusals[operator_frames.ShowQueue] = frames.Refused(
                0, code, "There is none.", "make one"
            )

            with pytest.raises(kind) as caught:
                await qm.show_queue("orders")

            assert (caught.value.code, caught.value.id) == (code, id)
            assert str(caught.value) == "There is none; make one"

    asyncio.run(scenario())


def test_another_queue_manager_at_the_same_socket_is_detected(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path, reconnect_s=0.1) as qm:
            peer.before.append(operator_frames.Status)
            peer.id = peer.id.replace("aa", "bb")

            with pytest.raises(NotConnected, match="another queue manager"):
                await qm.status()

    asyncio.run(scenario())


def test_another_version_of_the_protocol_is_detected(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer:
            peer.version += 1
            with pytest.raises(NotConnected, match="version"):
                async with connect(peer.path):
                    pass

    asyncio.run(scenario())


def test_errors_of_the_library_itself_have_ids(tmp_path):
    async def scenario():
        with pytest.raises(NotConnected) as caught:
            async with connect(tmp_path / "nobody"):
                pass
        assert (caught.value.code, caught.value.id) == ("no_control_socket", "QM-4001")

    asyncio.run(scenario())
