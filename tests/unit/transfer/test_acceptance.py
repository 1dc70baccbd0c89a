"""Decisions about received messages: with a real database, and without a socket."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from protocol import parse_user_message
from protocol.like_packets import Run
from protocol.message_class import MessageClass
from qmd.config.settings import QueueManagerSettings, Settings
from qmd.manager import QueueManager
from qmd.peers.connection import PeerConnection
from qmd.runtime.environment import Environment
from qmd.transfer.decision import Decision, Verdict
from tests.integration.remote import packet

SOURCE = bytes(range(16))
SENT_S = int(time.time())


class Wire(asyncio.Transport):
    """A transport that leads nowhere."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1801) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        pass

    def close(self) -> None:
        pass

    abort = close

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


class Desk(NamedTuple):
    """A queue manager, a session, and the way to ask for decisions."""

    manager: QueueManager
    connection: PeerConnection

    def decide(self, built: bytes) -> Decision:
        acceptance = self.manager.assembly.incoming._acceptance
        return acceptance.decide(
            self.connection,
            parse_user_message(built),
            built,
            wall_ms=int(time.time() * 1000),
            now=self.manager.services.loop.time(),
        )

    def accepts_run(self, decision: Decision, run: Run, *, first: bytes | None = None) -> bool:
        """Ask about messages that follow `first`, or the first one of a sequence."""
        message = parse_user_message(first or _message(11, queue="ledger", position=(5, 1, 0)))
        return self.manager.assembly.incoming._acceptance.accepts_run(
            self.connection, message, run, decision, self.manager.services.loop.time()
        )


def decided(test: Callable[[Desk], Awaitable[None]]) -> Callable[[Path], None]:
    """Run a test with a queue manager that has the queues orders, ledger and full."""

    async def main(folder: Path) -> None:
        settings = replace(Settings(), queue_manager=QueueManagerSettings(data=folder))
        manager = await QueueManager.open(settings, Environment(), "hosta")
        try:
            for name, transactional, quota_bytes in (
                ("orders", False, None),
                ("ledger", True, None),
                ("full", False, 1),
            ):
                await manager.assembly.administration.create(
                    name,
                    transactional=transactional,
                    label="",
                    journal=False,
                    quota_bytes=quota_bytes,
                )
            connection = manager.assembly.make_connection(None)
            connection.connection_made(Wire())
            assert connection.session is not None
            connection.session.remote_id = SOURCE  # as after the handshake
            await test(Desk(manager, connection))
        finally:
            await manager.stop()

    def run(tmp_path: Path) -> None:
        asyncio.run(main(tmp_path))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def _message(number: int = 1, **properties: Any) -> bytes:
    return packet(b"body", source=SOURCE, number=number, **properties)


@decided
async def test_a_message_for_a_queue_is_accepted_and_not_yet_stored(desk: Desk) -> None:
    decision = desk.decide(_message())

    assert decision.verdict is Verdict.ACCEPTED
    assert decision.queue is desk.manager.assembly.queues.by_key["private$\\orders"]
    assert decision.queue.messages == 0


@decided
async def test_a_message_of_the_history_is_known(desk: Desk) -> None:
    desk.manager.assembly.known_messages.add(desk.connection, SOURCE, 1)

    assert desk.decide(_message(1)).verdict is Verdict.KNOWN
    assert desk.decide(_message(2)).verdict is Verdict.ACCEPTED


@pytest.mark.parametrize(
    ("properties", "message_class"),
    [
        ({"queue": "nothing"}, MessageClass.NACK_BAD_DESTINATION_QUEUE),
        ({"queue": "ledger"}, MessageClass.NACK_NOT_TRANSACTIONAL_MESSAGE),
        ({"position": (1, 1, 0)}, MessageClass.NACK_NOT_TRANSACTIONAL_QUEUE),
        ({"queue": "full"}, MessageClass.NACK_QUEUE_EXCEED_QUOTA),
        (
            {"sent_s": SENT_S - 60, "time_to_reach_queue_s": 1},
            MessageClass.NACK_REACH_QUEUE_TIMEOUT,
        ),
    ],
)
def test_a_message_that_no_queue_takes_is_refused_with_its_class(
    tmp_path: Path, properties: dict[str, Any], message_class: MessageClass
) -> None:
    @decided
    async def run(desk: Desk) -> None:
        decision = desk.decide(_message(**properties))
        assert decision.verdict is Verdict.REFUSED
        assert decision.message_class is message_class

    run(tmp_path)


