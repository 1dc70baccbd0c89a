"""Probe: a scripted conversation with a queue manager, and a verdict for each step.

The script sends to two named test queues, and to a queue that does not exist.  Every message has
the label `qmd interop probe` and lives for an hour.  Steps that break the protocol have connections
of their own; a queue manager must answer each of them by the end of that session alone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from protocol import packets as wire
from protocol.acknowledgments import MessageKind, classify, final_ack_body, order_ack_body
from protocol.errors import ProtocolError
from protocol.identifiers import guid_text, sequence_id
from protocol.message_class import MessageClass
from protocol.names.direct_name import PORT
from protocol.records import UserMessage
from qmd.interop.answering import Answering
from qmd.interop.conversation import Conversation, Seen, Streams
from qmd.interop.probe_message import LABEL, LIFETIME_S, Wanted, build
from qmd.interop.probe_results import Outcome, Talk, Verdict
from qmd.interop.wire import ACK_TIMEOUT_MS, ClosedByPeer, Silent, Wire

UNKNOWN_QUEUE = "private$\\qmd-interop-no-such-queue"
_BATCH = 32  # messages that are acknowledged at once, [MS-MQQB] 3.1.5.8.7


class Failed(Exception):
    """A step found a rule broken; the text says which observation shows it."""


class NotSeen(Exception):
    """A step did not see what it waited for, and need not have."""


@dataclass(frozen=True, slots=True)
class Target:
    """The queue manager to probe, and its test queues as in a direct name."""

    host: str
    port: int
    queue: str  # such as private$\interop
    transactional_queue: str
    timeout_s: float = 15.0
    listen: str = ""  # the address for connections of the peer's own; "": none is accepted
    listen_port: int = PORT

    @property
    def acknowledged_s(self) -> float:
        """The time for an acknowledgment: half of the proposed timeout, and the way."""
        return min(self.timeout_s, ACK_TIMEOUT_MS / 1000 / 2 + 2)


@dataclass(slots=True)
class Probe:
    """One run of the script."""

    target: Target
    guid: bytes
    with_broken: bool = True  # also packets that break the protocol
    outcomes: list[Outcome] = field(default_factory=list)
    conversations: list[Talk] = field(default_factory=list)
    streams: Streams = field(default_factory=Streams)
    _number: int = 0
    _sequence: int = 0
    _answering: Answering | None = None

    def run(self, progress: Callable[[Outcome], None]) -> None:
        """Run all steps.  Raises OSError if there is no connection at all."""
        self._number = int(time.time()) & 0xFFFFFF
        self._sequence = sequence_id(int(time.time()), 1)
        target = self.target
        peer = self._connect("main session")
        try:
            if target.listen:
                self._answering = Answering(
                    target.listen, target.listen_port, self.guid, self.streams, target.timeout_s
                )
                self._answering.start(frozenset({peer.peer_host}), self._keep_accepted)
            self._script(progress, peer)
        finally:
            peer.close()
            if self._answering is not None:
                self._answering.close()

    def _script(self, progress: Callable[[Outcome], None], peer: Wire) -> None:
        try:
            if self._step(progress, "handshake", "MS-MQQB 3.1.5.2", lambda: self._handshake(peer)):
                for name, clause, act in _STEPS:
                    if not self._step(progress, name, clause, partial(act, self, peer)):
                        break
        finally:
            peer.close()
        if self.with_broken:
            for name, clause, break_rule in _BROKEN:
                self._step(progress, name, clause, partial(self._alone, name, break_rule))
        if self._answering is not None:
            self._step(progress, "a connection of the peer's own", "MS-MQQB 3.1.5.3", self._own)

    def _own(self) -> str:
        """Judge the connections that the peer has opened."""
        answering = self._answering
        assert answering is not None
        if answering.faults:
            raise Failed(answering.faults[0])
        count = sum(session.conversation.is_open for session in answering.sessions)
        if not count:
            raise NotSeen("it has opened none; a firewall, or another port, may be the reason")
        return f"{count} sessions brought {len(answering.messages)} messages"

    def _keep_accepted(self, name: str, conversation: Conversation, packets: list[Seen]) -> None:
        self.conversations.append(Talk(name, conversation, packets, is_accepted=True))

    def messages_of(self, peer: Wire) -> list[UserMessage]:
        """Return the messages that came, over the session or a connection of the peer's own."""
        own = self._answering.messages if self._answering is not None else []
        return [*peer.messages, *own]

    @property
    def failures(self) -> int:
        """The number of failed steps, and of violations in the packets of the peer."""
        return sum(each.verdict is Verdict.FAILED for each in self.outcomes) + len(self.violations)

    @property
    def violations(self) -> list[tuple[str, Seen]]:
        """The packets of the peer that break a MUST, with the names of their sessions."""
        return [
            (talk.name, seen)
            for talk in list(self.conversations)
            for seen in talk.peer_packets
            if any(each.verb == "MUST" for each in seen.violations)
        ]

    def _connect(self, name: str) -> Wire:
        target = self.target
        connection = socket.create_connection((target.host, target.port), target.timeout_s)
        peer = Wire(connection, self.guid, self.streams, target.timeout_s)
        self.conversations.append(Talk(name, peer.conversation, peer.seen))
        return peer

    def _step(
        self,
        progress: Callable[[Outcome], None],
        name: str,
        clause: str,
        act: Callable[[], str],
    ) -> bool:
        """Run a step; return whether the session can go on."""
        goes_on = True
        try:
            verdict, detail = Verdict.PASSED, act()
        except NotSeen as reason:
            verdict, detail = Verdict.NOT_SEEN, str(reason)
        except (Failed, Silent, ProtocolError) as fault:
            verdict, detail = Verdict.FAILED, str(fault)
        except (ClosedByPeer, OSError) as fault:
            verdict, detail, goes_on = Verdict.FAILED, f"the session ended: {fault}", False
        outcome = Outcome(name, clause, verdict, detail)
        self.outcomes.append(outcome)
        progress(outcome)
        return goes_on

    def _alone(self, name: str, act: Callable[[Probe, Wire], None]) -> str:
        """Run a step that must end its session, on a connection of its own."""
        peer = self._connect(name)
        try:
            with contextlib.suppress(ClosedByPeer):
                act(self, peer)
            if not peer.is_closed_within(self.target.timeout_s):
                raise Failed("the session goes on")
        finally:
            peer.close()
        return "the session was ended"

    def _handshake(self, peer: Wire) -> str:
        response = peer.establish()
        if response.internal.flags.connection_refused:
            raise ClosedByPeer("the session is refused")
        answer = peer.propose()
        return f"{guid_text(response.server)}, window {answer.window_size}"

    # Messages.

    def message(self, peer: Wire, queue: str, **properties: Any) -> UserMessage:
        """Return a message to a queue of the target; see `probe_message.Wanted`."""
        self._number += 1
        wanted = Wanted(
            destination=f"TCP:{self.target.host}\\{queue}",
            admin_queue=f"TCP:{peer.own_host}{self._own_port}\\private$\\qmd-interop-acks",
            number=self._number,
            sequence=self._sequence,
            **properties,
        )
        return build(self.guid, wanted)

    @property
    def _own_port(self) -> str:
        """The port of the probe in a name, if it is not the usual one: qmd understands that."""
        answering = self._answering
        return "" if answering is None or answering.port == PORT else f":{answering.port}"

    def send(self, peer: Wire, message: UserMessage) -> int:
        """Send a message; return its number, or that among the recoverable ones."""
        packet = wire.build_user_message(message)
        return peer.send_message(packet, recoverable=bool(message.user.flags.delivery))

    def transactional(self, peer: Wire, number: int, previous: int) -> None:
        """Send the message at a position of the sequence to the transactional queue."""
        queue = self.target.transactional_queue
        self.send(peer, self.message(peer, queue, delivery=1, position=(number, previous)))

    def order_acks(self, peer: Wire) -> list[int]:
        """Return the numbers of the order acks of the sequence, in the order of their arrival."""
        return [
            body.sequence_number
            for message in self.messages_of(peer)
            if classify(message, self.guid) is MessageKind.ORDER_ACK
            and (body := order_ack_body(message)).sequence_id == self._sequence
        ]

    def wait_order_ack(self, peer: Wire, number: int, before: int) -> None:
        """Wait for an order ack of `number` after the first `before` ones."""
        peer.wait(
            lambda: number in self.order_acks(peer)[before:],
            f"order ack of {number}",
            self.target.timeout_s,
        )


