"""A whole queue manager that sends, and a peer that sends any acknowledgment at any time.

The peer is `tests.process.peer`, which shares no code with the queue manager.  `sender_oracle`
computes the messages that may arrive, and how each of them must end.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qmd.control_protocol import messages as frames
from qmd.control_protocol.messages import NewMessage
from tests.integration.managers import JOURNAL
from tests.process import wire
from tests.process.connection import Closed
from tests.process.peer import Peer
from tests.process.remote import RemoteQueueManager
from tests.properties.live import EXAMPLES, IS_SHORT, STEPS, QueueManager
from tests.properties.sender_oracle import Sender, Sent

MOMENT_S = 0.02
MEETING = [(True, True), (False, True), (True, False), (False, False)]
CLASSES = [0x4000, 0x8000, 0x8003, 0x8009, 0xC000, 0xC002]
rarely = st.sampled_from([False] * 5 + [True])


def chosen(data: st.DataObject, messages: list[Sent]) -> Sent:
    """Draw a message; the drawn number does not depend on how many have arrived by now."""
    return messages[data.draw(st.integers(0, 999)) % len(messages)]


class ReceivingPeer:
    """The remote queue manager, and its session with the one under test."""

    def __init__(self, oracle: Sender) -> None:
        self._oracle = oracle
        self._remote = RemoteQueueManager(b"the other side..")
        self._listener = self._remote.listen()
        self.destination = self._listener.destination("orders")
        self.session: Peer | None = None
        self._recorded = 0  # messages of the session that the oracle has checked

    def close(self) -> None:
        """Close all connections."""
        self._remote.close()

    def accept(self, window: int) -> Peer:
        """Accept the daemon's next session; it may have given up the one before."""
        while True:
            with contextlib.suppress(Closed):
                self.session = self._listener.accept(window=window, auto_ack=False)
                self._oracle.session_begins()
                self._recorded = 0
                return self.session

    def read(self, count: int) -> None:
        assert self.session is not None
        read_before = len(self.session.inbox)
        try:
            while len(self.session.inbox) < read_before + count:
                self.session.read(MOMENT_S)
        except TimeoutError:
            pass
        except Closed:
            self.close_session()
            return
        self._record()

    def close_session(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None

    def send_order_ack(self, sequence_id: int, number: int) -> None:
        self._send(
            wire.order_ack(
                source=self._remote.guid,
                message_id=self._remote.next_id(),
                sequence_id=sequence_id,
                number=number,
            )
        )

    def send_final_acks(self, sent: Sent, classes: list[int], message_id: int) -> None:
        assert sent.place is not None
        assert self._remote.daemon_guid is not None
        self._send(
            *(
                wire.final_ack_of(
                    source=self._remote.guid,
                    message_id=self._remote.next_id(),
                    message_class=message_class,
                    place=(*sent.place, 0),
                    of_source=self._remote.daemon_guid,
                    of_message_id=message_id,
                )
                for message_class in classes
            )
        )

    def _send(self, *packets: bytes) -> None:
        """Send packets in one write, and wait until the effects are on disk."""
        assert self.session is not None
        self.session.send_many(packets)
        self.session.wait_stored()
        self._record()

    def receive_all(self, expected: list[Sent]) -> None:
        """Receive messages as a receiver does: in order, without repetitions, with order acks.

        A receiver must acknowledge before it has all of them: after a start, the queue manager
        sends nothing new before it knows that the peer holds no other messages with their numbers.
        """
        session = self.accept(64)
        session.auto_ack = True
        taken = read = 0
        while taken < len(expected):
            while len(session.inbox) == read:
                session.read()
            self._record()
            for message in session.inbox[read:]:
                is_repeated = message.body in {each.body for each in expected[:taken]}
                assert is_repeated or message.body == expected[taken].body
                taken += not is_repeated
            read = len(session.inbox)
            place = expected[taken - 1].place
            assert place is not None
            self.send_order_ack(*place)
            self._oracle.order_ack(place)
        session.auto_ack = False

    def _record(self) -> None:
        """Let the oracle check the messages that have arrived since the last call."""
        assert self.session is not None
        for message in self.session.inbox[self._recorded :]:
            assert message.transaction is not None
            place = message.transaction.sequence_id, message.transaction.number
            self._oracle.arrives(
                message.body, message.message_id, place, message.transaction.previous
            )
        self._recorded = len(self.session.inbox)


class SendingMachine(RuleBasedStateMachine):
    """An application that sends to one queue of a remote queue manager."""

    @initialize()
    def begin(self) -> None:
        self.manager = QueueManager()
        self.oracle = Sender()
        self.peer = ReceivingPeer(self.oracle)
        self.destination = self.peer.destination
        self.bodies = itertools.count(1)
        self.is_known = False  # there is an outgoing queue

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.peer.close()
            self.manager.stop()

    # The application and the daemon.

    @rule(
        wants=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6),
        is_refused=rarely,
    )
    def application_sends(self, wants: list[tuple[bool, bool]], is_refused: bool) -> None:
        """Send messages in one commit; refused ones get no number."""
        messages = [
            NewMessage(
                self.destination,
                b"%d" % next(self.bodies),
                delivery=frames.TRANSACTIONAL,
                journal=journal,
                dead_letter=dead_letter,
            )
            for journal, dead_letter in wants
        ]
        if is_refused:
            bad = NewMessage("DIRECT=OS:.\\private$\\nowhere", b"", delivery=frames.TRANSACTIONAL)
            with pytest.raises(Exception, match="nowhere"):
                self.manager.send([*messages, bad])
            return
        self.manager.send(messages)
        self.is_known = True
        self.oracle.messages += [
            Sent(each.body, each.journal, bool(each.dead_letter)) for each in messages
        ]

    @rule(really=rarely)
    def daemon_restarts(self, really: bool) -> None:
        if really:
            self.manager.restart()
            self.peer.close_session()

    # The peer.

    @precondition(lambda self: self.peer.session is None and self.oracle.on_their_way)
    @rule(window=st.sampled_from([64, 64, 1, 3]))
    def peer_accepts_the_session(self, window: int) -> None:
        self.peer.accept(window)

    @precondition(lambda self: self.peer.session is not None)
    @rule(count=st.sampled_from([1, 2, 20]))
    def peer_reads(self, count: int) -> None:
        self.peer.read(count)

    @precondition(lambda self: self.peer.session is not None)
    @rule(stored=st.sampled_from([None, None, 0, 1, 3]))
    def peer_acknowledges_the_session(self, stored: int | None) -> None:
        assert self.peer.session is not None
        self.peer.session.session_ack(stored=stored)

    @rule(data=st.data())
    def peer_sends_an_order_ack(self, data: st.DataObject) -> None:
        """Send an order ack: a new one, a repeated one, or one of an earlier sequence."""
        self.ensure_session()
        sent = chosen(data, self.oracle.seen)
        assert sent.place is not None
        self.peer.send_order_ack(*sent.place)
        self.oracle.order_ack(sent.place)

    @rule(data=st.data(), beyond=st.sampled_from([1, 100, 0xFFFF]))
    def peer_sends_a_wrong_acknowledgment(self, data: st.DataObject, beyond: int) -> None:
        """Acknowledge unsent numbers, another sequence or another message, without effect."""
        self.ensure_session()
        sent = chosen(data, self.oracle.seen)
        assert sent.place is not None
        sequence_id, number = sent.place
        match data.draw(st.sampled_from(["beyond", "sequence", "message"])):
            case "beyond":
                self.peer.send_order_ack(sequence_id, number + len(self.oracle.messages) + beyond)
            case "sequence":
                self.peer.send_order_ack(sequence_id + 0x1000 * beyond, number)
            case _:
                other_id = sent.message_id + 0x100 * beyond
                self.peer.send_final_acks(
                    sent, [data.draw(st.sampled_from(CLASSES[1:4]))], other_id
                )

    @rule(data=st.data(), message_class=st.sampled_from(CLASSES), times=st.sampled_from([1, 1, 2]))
    def peer_sends_final_acks(self, data: st.DataObject, message_class: int, times: int) -> None:
        """Report a message as received, refused or expired, perhaps twice, or differently later."""
        self.ensure_session()
        alive = [each for each in self.oracle.seen if each.is_on] or self.oracle.seen
        sent = chosen(data, alive + self.oracle.seen[-1:])
        self.peer.send_final_acks(sent, [message_class] * times, sent.message_id)
        self.oracle.final_ack(sent, message_class)

    @precondition(lambda self: self.peer.session is not None)
    @rule()
    def peer_closes_the_session(self) -> None:
        self.peer.close_session()

    @precondition(lambda self: self.oracle.on_their_way)
    @rule()
    def peer_receives_everything(self) -> None:
        """Open a session with a receiver without faults: all missing messages arrive in order."""
        self.peer.close_session()
        self.peer.receive_all(self.oracle.on_their_way)
        assert not self.oracle.on_their_way

    # Comparisons.

    @invariant()
    def messages_are_in_their_places(self) -> None:
        if not hasattr(self, "manager") or not self.is_known:
            return
        self.manager.check()
        kept = self.manager.outgoing(self.destination)
        assert kept == (len(self.oracle.on_their_way), len(self.oracle.waiting))
        assert Counter(body for body, *_ in self.manager.contents(JOURNAL)) == self.oracle.journal
        assert self.manager.dead_letters() == self.oracle.dead_letters

    def ensure_session(self) -> None:
        """Wait until there is a session in which messages have arrived."""
        while self.peer.session is None or not self.oracle.seen:
            if not self.oracle.on_their_way:
                self.application_sends(MEETING, False)
            if self.peer.session is None:
                self.peer.accept(64)
            self.peer.read(20)


SendingMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize=IS_SHORT,
)
SendingMachine.TestCase.pytestmark = [pytest.mark.timeout(900 + 60 * EXAMPLES)]
TestLiveSender = SendingMachine.TestCase