@decided
async def test_a_transactional_message_is_accepted_at_the_next_position_only(desk: Desk) -> None:
    def verdict(number: int, position: tuple[int, int, int]) -> Verdict:
        return desk.decide(_message(number, queue="ledger", position=position)).verdict

    assert verdict(11, (5, 1, 0)) is Verdict.ACCEPTED
    assert verdict(13, (5, 3, 2)) is Verdict.OUT_OF_ORDER
    assert verdict(12, (5, 2, 1)) is Verdict.ACCEPTED
    assert verdict(11, (5, 1, 0)) is Verdict.DUPLICATE
    assert verdict(12, (5, 2, 1)) is Verdict.DUPLICATE


def _run(first: int, count: int) -> Run:
    """Return messages that follow each other, the first of them at position `first`."""
    numbers = list(range(10 + first, 10 + first + count))
    packets = [
        _message(number, queue="ledger", position=(5, number - 10, number - 11))
        for number in numbers
    ]
    return Run(packets, numbers, first)


@decided
async def test_a_run_is_accepted_behind_its_first_message(desk: Desk) -> None:
    first = desk.decide(_message(11, queue="ledger", position=(5, 1, 0)))
    assert first.stream is not None

    assert desk.accepts_run(first, _run(2, 9))
    assert first.stream.sequence.accepted_number == 10
    assert desk.accepts_run(first, _run(11, 1))
    assert desk.decide(_message(21, queue="ledger", position=(5, 11, 10))).verdict is (
        Verdict.DUPLICATE
    )


@decided
async def test_a_run_of_which_one_message_may_be_refused_is_not_accepted(desk: Desk) -> None:
    first = desk.decide(_message(11, queue="ledger", position=(5, 1, 0)))
    ledger = first.queue
    assert ledger is not None
    assert not desk.accepts_run(first, _run(1, 3)), "it begins with a duplicate"
    assert not desk.accepts_run(first, _run(3, 3)), "a message before it is missing"
    run = _run(2, 9)
    ledger.quota_bytes = ledger.bytes + sum(map(len, run.packets)) - 1
    assert not desk.accepts_run(first, run), "there is no room for the last one"
    ledger.quota_bytes = None
    desk.manager.assembly.known_messages.add(desk.connection, SOURCE, 15)
    assert not desk.accepts_run(first, run), "one was refused before"
    assert desk.accepts_run(first, _run(2, 3)), "those before it were not"
    duplicate = desk.decide(_message(11, queue="ledger", position=(5, 1, 0)))
    assert not desk.accepts_run(duplicate, _run(5, 1))


@decided
async def test_a_run_of_recoverable_messages_is_accepted_once(desk: Desk) -> None:
    def run(number: int, count: int) -> Run:
        numbers = range(number, number + count)
        return Run([_message(each) for each in numbers], numbers, 0)

    known = desk.manager.assembly.known_messages
    first = _message(11)
    decision = desk.decide(first)
    orders = decision.queue
    assert orders is not None
    known.add(desk.connection, SOURCE, 11)

    assert desk.accepts_run(decision, run(12, 9), first=first)
    known.add_run(desk.connection, SOURCE, 12, 20)
    for number in range(11, 21):
        assert desk.decide(_message(number)).verdict is Verdict.KNOWN
    assert not desk.accepts_run(decision, run(20, 3), first=first), "it begins with a known one"
    known.add(desk.connection, SOURCE, 25)
    assert not desk.accepts_run(decision, run(21, 9), first=first), "it holds a known one"
    assert desk.accepts_run(decision, run(21, 4), first=first), "those before it were not"
    orders.quota_bytes = orders.bytes + sum(map(len, run(30, 4).packets)) - 1
    assert not desk.accepts_run(decision, run(30, 4), first=first), "no room for the last one"
    known_one = desk.decide(first)
    assert not desk.accepts_run(known_one, run(40, 3), first=first)