def _express(probe: Probe, peer: Wire) -> str:
    probe.send(peer, probe.message(peer, probe.target.queue))
    peer.wait(
        lambda: peer.acknowledged >= peer.sent.messages, "session ack", probe.target.acknowledged_s
    )
    return "receipt was acknowledged"


def _recoverable(probe: Probe, peer: Wire) -> str:
    number = probe.send(peer, probe.message(peer, probe.target.queue, delivery=1))
    peer.wait(
        lambda: number in peer.stored, "flag of a stored message", probe.target.acknowledged_s
    )
    return "it was acknowledged as stored"


def _transactional(probe: Probe, peer: Wire) -> str:
    for number in (1, 2, 3):
        probe.transactional(peer, number, number - 1)
    probe.wait_order_ack(peer, 3, 0)
    return f"order acks of {', '.join(map(str, probe.order_acks(peer)))}"


def _duplicate(probe: Probe, peer: Wire) -> str:
    before = len(probe.order_acks(peer))
    probe.transactional(peer, 2, 1)
    probe.wait_order_ack(peer, 3, before)
    return "the position was acknowledged again"


def _gap(probe: Probe, peer: Wire) -> str:
    before = len(probe.order_acks(peer))
    probe.transactional(peer, 5, 4)
    probe.wait_order_ack(peer, 3, before)
    if any(number > 3 for number in probe.order_acks(peer)):
        raise Failed("a message behind a gap was accepted")
    before = len(probe.order_acks(peer))
    probe.transactional(peer, 4, 3)
    probe.transactional(peer, 5, 4)
    probe.wait_order_ack(peer, 5, before)
    return "it was rejected until the gap was filled"


