"""A whole queue manager that sends, and a peer that answers with any acknowledgment at any time.

The peer is `tests.process.peer`, which shares no code with the queue manager; what may come, and
what has to become of it, is worked out by `sender_oracle`.
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
from tests.properties.live import EXAMPLES, STEPS, QueueManager
from tests.properties.sender_oracle import Sender, Sent

MOMENT_S = 0.02
MEETING = [(True, True), (False, True), (True, False), (False, False)]
CLASSES = [0x4000, 0x8000, 0x8003, 0x8009, 0xC000, 0xC002]
rarely = st.sampled_from([False] * 5 + [True])


class SendingMachine(RuleBasedStateMachine):
    """An application that sends to one queue elsewhere, and the queue manager there."""

    @initialize()
    def begin(self) -> None:
        self.manager = QueueManager()
        self.remote = RemoteQueueManager(b"the other side..")
        self.listener = self.remote.listen()
        self.destination = self.listener.destination("orders")
        self.oracle = Sender()
        self.session: Peer | None = None
        self.bodies = itertools.count(1)
        self.is_known = False  # there is an outgoing queue

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.remote.close()
            self.manager.stop()

    # What happens here.

    @rule(
        wants=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6),
        is_refused=rarely,
    )
    def application_sends(self, wants: list[tuple[bool, bool]], is_refused: bool) -> None:
        """One commit; what is refused takes no number."""
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
    def daemon_is_started_anew(self, really: bool) -> None:
        if really:
            self.manager.restart()
            self.forget_session()

    # What the other side does.

    @precondition(lambda self: self.session is None and self.oracle.on_their_way)
    @rule(window=st.sampled_from([64, 64, 1, 3]))
    def peer_takes_the_session(self, window: int) -> None:
        self.accept(window)

    @precondition(lambda self: self.session is not None)
    @rule(count=st.sampled_from([1, 2, 20]))
    def peer_reads(self, count: int) -> None:
        self.read(count)

    @precondition(lambda self: self.session is not None)
    @rule(stored=st.sampled_from([None, None, 0, 1, 3]))
    def peer_acknowledges_the_session(self, stored: int | None) -> None:
        assert self.session is not None
        self.session.session_ack(stored=stored)

    @rule(data=st.data())
    def peer_holds_everything_up_to_one(self, data: st.DataObject) -> None:
        """New, known or of a sequence that is over."""
        self.meet()
        sent = data.draw(st.sampled_from(self.oracle.seen))
        assert sent.place is not None
        self.say_order_ack(*sent.place)
        self.oracle.order_ack(sent.place)

    @rule(data=st.data(), beyond=st.sampled_from([1, 100, 0xFFFF]))
    def peer_speaks_of_what_is_not(self, data: st.DataObject, beyond: int) -> None:
        """More than was ever sent, another sequence, another message: nothing comes of it."""
        self.meet()
        sent = data.draw(st.sampled_from(self.oracle.seen))
        assert sent.place is not None
        sequence_id, number = sent.place
        match data.draw(st.sampled_from(["beyond", "sequence", "message"])):
            case "beyond":
                self.say_order_ack(sequence_id, number + len(self.oracle.messages) + beyond)
            case "sequence":
                self.say_order_ack(sequence_id + 0x1000 * beyond, number)
            case _:
                stranger = sent.message_id + 0x100 * beyond
                self.say_final_acks(sent, [data.draw(st.sampled_from(CLASSES[1:4]))], stranger)

    @rule(data=st.data(), message_class=st.sampled_from(CLASSES), times=st.sampled_from([1, 1, 2]))
    def peer_tells_the_end_of_one(
        self, data: st.DataObject, message_class: int, times: int
    ) -> None:
        """Received, refused, expired there; perhaps twice at once, or later otherwise."""
        self.meet()
        alive = [each for each in self.oracle.seen if each.is_on] or self.oracle.seen
        sent = data.draw(st.sampled_from(alive + self.oracle.seen[-1:]))
        self.say_final_acks(sent, [message_class] * times, sent.message_id)
        self.oracle.final_ack(sent, message_class)

    @precondition(lambda self: self.session is not None)
    @rule()
    def peer_goes(self) -> None:
        self.forget_session()

    @precondition(lambda self: self.oracle.on_their_way)
    @rule()
    def peer_takes_everything(self) -> None:
        """A new session with a good receiver: all that is missing comes, in its order."""
        self.forget_session()
        session = self.accept(64)
        session.auto_ack = True
        missing = [each.body for each in self.oracle.on_their_way]
        came = session.receive_many(len(missing))
        assert [each.body for each in came] == missing
        self.came(came)
        place = self.oracle.on_their_way[-1].place
        assert place is not None
        self.say_order_ack(*place)
        self.oracle.order_ack(place)
        assert not self.oracle.on_their_way
        session.auto_ack = False

    # What is compared.

    @invariant()
    def everything_is_where_it_belongs(self) -> None:
        if not hasattr(self, "manager") or not self.is_known:
            return
        self.manager.check()
        kept = self.manager.outgoing(self.destination)
        assert kept == (len(self.oracle.on_their_way), len(self.oracle.waiting))
        assert Counter(body for body, *_ in self.manager.contents(JOURNAL)) == self.oracle.journal
        assert self.manager.dead_letters() == self.oracle.dead_letters

    # Within.

    def accept(self, window: int) -> Peer:
        """The daemon's next session; it may have given up the one that it began first."""
        while True:
            with contextlib.suppress(Closed):
                self.session = self.listener.accept(window=window, auto_ack=False)
                self.oracle.session_begins()
                return self.session

    def meet(self) -> None:
        """There is a session, and something has come."""
        while self.session is None or not self.oracle.seen:
            if not self.oracle.on_their_way:
                self.application_sends(MEETING, False)
            if self.session is None:
                self.accept(64)
            self.read(20)

    def read(self, count: int) -> None:
        assert self.session is not None
        read_before = len(self.session.inbox)
        try:
            while len(self.session.inbox) < read_before + count:
                self.session.read(MOMENT_S)
        except TimeoutError:
            pass
        except Closed:
            self.forget_session()
            return
        self.came(self.session.inbox[read_before:])

    def forget_session(self) -> None:
        if self.session is not None:
            self.session.close()
            self.session = None

    def say_order_ack(self, sequence_id: int, number: int) -> None:
        self.say(
            wire.order_ack(
                source=self.remote.guid,
                message_id=self.remote.next_id(),
                sequence_id=sequence_id,
                number=number,
            )
        )

    def say_final_acks(self, sent: Sent, classes: list[int], message_id: int) -> None:
        assert sent.place is not None
        assert self.remote.daemon_guid is not None
        self.say(
            *(
                wire.final_ack_of(
                    source=self.remote.guid,
                    message_id=self.remote.next_id(),
                    message_class=message_class,
                    place=(*sent.place, 0),
                    of_source=self.remote.daemon_guid,
                    of_message_id=message_id,
                )
                for message_class in classes
            )
        )

    def say(self, *packets: bytes) -> None:
        """In one write; acknowledged when what they lead to is on disk."""
        assert self.session is not None
        before = len(self.session.inbox)
        self.session.send_many(packets)
        self.session.wait_stored()
        self.came(self.session.inbox[before:])

    def came(self, messages: list[wire.Message]) -> None:
        for message in messages:
            assert message.transaction is not None
            place = message.transaction.sequence_id, message.transaction.number
            self.oracle.arrives(
                message.body, message.message_id, place, message.transaction.previous
            )


SendingMachine.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None
)
SendingMachine.TestCase.pytestmark = [pytest.mark.timeout(900 + 60 * EXAMPLES)]
TestLiveSender = SendingMachine.TestCase