@decided
async def test_the_messages_of_a_run_are_remembered_as_single_ones(desk: Desk) -> None:
    first = desk.decide(_message(11, queue="ledger", position=(5, 1, 0)))
    stream = first.stream
    assert stream is not None
    streams = desk.manager.assembly.incoming_streams
    streams.accepted(stream, [11], "127.0.0.1")
    for begin, count in ((2, 30), (32, 1), (33, 200), (233, 70)):
        run = _run(begin, count)
        assert desk.accepts_run(first, run)
        streams.accepted(stream, run.message_numbers, "127.0.0.1")
    for position in range(240, 303):
        assert stream.contradicts(5, position, 99)
        assert not stream.contradicts(5, position, 10 + position)
    assert not stream.contradicts(5, 100, 99), "it is forgotten"
    assert streams._recent_count == len(stream._recent) + len(stream._earlier)


@decided
async def test_another_message_at_an_accepted_position_is_a_contradiction(desk: Desk) -> None:
    first = desk.decide(_message(11, queue="ledger", position=(5, 1, 0)))
    assert first.stream is not None
    desk.manager.assembly.incoming_streams.accepted(first.stream, [11], "127.0.0.1")

    other = desk.decide(_message(12, queue="ledger", position=(5, 1, 0)))
    assert other.verdict is Verdict.CONTRADICTION
    assert other.message_class is MessageClass.NACK_DELETED
    assert "two different messages" in other.detail


def _refuse(desk: Desk, built: bytes, message_class: MessageClass) -> None:
    """Carry out the decision to refuse a message for the queue `ledger`."""
    assembly = desk.manager.assembly
    ledger = assembly.queues.by_key["private$\\ledger"]
    assembly.nacks.refuse(
        desk.connection, parse_user_message(built), built, message_class, 0, ledger
    )


@decided
async def test_a_message_that_came_too_late_is_accepted_when_the_clock_is_right(
    desk: Desk,
) -> None:
    """Its source got no final ack, and keeps it until it expires there."""
    late = _message(
        11, queue="ledger", position=(5, 1, 0), sent_s=SENT_S - 60, time_to_reach_queue_s=1
    )
    decision = desk.decide(late)
    assert decision.message_class is MessageClass.NACK_REACH_QUEUE_TIMEOUT
    _refuse(desk, late, decision.message_class)

    again = desk.decide(_message(11, queue="ledger", position=(5, 1, 0)))
    assert again.verdict is Verdict.ACCEPTED


@decided
async def test_the_refusal_of_a_transactional_message_is_final(desk: Desk) -> None:
    """Another copy may come after the source has made a dead letter of the message."""
    ledger = desk.manager.assembly.queues.by_key["private$\\ledger"]
    built = _message(11, queue="ledger", position=(5, 1, 0))
    ledger.quota_bytes = 1
    decision = desk.decide(built)
    assert decision.message_class is MessageClass.NACK_QUEUE_EXCEED_QUOTA
    _refuse(desk, built, decision.message_class)
    ledger.quota_bytes = None

    again = desk.decide(built)
    assert again.verdict is Verdict.REFUSED
    assert again.message_class is MessageClass.NACK_QUEUE_EXCEED_QUOTA
    following = desk.decide(_message(12, queue="ledger", position=(5, 2, 0)))
    assert following.verdict is Verdict.ACCEPTED


@decided
async def test_a_copy_of_a_refused_message_is_refused_with_the_same_class(desk: Desk) -> None:
    built = _message(11, queue="ledger", position=(5, 1, 0))
    _refuse(desk, built, MessageClass.NACK_BAD_DESTINATION_QUEUE)  # before the queue was created

    assert desk.decide(built).message_class is MessageClass.NACK_BAD_DESTINATION_QUEUE