def _same_id(probe: Probe, peer: Wire) -> str:
    message = probe.message(peer, probe.target.queue, delivery=1)
    probe.send(peer, message)
    number = probe.send(peer, message)
    peer.wait(lambda: number in peer.stored, "flag of the second copy", probe.target.acknowledged_s)
    return "both were acknowledged; only the test queue shows whether one was delivered"


def _carried(probe: Probe, peer: Wire) -> str:
    message = probe.message(peer, probe.target.queue, delivery=1)
    packet = wire.build_user_message(message)
    peer.sent = peer.sent.plus(recoverable=True)
    peer.send(wire.append_session_header(packet, peer.header()))
    number = peer.sent.recoverable
    peer.wait(
        lambda: number in peer.stored, "flag of a stored message", probe.target.acknowledged_s
    )
    return "the message was stored, and its header accepted"


def _many(probe: Probe, peer: Wire) -> str:
    count = max(1, min(_BATCH, peer.peer_window))
    numbers = [
        probe.send(peer, probe.message(peer, probe.target.queue, delivery=1)) for _ in range(count)
    ]
    peer.wait(
        lambda: set(numbers) <= peer.stored,
        f"flags of {count} messages",
        probe.target.acknowledged_s,
    )
    return f"{count} messages were acknowledged as stored"


def _arrival(probe: Probe, peer: Wire) -> str:
    message = probe.message(peer, probe.target.queue, delivery=1, acknowledge=5)
    probe.send(peer, message)
    return _acknowledgment(probe, peer, message, MessageClass.ACK_REACH_QUEUE)


def _late(probe: Probe, peer: Wire) -> str:
    message = probe.message(
        peer, probe.target.queue, delivery=1, acknowledge=5, age_s=86_400, reach_s=60
    )
    number = probe.send(peer, message)
    peer.wait(
        lambda: number in peer.stored, "flag of an expired message", probe.target.acknowledged_s
    )
    return _acknowledgment(probe, peer, message, MessageClass.NACK_REACH_QUEUE_TIMEOUT)


def _unknown(probe: Probe, peer: Wire) -> str:
    probe.send(peer, probe.message(peer, UNKNOWN_QUEUE))
    peer.wait(
        lambda: peer.acknowledged >= peer.sent.messages, "session ack", probe.target.acknowledged_s
    )
    return "it was counted, and the session goes on"


def _refused(probe: Probe, peer: Wire) -> str:
    """A transactional message that no queue takes: its source gets a final ack."""
    message = probe.message(peer, UNKNOWN_QUEUE, delivery=1, position=(1, 0), final_ack=True)
    probe.send(peer, message)

    def is_there() -> bool:
        return any(
            classify(each, probe.guid) is MessageKind.FINAL_ACK
            and final_ack_body(each).message_number == message.user.message_number
            for each in probe.messages_of(peer)
        )

    try:
        peer.wait(is_there, "final ack", probe.target.timeout_s)
    except Silent as silent:
        raise NotSeen(f"{silent}; it may go over a connection of the peer") from silent
    return "a negative final ack came"


def _acknowledgment(probe: Probe, peer: Wire, message: UserMessage, wanted: MessageClass) -> str:
    """Wait for an acknowledgment message about `message`."""
    about = message.user.source_queue_manager + struct.pack("<I", message.user.message_number)

    def classes() -> list[int]:
        return [
            each.properties.message_class
            for each in probe.messages_of(peer)
            if each.properties.correlation_id == about
        ]

    try:
        peer.wait(lambda: bool(classes()), "acknowledgment message", probe.target.timeout_s)
    except Silent as silent:
        raise NotSeen(f"{silent}; it may go over a connection of the peer") from silent
    if classes() != [wanted]:
        raise Failed(f"class 0x{classes()[0]:04X} came in place of {wanted.name}")
    return f"{wanted.name} came"


