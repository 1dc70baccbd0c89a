"""Moving messages with the client: in pieces, and never twice."""

from __future__ import annotations

import asyncio

from qmd.client import chosen, connect
from qmd.control_protocol import messages as frames
from tests.integration.client.peer import Peer


def test_all_messages_are_moved_in_pieces(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", b"1", b"22", b"333", b"4444", b"55555")
            peer.piece_max = 2

            moved = await qm.move("orders", "orders;retry")

            assert moved == (5, 15, 0)
            assert [one.packet for one in peer.queues["orders;retry"]][-1] == b"55555"
            assert [request.piece.until for request in peer.requests_of(frames.Move)] == [
                0,
                1000,
                1000,
            ]

    asyncio.run(scenario())


def test_no_more_messages_are_moved_than_requested(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", b"1", b"2", b"3", b"4", b"5")
            peer.piece_max = 2

            assert (await qm.move("orders", "orders;retry", limit=3)).messages == 3
            assert (
                await qm.move("orders", "x", chosen(lookup_ids=[5]), dry_run=True)
            ).messages == 1

            assert len(peer.queues["orders"]) == 2

    asyncio.run(scenario())


def test_a_move_with_a_lost_reply_is_not_repeated(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", b"1", b"2", b"3")
            peer.after.append(frames.Move)

            assert (await qm.move("orders", "orders;retry", limit=1)).messages == 1

            assert len(peer.requests_of(frames.Move)) == 1
            assert len(peer.queues["orders;retry"]) == 1

    asyncio.run(scenario())


def test_a_move_with_a_lost_request_is_repeated(tmp_path):
    async def scenario():
        async with Peer(tmp_path / "socket") as peer, connect(peer.path) as qm:
            peer.put("orders", b"1", b"2", b"3")
            peer.before.append(frames.Move)

            assert (await qm.move("orders", "orders;retry", limit=1)).messages == 1

            assert len(peer.queues["orders;retry"]) == 1

    asyncio.run(scenario())
