"""Links that are resumed after their connection was lost (AMQP 1.0, clause 2.6.13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.amqp.door import AmqpDoor, door_of
from tests.process.harness import Hosts

proton = pytest.importorskip("proton")
from tests.amqp import frames  # noqa: E402
from tests.amqp.frames import RawClient  # noqa: E402

ACCEPTED = frames.described(frames.ACCEPTED)
UNSETTLED, INCOMPLETE = 7, 8  # fields of an attach


@pytest.fixture(scope="module")
def door() -> Iterator[AmqpDoor]:
    hosts = Hosts()
    try:
        with door_of(hosts, transactional=("first", "second", "anew", "many", "back")) as started:
            yield started
    finally:
        hosts.close()


def _message(body: str) -> bytes:
    return bytes(proton.Message(body=body, durable=True).encode())


class Sender:
    """A link over which a raw client sends; its connection is cut when it ends."""

    def __init__(
        self,
        door: AmqpDoor,
        queue: str,
        unsettled: Any = None,
        *,
        second: bool = False,
        frame_bytes: int | None = None,
    ) -> None:
        self.client = RawClient(door.port)
        link = frames.attach("link", 0, frames.SENDER, queue, unsettled=unsettled, second=second)
        self.client.write(frames.opening("resuming", frame_bytes=frame_bytes), link)
        answer = self.client.read_until(frames.ATTACH)
        fields = [*answer.fields, None, None]
        self.unsettled, self.incomplete = fields[UNSETTLED], fields[INCOMPLETE]
        self.client.read_until(frames.FLOW)
        self._number = 0

    def send(self, tag: bytes, body: str) -> None:
        data = _message(body)
        fields = (proton.uint(0), proton.uint(self._number), tag, proton.uint(0), False, False)
        self.client.write(frames.encoded(frames.TRANSFER, *fields, payload=data))
        self._number += 1

    def settle_resumed(self, tag: bytes) -> None:
        self.client.write(frames.resumed(0, self._number, tag))
        self._number += 1

    def wait(self, count: int, *, settled: bool) -> None:
        """Wait until the door has accepted so many deliveries."""
        while count:
            _, first, last, is_settled, state, *_ = [
                *self.client.read_until(frames.DISPOSITION).fields, None
            ]  # fmt: skip
            assert state.descriptor == frames.ACCEPTED
            assert bool(is_settled) is settled
            count -= (first if last is None else last) - first + 1

    def cut(self) -> None:
        self.client.socket.close()


def _texts(door: AmqpDoor, queue: str) -> list[str]:
    import base64

    found = [each["body_base64"] for each in door.daemon.peek(queue)]
    return [base64.b64decode(each).decode("utf-16-le") for each in found]


def test_a_sender_that_settles_second_gets_the_outcomes_also_after_kills(door: AmqpDoor) -> None:
    sender = Sender(door, "second", second=True)
    for number in range(3):
        sender.send(b"t%d" % number, f"{number}")
    sender.wait(3, settled=False)
    sender.client.write(frames.settled(0, 0))
    sender.cut()
    tags = {b"t%d" % number: None for number in range(1, 5)}
    door.restart()
    for attempt in range(2):
        sender = Sender(door, "second", tags, second=True)
        assert sender.unsettled == {b"t1": ACCEPTED, b"t2": ACCEPTED}
        sender.cut()
        if attempt == 0:
            door.daemon.restart()
    sender = Sender(door, "second", tags, second=True)
    sender.settle_resumed(b"t1")
    sender.send(b"t2", "2")  # a client may also send it again
    sender.send(b"t3", "3")
    sender.send(b"t4", "4")
    sender.wait(1, settled=True)
    sender.wait(2, settled=False)
    sender.cut()
    assert _texts(door, "second") == ["0", "1", "2", "3", "4"]


def test_a_sender_whose_door_settles_first_sends_again_what_is_not_stored_again(
    door: AmqpDoor,
) -> None:
    sender = Sender(door, "first")
    sender.send(b"a", "0")
    sender.send(b"b", "1")
    sender.wait(2, settled=True)
    sender.cut()
    sender = Sender(door, "first", {b"a": None, b"b": None, b"c": None})
    assert sender.unsettled == {}
    sender.send(b"a", "0")
    sender.send(b"b", "another, with a tag that was free again")
    sender.send(b"c", "2")
    sender.send(b"a", "0")  # the first with this tag is settled: this is another one
    sender.wait(4, settled=True)
    sender.cut()
    another = "another, with a tag that was free again"
    assert _texts(door, "first") == ["0", "1", another, "2", "0"]


def test_a_link_that_begins_anew_knows_no_earlier_deliveries(door: AmqpDoor) -> None:
    for text in ("0", "1"):
        sender = Sender(door, "anew", second=True)
        assert sender.unsettled is None
        sender.send(b"x", text)
        sender.wait(1, settled=False)
        sender.cut()
    Sender(door, "anew", second=True).cut()
    sender = Sender(door, "anew", {b"x": None}, second=True)
    assert sender.unsettled == {}
    # A link that is closed ends as well.
    sender.send(b"x", "2")
    sender.wait(1, settled=False)
    sender.client.write(frames.encoded(frames.DETACH, proton.uint(0), True))
    sender.client.read_until(frames.DETACH)
    sender.cut()
    sender = Sender(door, "anew", {b"x": None}, second=True)
    assert sender.unsettled == {}
    sender.cut()
    assert _texts(door, "anew") == ["0", "1", "2"]


def test_a_map_that_does_not_fit_into_a_frame_is_incomplete(door: AmqpDoor) -> None:
    sender = Sender(door, "many", second=True)
    tags = [b"a long tag: %d" % number for number in range(100, 150)]
    for tag in tags:
        sender.send(tag, "many")
    sender.wait(len(tags), settled=False)
    sender.cut()
    unsettled = dict.fromkeys(tags)
    sender = Sender(door, "many", unsettled, second=True, frame_bytes=1024)
    assert sender.incomplete
    assert 0 < len(sender.unsettled) < len(tags)
    assert set(sender.unsettled) < set(tags)
    sender.cut()
    sender = Sender(door, "many", unsettled, second=True)
    assert set(sender.unsettled) == set(tags)
    assert not sender.incomplete
    sender.cut()


class Receiver:
    """A link over which a raw client receives; its connection is cut when it ends."""

    def __init__(self, door: AmqpDoor, queue: str, credit: int, unsettled: Any = None) -> None:
        self.client = RawClient(door.port)
        link = frames.attach("back", 0, frames.RECEIVER, queue, unsettled=unsettled)
        self.client.write(frames.opening("resuming"), link)
        answer = self.client.read_until(frames.ATTACH)
        self.unsettled = [*answer.fields, None][UNSETTLED]
        numbers = [proton.uint(each) for each in (0, 1000, 0, 1000, 0, 0, credit)]
        self.client.write(frames.encoded(frames.FLOW, *numbers))

    def receive(self) -> tuple[bytes, str]:
        frame = self.client.read_until(frames.TRANSFER)
        message = proton.Message()
        message.decode(frame.payload)
        return frame.fields[2], message.body


def test_a_receiver_that_resumes_settles_what_it_has_processed(door: AmqpDoor) -> None:
    sender = Sender(door, "back")
    for number in range(4):
        sender.send(b"%d" % number, f"{number}")
    sender.wait(4, settled=True)
    sender.cut()
    receiver = Receiver(door, "back", 3)
    tags = [receiver.receive()[0] for _ in range(3)]
    receiver.client.socket.close()
    rejected = frames.described(0x25)
    states = {tags[0]: ACCEPTED, tags[1]: None, tags[2]: rejected, b"\xff": ACCEPTED}
    receiver = Receiver(door, "back", 2, states)
    assert receiver.unsettled == {}
    assert [receiver.receive()[1] for _ in range(2)] == ["1", "3"]
    receiver.client.socket.close()
    assert door.daemon.count("back") == 2