_Step = tuple[str, str, Callable[[Probe, Wire], str]]
_STEPS: tuple[_Step, ...] = (
    ("express message", "MS-MQQB 3.1.5.8.2", _express),
    ("recoverable message", "MS-MQQB 3.1.5.8.7", _recoverable),
    ("transactional messages in order", "MS-MQQB 3.1.5.8.6", _transactional),
    ("a transactional message again", "MS-MQQB 3.1.5.8.6", _duplicate),
    ("transactional messages out of order", "MS-MQQB 3.1.5.8.6", _gap),
    ("a recoverable message again", "MS-MQQB 3.1.5.8.1", _same_id),
    ("a message with a SessionHeader", "MS-MQQB 3.1.5.8.4", _carried),
    ("a batch of recoverable messages", "MS-MQQB 3.1.5.8.7", _many),
    ("arrival is acknowledged", "MS-MQQB 3.1.5.8.10", _arrival),
    ("an expired message", "MS-MQMQ 2.2.19.1", _late),
    ("a message to a missing queue", "MS-MQQB 3.1.5.8.2", _unknown),
    ("a transactional message to a missing queue", "MS-MQQB 3.1.5.8.2", _refused),
)


# Packets that must end their session.


def _open(probe: Probe, peer: Wire) -> None:
    probe._handshake(peer)


def _wrong_counts(probe: Probe, peer: Wire) -> None:
    _open(probe, peer)
    peer.send(wire.build_session_ack(peer.header(sent_number=5)))


def _unsent(probe: Probe, peer: Wire) -> None:
    _open(probe, peer)
    peer.send(wire.build_session_ack(peer.header(ack_number=5)))


def _signature(probe: Probe, peer: Wire) -> None:
    _open(probe, peer)
    packet = wire.build_user_message(probe.message(peer, probe.target.queue))
    peer.send(packet[:4] + b"OOPS" + packet[8:])


def _too_large(probe: Probe, peer: Wire) -> None:
    _open(probe, peer)
    packet = wire.build_user_message(probe.message(peer, probe.target.queue))
    peer.send(packet[:8] + struct.pack("<I", 0x00400001) + packet[12:])


def _unknown_kind(probe: Probe, peer: Wire) -> None:
    _open(probe, peer)
    packet = bytearray(wire.build_session_ack(peer.header()))
    packet[18] = 9
    peer.send(bytes(packet))


def _kind_of_queue(probe: Probe, peer: Wire) -> None:
    _open(probe, peer)
    packet = bytearray(wire.build_user_message(probe.message(peer, probe.target.queue)))
    (flags,) = struct.unpack_from("<I", packet, 60)
    struct.pack_into("<I", packet, 60, flags & ~(7 << 10) | 2 << 10)
    peer.send(bytes(packet))


def _early(probe: Probe, peer: Wire) -> None:
    peer.send(wire.build_user_message(probe.message(peer, probe.target.queue)))


def _again(probe: Probe, peer: Wire) -> None:
    _open(probe, peer)
    with contextlib.suppress(Silent):
        peer.establish()


def _another(probe: Probe, peer: Wire) -> None:
    response = peer.establish(server=os.urandom(16))
    if not response.internal.flags.connection_refused:
        raise Failed("a session for another queue manager was accepted")


_Break = tuple[str, str, Callable[[Probe, Wire], None]]
_BROKEN: tuple[_Break, ...] = (
    ("a request for another queue manager", "MS-MQQB 2.2.1", _another),
    ("a message before the handshake", "MS-MQQB 3.1.5.8", _early),
    ("a second handshake", "MS-MQQB 3.1.5.3", _again),
    ("wrong counts", "MS-MQQB 3.1.5.5.5", _wrong_counts),
    ("an acknowledgment of unsent messages", "MS-MQMQ 2.2.20.4", _unsent),
    ("a wrong signature", "MS-MQQB 3.1.5.1.2", _signature),
    ("a packet over 4 MiB", "MS-MQMQ 2.2.19.1", _too_large),
    ("an unknown internal packet", "MS-MQQB 2.2.1", _unknown_kind),
    ("an unknown kind of queue", "MS-MQMQ 2.2.19.2", _kind_of_queue),
)


def plan(target: Target, *, with_broken: bool) -> list[str]:
    """Return what the script will send, as lines for people."""
    steps: tuple[tuple[str, str, Any], ...] = _STEPS + (_BROKEN if with_broken else ())
    return [
        f"connect to {target.host}, port {target.port}, as a queue manager with a GUID of its own",
        f"send about {_BATCH + 8} messages to {target.queue} and 6 to {target.transactional_queue},"
        f" with the label '{LABEL}', which live for {LIFETIME_S // 60} minutes",
        f"send 2 messages to {UNKNOWN_QUEUE}, which must not exist",
        *(f"{name} ({clause})" for name, clause, _ in steps),
        *([f"accept connections of it at port {target.listen_port}"] if target.listen else ()),
    ]
