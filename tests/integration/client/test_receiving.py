"""Receiving: a message is removed before it is handed over, and never received twice, even if
the connection breaks in between."""

import asyncio

import pytest

from qmd.client import NotHandedOver, NotTaken, OutcomeUnknown, OverQuota, connect
from qmd.control_protocol import messages as frames
from qmd.control_protocol import operations as operator_frames
from tests.integration.client.peer import Peer
from tests.patience import END_S


def bodies(messages):
    return [message.stored.packet for message in messages]


def numbered(count):
    return [b"%d" % number for number in range(count)]


def test_a_received_message_is_deleted_from_its_queue(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", b"1", b"2")

            message = await qm.receive("orders")

            assert message.stored.packet == b"1"
            assert bodies([message]) == [b"1"]
            assert [one.packet for one in peer.queues["orders"]] == [b"2"]
            assert peer.connections[0].taken == {}

    asyncio.run(scenario())


def test_an_empty_queue_returns_no_message_at_once_or_after_the_wait(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            assert await qm.receive("orders") is None
            assert await qm.receive_many("orders", 10) == []
            assert await qm.receive("orders", timeout_s=0.05) is None

    asyncio.run(scenario())


def test_a_message_that_comes_later_is_waited_for(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            receiving = asyncio.create_task(qm.receive("orders", timeout_s=None))
            await peer.seen(frames.Take)
            peer.put("orders", b"1")

            assert bodies([await receiving]) == [b"1"]

    asyncio.run(scenario())


@pytest.mark.parametrize("verb", [frames.Take, frames.Remove])
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_broken_connection_loses_and_doubles_no_message(tmp_path, verb, place):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", *numbered(5))
            getattr(peer, place).append(verb)

            received = [await qm.receive("orders") for _ in range(5)]

            assert bodies(received) == numbered(5)
            assert peer.queues["orders"] == []

    asyncio.run(scenario())


@pytest.mark.parametrize("verb", [frames.Take, frames.Remove])
@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("prefetch", [True, False])
def test_iteration_survives_broken_connections(tmp_path, verb, place, prefetch):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", *numbered(100))
            received = []
            async for message in qm.receive_each(
                "orders", timeout_s=0, batch=10, prefetch=prefetch
            ):
                received.append(message)
                if len(received) % 30 == 5:
                    getattr(peer, place).append(verb)

            assert bodies(received) == numbered(100)

    asyncio.run(scenario())


def test_only_the_vanished_message_of_a_batch_is_skipped(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", *numbered(3))
            peer.refusals[frames.Remove] = frames.Refused(0, "not_taken", "one is not there")

            assert bodies(await qm.receive_many("orders", 3)) == numbered(3)
            assert len(peer.requests_of(frames.GiveBack)) == 1

    asyncio.run(scenario())


def test_prefetched_messages_do_not_overtake_those_that_went_back(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", *numbered(30))
            peer.refusals[frames.Remove] = frames.Refused(0, "not_taken", "one is not there")

            received = [one async for one in qm.receive_each("orders", timeout_s=0, batch=10)]

            assert bodies(received) == numbered(30)

    asyncio.run(scenario())


def test_messages_go_back_when_their_removal_is_refused(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", b"1")
            peer.refusals[frames.Remove] = frames.Refused(0, "over_quota", "no")

            with pytest.raises(OverQuota):
                await qm.receive("orders")

            assert [one.packet for one in peer.queues["orders"]] == [b"1"]

    asyncio.run(scenario())


def test_a_removal_with_an_unknown_outcome_raises_an_error_with_its_messages(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path, reconnect_s=0.1) as qm:
            peer.put("orders", b"1")
            peer.dies_after.append(frames.Remove)

            with pytest.raises(OutcomeUnknown) as caught:
                await qm.receive("orders")
            assert bodies(caught.value.messages) == [b"1"]

            await peer.listen()
            assert await qm.outcome(caught.value.token) == 1

    asyncio.run(scenario())


def test_a_message_for_a_cancelled_receiver_goes_back(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            receiving = asyncio.create_task(qm.receive("orders", timeout_s=None))
            await peer.seen(frames.Take)
            receiving.cancel()
            await asyncio.wait([receiving])
            peer.put("orders", b"1")
            await peer.seen(frames.GiveBack)

            assert bodies([await qm.receive("orders")]) == [b"1"]

    asyncio.run(scenario())


def test_a_message_removed_for_a_cancelled_receiver_goes_to_the_next_receiver(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", b"1", b"2")
            receiving = asyncio.create_task(qm.receive("orders"))
            await peer.seen(frames.Remove)
            receiving.cancel()
            await asyncio.wait([receiving])
            assert receiving.cancelled()

            assert bodies([await qm.receive("orders", timeout_s=1)]) == [b"1"]
            assert bodies([await qm.receive("orders")]) == [b"2"]

    asyncio.run(scenario())


def test_a_receiver_that_waits_gets_the_message_removed_for_a_cancelled_one(tmp_path):
    """It has asked the daemon for another message already, which comes only later, or never."""

    async def scenario(each):
        async with Peer(tmp_path / f"socket{each}") as peer, connect(peer.path) as qm:
            receiving = asyncio.create_task(qm.receive("orders", timeout_s=None))
            await peer.seen(frames.Take)
            waiting = asyncio.create_task(
                anext(qm.receive_each("orders", timeout_s=None))
                if each
                else qm.receive("orders", timeout_s=None)
            )
            await peer.seen(frames.Take, 2)
            peer.put("orders", b"1")
            await peer.seen(frames.Remove)
            receiving.cancel()
            await asyncio.wait([receiving])
            assert receiving.cancelled()

            message = await asyncio.wait_for(waiting, END_S)
            assert message.stored.packet == b"1"
            peer.put("orders", b"2")
            assert bodies([await qm.receive("orders", timeout_s=END_S)]) == [b"2"]

    for each in (False, True):
        asyncio.run(scenario(each))


def test_iteration_ends_after_a_while_without_messages(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", *numbered(3))
            received = [one async for one in qm.receive_each("orders", timeout_s=0.05)]

            assert bodies(received) == numbered(3)

    asyncio.run(scenario())


def test_an_iteration_that_is_left_early_keeps_the_rest_of_its_batch(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", *numbered(30))
            async for message in qm.receive_each("orders", batch=10):
                assert message.stored.packet == b"0"
                break
            await peer.seen(frames.GiveBack)

            assert bodies(qm.unread) == numbered(10)[1:]
            rest = [one async for one in qm.receive_each("orders", timeout_s=0)]
            assert bodies(rest) == numbered(30)[1:]

    asyncio.run(scenario())


def test_closing_with_unread_messages_raises_them(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", *numbered(3))
            async for _ in qm.receive_each("orders"):
                break

    with pytest.raises(NotHandedOver) as caught:
        asyncio.run(scenario())
    assert bodies(caught.value.messages) == numbered(3)[1:]


def test_two_iterations_share_a_queue(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", *numbered(200))
            received = []

            async def work():
                async for message in qm.receive_each("orders", timeout_s=0, batch=7):
                    received.append(message.stored.packet)
                    await asyncio.sleep(0)

            await asyncio.gather(work(), work())

            assert sorted(received, key=int) == numbered(200)

    asyncio.run(scenario())


def test_taken_messages_are_removed_when_the_work_is_done(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", *numbered(3))

            async with await qm.take("orders", limit=2) as taken:
                assert bodies(taken.messages) == numbered(2)
                await taken.remove()

            assert [one.packet for one in peer.queues["orders"]] == [b"2"]

    asyncio.run(scenario())


def test_taken_messages_go_back_when_the_work_fails(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", *numbered(3))

            async def work():
                async with await qm.take("orders", limit=2):
                    raise KeyError

            with pytest.raises(KeyError):
                await work()
            assert [one.packet for one in peer.queues["orders"]] == numbered(3)

    asyncio.run(scenario())


def test_taken_messages_that_went_back_cannot_be_removed(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", b"1")
            taken = await qm.take("orders")
            peer.before.append(operator_frames.Status)
            peer.refusals[operator_frames.Status] = frames.Refused(0, "bad_request", "no")
            with pytest.raises(Exception, match="no"):
                await qm.status()

            with pytest.raises(NotTaken, match="take them again"):
                await taken.remove()

    asyncio.run(scenario())


def test_a_complete_queue_can_be_browsed_without_changes(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", *numbered(600))

            seen = [message async for message in qm.peek_each("orders")]
            some = await qm.peek("orders", seen[100].lookup_id, 5)

            assert bodies(seen) == numbered(600)
            assert bodies(some) == numbered(600)[100:105]
            assert len(peer.queues["orders"]) == 600

    asyncio.run(scenario())
