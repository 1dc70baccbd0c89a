"""Incoming messages: carries out the decisions about messages of peers.  [MS-MQQB] 3.1.5.8

A message is acknowledged only when the disk holds the decision about it, whatever the decision is:

    decide ──► rows into the open batch ──► (commit) ──► acknowledge, wake readers
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

import structlog

from protocol import MessageKind, UserMessage, classify
from qmd.core.session import MessageReceived, RunReceived
from qmd.core.session_events import one_by_one
from qmd.events.header import EventHeader, Kind
from qmd.outcomes.promises import Promise
from qmd.transfer.decision import Decision, Verdict
from qmd.transfer.security_gate import NOT_CHECKED
from qmd.transfer.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qmd.core.session_events import Received
    from qmd.events.recorder import Recorder
    from qmd.message_security.checking import Checked
    from qmd.outcomes.nack import Nacks
    from qmd.outcomes.promises import Promises
    from qmd.peers.connection import PeerConnection
    from qmd.runtime.services import Services
    from qmd.transfer.acceptance import Acceptance
    from qmd.transfer.arrivals import Arrivals
    from qmd.transfer.large_arrivals import LargeArrivals
    from qmd.transfer.received_acks import ReceivedAcks
    from qmd.transfer.security_gate import CheckedMessages, SecurityGate
    from storage.engine.batch import Batch

log = structlog.get_logger()


class Incoming:
    """Takes over the messages that peers send."""

    def __init__(
        self,
        services: Services,
        acceptance: Acceptance,
        arrivals: Arrivals,
        nacks: Nacks,
        promises: Promises,
        received_acks: ReceivedAcks,
        recorder: Recorder,
        gate: SecurityGate,
        large: LargeArrivals,
    ) -> None:
        self._services = services
        self._acceptance = acceptance
        self._arrivals = arrivals
        self._nacks = nacks
        self._promises = promises
        self._received_acks = received_acks
        self._recorder = recorder
        self._gate = gate
        self.large = large
        gate.connect(self._checked)
        self._waiting_for_disk: dict[PeerConnection, None] = {}
        self._awaited: Batch | None = None  # after its commit, waiting connections are looked at
        self.received_count = 0
        self.duplicate_count = 0
        self.rejected_count = 0

    def receive(self, connection: PeerConnection, messages: list[Received], now: float) -> None:
        """Take over messages of one session, in the order of their arrival.

        now: the clock of the event loop, in seconds.  Messages with a SecurityHeader, and those
        after them, wait until their signatures are verified and their bodies decrypted.
        """
        if self._gate.must_hold(connection, messages):
            connection.pause_reading()
            self._gate.hold(connection, one_by_one(messages))
        else:
            self._take(connection, messages, now, NOT_CHECKED)

    def _checked(
        self, connection: PeerConnection, messages: list[MessageReceived], checked: CheckedMessages
    ) -> None:
        """Take over messages that were held; the session reads on if no others are held."""
        self._take(connection, messages, self._services.loop.time(), checked)
        if (
            connection.is_open
            and not self._gate.holds(connection)
            and connection not in self._waiting_for_disk
        ):
            connection.resume_reading()

    def _take(
        self,
        connection: PeerConnection,
        messages: Sequence[Received],
        now: float,
        checked: CheckedMessages,
    ) -> None:
        """Take over messages; `checked` has the results of checks by index."""
        turn = Turn(connection, now, self._services.environment.time())
        received_acks: list[tuple[MessageKind, UserMessage, int]] = []
        decision: Decision | None = None  # about the message before
        for index, each in enumerate(messages):
            if type(each) is MessageReceived:
                singles: Sequence[MessageReceived] = (each,)
            elif decision is not None and self._take_run(turn, cast(RunReceived, each), decision):
                continue
            else:
                singles = cast(RunReceived, each).singles()
            for single in singles:
                decision = self._take_one(turn, single, checked.get(index), received_acks)
                if decision is not None and decision.verdict is Verdict.NO_ROOM:
                    self._finish(turn)
                    connection.drop(decision.detail)
                    return
        if received_acks:
            self._received_acks.apply(connection, received_acks, now)
        self._finish(turn)
        if self._services.storage.congested:
            # This also holds back a peer that waits for no acknowledgment, such as one that sends
            # express messages which are refused.
            connection.pause_reading()
            self._waiting_for_disk[connection] = None
            self._await_commit()

    def _take_one(
        self,
        turn: Turn,
        received: MessageReceived,
        security: Checked | None,
        received_acks: list[tuple[MessageKind, UserMessage, int]],
    ) -> Decision | None:
        """Take over one message; return the decision, None about an acknowledgment."""
        message, packet, number = received
        connection, now = turn.connection, turn.now
        self.received_count += 1
        if message.properties.message_class:
            kind = classify(message, self._services.id)
            if kind is not MessageKind.ORDINARY:
                if kind is not MessageKind.FINAL_ACK:
                    self._received_acks.order_ack(connection, message, now)
                received_acks.append((kind, message, number))
                return None
        decision = self._acceptance.decide(
            connection, message, packet, security, wall_ms=turn.wall_ms, now=now
        )
        if decision.verdict is Verdict.ACCEPTED:
            assert decision.queue is not None
            if security is not None:
                message, packet = security.message, security.packet
            self._arrivals.accept(turn, decision.queue, decision.stream, message, packet)
        elif decision.verdict is Verdict.NO_ROOM:
            return decision
        else:
            self._carry_out(turn, decision, message, packet)
        if number:
            turn.decided.append(number)
        return decision

    def _take_run(self, turn: Turn, received: RunReceived, decision: Decision) -> bool:
        """Take over messages like the one before, about which was decided; False: not together."""
        run = received.run
        if not self._acceptance.accepts_run(
            turn.connection, received.message, run, decision, turn.now
        ):
            return False
        assert decision.queue is not None
        self._arrivals.accept_run(turn, decision.queue, decision.stream, received.message, run)
        count = len(run.packets)
        self.received_count += count
        turn.decided += range(received.first_number, received.first_number + count)
        return True

    def _carry_out(
        self, turn: Turn, decision: Decision, message: UserMessage, packet: bytes
    ) -> None:
        """Carry out a decision that stores nothing in a local queue."""
        verdict, connection = decision.verdict, turn.connection
        user, stream = message.user, decision.stream
        if verdict is Verdict.REFUSED:
            self._refuse(turn, decision, message, packet)
        elif verdict is Verdict.KNOWN:
            self.duplicate_count += 1
            connection.count_useless()
            self._recorder.provoked(
                EventHeader(Kind.DUPLICATE, peer=connection.peer),
                user.source_queue_manager,
                user.message_number,
                host=connection.origin,
            )
        elif stream is None and decision.queue is not None:  # it belongs to no stream
            self.rejected_count += 1
            connection.count_useless()
            self._recorder.provoked(
                EventHeader(Kind.OUT_OF_ORDER, queue=decision.queue.name, peer=connection.peer),
                user.source_queue_manager,
                user.message_number,
                host=connection.origin,
            )
        elif stream is not None:  # the message is not the next one of its sequence
            self.rejected_count += 1
            connection.count_useless()
            if verdict is Verdict.CONTRADICTION:
                self._refuse(turn, decision, message, packet)
            else:
                self._recorder.provoked(
                    EventHeader(
                        Kind.DUPLICATE if verdict is Verdict.DUPLICATE else Kind.OUT_OF_ORDER,
                        queue=stream.queue.name,
                        peer=connection.peer,
                    ),
                    stream.source,
                    user.message_number,
                    host=connection.origin,
                )
            turn.rejected[stream] = None
            self._promises.repeat_order_ack(stream)

    def _refuse(self, turn: Turn, decision: Decision, message: UserMessage, packet: bytes) -> None:
        assert decision.message_class is not None
        self._nacks.refuse(
            turn.connection,
            message,
            packet,
            decision.message_class,
            turn.wall_ms,
            decision.queue,
            detail=decision.detail,
            for_others=decision.for_others,
            is_foreign=decision.is_foreign,
        )

    # After the commit.

    def _finish(self, turn: Turn) -> None:
        """Add the positions of sequences to the open batch; acknowledge after its commit."""
        if not turn.has_consequences:
            return
        batch = self._services.storage.batch
        for stream in turn.rejected | dict.fromkeys(turn.accepted):
            if not stream.is_forgotten:
                batch.incoming.set_sequence(stream.id, *stream.state(turn.wall_s))
        promise = Promise(turn.connection, turn.decided, turn.accepted, turn.arrivals)
        batch.when_durable(partial(self._durable, promise))

    def _durable(self, promise: Promise) -> None:
        """Acknowledge the messages of a turn: the commit has returned."""
        self._promises.keep(promise)
        if self._waiting_for_disk:
            self._resume_reading()

    def _resume_reading(self) -> None:
        """Resume connections that wait for the disk, or wait for its next commit."""
        storage = self._services.storage
        if not storage.congested:
            waiting, self._waiting_for_disk = self._waiting_for_disk, {}
            for connection in waiting:
                connection.resume_reading()
        else:
            self._await_commit()

    def _await_commit(self) -> None:
        """Look at the waiting connections after the commit of the open batch."""
        batch = self._services.storage.batch
        if self._awaited is not batch:
            self._awaited = batch
            batch.when_durable(self._resume_reading)
