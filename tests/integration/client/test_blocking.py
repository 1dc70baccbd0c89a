"""The blocking client: the same verbs, through one wrapper."""

import threading

import pytest

from qmd.client import NotConnected, OverQuota, blocking
from qmd.control_protocol import messages as frames
from tests.integration.client.peer import peer_in_thread


@pytest.fixture
def peer(tmp_path):
    with peer_in_thread(tmp_path / "socket") as peer:
        yield peer


def test_a_sent_message_can_be_received(peer):
    with blocking.connect(peer.path) as qm:
        message_id = qm.send("orders", b"1", label="one")
        message = qm.receive("orders", timeout_s=5)

        assert message_id == f"{peer.id}\\1"
        assert message.stored.packet == b"1"
        assert qm.name == "hosta"


def test_a_sender_returns_futures(peer):
    with blocking.connect(peer.path) as qm:
        with qm.sender("orders") as sender:
            futures = [sender.send(b"%d" % number) for number in range(300)]
            assert futures[0].result() == f"{peer.id}\\1"

        assert [one.packet for one in peer.queues["orders"]] == [b"%d" % n for n in range(300)]


def test_messages_can_be_iterated_with_for(peer):
    with blocking.connect(peer.path) as qm:
        qm.send_many([frames.NewMessage("orders", b"%d" % n) for n in range(100)])

        assert len(list(qm.peek_each("orders"))) == 100
        received = [message.stored.packet for message in qm.receive_each("orders", timeout_s=0)]

        assert received == [b"%d" % number for number in range(100)]


def test_taken_messages_are_settled_at_the_end_of_a_with_block(peer):
    with blocking.connect(peer.path) as qm:
        qm.send_many([frames.NewMessage("orders", b"1"), frames.NewMessage("orders", b"2")])
        with qm.take("orders", limit=5) as taken:
            assert len(taken) == 2
        with qm.take("orders") as taken:
            taken.remove()

        assert len(qm.peek("orders", 0, 10)) == 1


def test_several_threads_may_use_one_client(peer):
    with blocking.connect(peer.path) as qm:
        threads = [
            threading.Thread(target=lambda: [qm.send("orders", b"") for _ in range(20)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(peer.queues["orders"]) == 80


def test_errors_are_raised_unchanged(peer, tmp_path):
    peer.refusals[frames.Send] = frames.Refused(0, "over_quota", "full")
    with blocking.connect(peer.path) as qm, pytest.raises(OverQuota):
        qm.send("orders", b"1")
    with pytest.raises(NotConnected), blocking.connect(tmp_path / "nothing"):
        pass
