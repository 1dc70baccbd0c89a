"""Sending one message, a batch, or a stream: each message exactly once and in order."""

import asyncio

import pytest

from qmd.client import (
    Acknowledge,
    BadRequest,
    NotConnected,
    OverQuota,
    TooLarge,
    connect,
    new_message,
)
from qmd.client.sender import BATCH_MESSAGES_MAX
from qmd.control_protocol import messages as frames
from tests.integration.client.peer import Peer


def bodies(peer, queue="orders"):
    return [stored.packet for stored in peer.queues[queue]]


def test_a_message_is_sent_with_its_properties(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            message_id = await qm.send(
                "orders",
                "zwölf",
                label="order 12",
                delivery="transactional",
                time_to_reach_queue_s=30,
                correlation_id="01020304-0506-0708-090a-0b0c0d0e0f10\\7",
                acknowledge=Acknowledge.FULL_RECEIVE,
                admin_queue="acks",
            )

            assert message_id == f"{peer.id}\\1"
            ((message,),) = [request.messages for request in peer.requests_of(frames.Send)]
            assert message == frames.NewMessage(
                "orders",
                "zwölf".encode(),
                label="order 12",
                delivery=frames.TRANSACTIONAL,
                time_to_reach_queue_s=30,
                correlation_id=bytes.fromhex("0403020106050807090a0b0c0d0e0f1007000000"),
                acknowledge=14,
                admin_queue="acks",
            )

    asyncio.run(scenario())


def test_an_unknown_delivery_is_refused_by_the_client():
    with pytest.raises(ValueError, match="'certified'; it must be one of automatic, express"):
        new_message("orders", delivery="certified")


def test_a_body_above_the_limit_of_the_daemon_is_refused_by_the_client(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer:
            peer.message_bytes_max = 10
            async with connect(peer.path) as qm:
                assert qm.message_bytes_max == 10
                with pytest.raises(TooLarge, match="the body has 11 bytes; 10 are allowed") as one:
                    await qm.send("orders", b"x" * 11)
                with pytest.raises(TooLarge):
                    await qm.send_many([new_message("orders"), new_message("orders", b"x" * 11)])
                async with qm.sender("orders") as sender:
                    with pytest.raises(TooLarge):
                        await sender.send(b"x" * 11)
                    await sender.send(b"x" * 10)
                assert one.value.code == "body_too_large"
            assert [len(each.messages) for each in peer.requests_of(frames.Send)] == [1]

    asyncio.run(scenario())


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_message_is_sent_once_when_the_connection_breaks(tmp_path, place):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            getattr(peer, place).append(frames.Send)

            message_id = await qm.send("orders", b"1")

            assert bodies(peer) == [b"1"]
            assert message_id == f"{peer.id}\\1"

    asyncio.run(scenario())


def test_a_later_client_can_ask_for_the_outcome_of_a_token(tmp_path):
    token, other = bytes(range(16)), bytes(16)

    async def scenario():
        async with Peer(tmp_path / "socket") as peer:
            async with connect(peer.path) as qm:
                ids = await qm.send_many([new_message("orders", b"1")], token=token)
            async with connect(peer.path) as qm:
                assert await qm.outcome(token) == ids
                assert await qm.outcome(other) is None

    asyncio.run(scenario())


def test_many_messages_are_sent_in_batches_and_confirmed_in_order(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            confirmed = []
            async with qm.sender("orders") as sender:
                for number in range(1000):
                    future = await sender.send(b"%d" % number)
                    future.add_done_callback(lambda done: confirmed.append(done.result()))

            assert bodies(peer) == [b"%d" % number for number in range(1000)]
            assert confirmed == [f"{peer.id}\\{number}" for number in range(1, 1001)]
            sizes = [len(request.messages) for request in peer.requests_of(frames.Send)]
            assert max(sizes) == BATCH_MESSAGES_MAX
            assert len(sizes) < 20

    asyncio.run(scenario())


def test_a_single_message_does_not_wait_for_others(tmp_path):
    async def scenario():
        async with (
            Peer(tmp_path / "socket") as peer,
            connect(peer.path) as qm,
            qm.sender("orders") as sender,
        ):
            assert await (await sender.send(b"1")) == f"{peer.id}\\1"
            assert await (await sender.send(b"2")) == f"{peer.id}\\2"

    asyncio.run(scenario())


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("breaks", [1, 3])
def test_order_survives_a_connection_that_breaks_under_a_full_window(tmp_path, place, breaks):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            async with qm.sender("orders") as sender:
                for number in range(3000):
                    await sender.send(b"%d" % number)
                    if number % 1000 == 500:
                        getattr(peer, place).extend([frames.Send] * breaks)

            assert bodies(peer) == [b"%d" % number for number in range(3000)]

    asyncio.run(scenario())


def test_a_sender_waits_while_its_window_is_full(tmp_path):
    async def scenario():
        async with (
            Peer(tmp_path / "socket") as peer,
            connect(peer.path) as qm,
            qm.sender("orders", window=10) as sender,
        ):
            futures = []
            for _ in range(100):
                futures.append(await sender.send(b""))
                assert sum(not future.done() for future in futures) <= 10

    asyncio.run(scenario())


def test_a_refusal_ends_the_sender_and_later_messages_are_not_sent(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            first, second = None, None

            async def send():
                nonlocal first, second
                async with qm.sender("orders") as sender:
                    first = await sender.send(b"1")
                    await first
                    peer.refusals[frames.Send] = frames.Refused(0, "over_quota", "full")
                    second = await sender.send(b"2")
                    await asyncio.wait([second])
                    await sender.send(b"3")

            with pytest.raises(OverQuota):
                await send()

            assert first.result() == f"{peer.id}\\1"
            assert isinstance(second.exception(), OverQuota)
            assert bodies(peer) == [b"1"]

    asyncio.run(scenario())


def test_closing_a_sender_raises_unawaited_errors(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.refusals[frames.Send] = frames.Refused(0, "over_quota", "full")

            async def send():
                async with qm.sender("orders") as sender:
                    await sender.send(b"1")

            with pytest.raises(OverQuota):
                await send()

    asyncio.run(scenario())


def test_a_sender_gives_up_if_the_daemon_stays_away(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path, reconnect_s=0.1) as qm:

            async def send():
                async with qm.sender("orders") as sender:
                    await (await sender.send(b"1"))
                    await peer.stop()
                    for _ in range(300):
                        await sender.send(b"2")

            with pytest.raises(Exception, match="no control socket"):
                await send()

    asyncio.run(scenario())


def test_a_failed_block_does_not_send_waiting_messages(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            future = None

            async def send():
                nonlocal future
                async with qm.sender("orders") as sender:
                    future = await sender.send(b"1")
                    raise KeyError

            with pytest.raises(KeyError):
                await send()

            assert future.cancelled()
            assert bodies(peer) == []

    asyncio.run(scenario())


def test_a_closed_sender_sends_no_messages(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer:
            async with connect(peer.path) as qm:
                pass
            with pytest.raises(NotConnected, match="closed"):
                await qm.send("orders", b"1")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "properties", [{"application_tag": 2**64}, {"label": "\udcff"}], ids=["number", "text"]
)
def test_a_value_that_a_frame_cannot_encode_is_refused_and_the_connection_stays_open(
    tmp_path, properties
):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            with pytest.raises(BadRequest) as caught:
                await qm.send("orders", b"1", **properties)
            assert caught.value.code == "argument_unsendable"

            await qm.send("orders", b"2")
            assert len(bodies(peer)) == 1

    asyncio.run(scenario())


def test_a_number_is_not_a_valid_body():
    with pytest.raises(TypeError):
        new_message("orders", 5)

    assert new_message("orders", bytearray(b"5")).body == b"5"


def test_a_lone_message_leaves_in_the_next_pass_of_the_loop(tmp_path):
    async def scenario():
        async with (
            Peer(tmp_path / "socket") as peer,
            connect(peer.path) as qm,
            qm.sender("orders") as sender,
        ):
            await (await sender.send("first"))
            connection = qm._caller.live_connection
            written = []
            connection._transport = Recorded(connection._transport, written)
            confirmed = [await sender.send("second"), await sender.send("third")]
            assert not written
            await asyncio.sleep(0)
            assert len(written) == 1, "both are in one request"
            assert await asyncio.gather(*confirmed) == [f"{peer.id}\\2", f"{peer.id}\\3"]

    asyncio.run(scenario())


class Recorded:
    """A transport that notes what is written."""

    def __init__(self, transport, written):
        self._transport, self._written = transport, written

    def write(self, data):
        self._written.append(data)
        self._transport.write(data)

    def __getattr__(self, name):
        return getattr(self._transport, name)
