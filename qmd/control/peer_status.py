"""State of outgoing queues, sequences and sessions, as plain values for JSON."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from protocol import parse_user_message
from protocol.identifiers import guid_text, message_id_text, sequence_parts
from qmd.core.sequence import OutgoingSequence
from qmd.history.event_query import time_text
from qmd.history.message_search import catch_up
from qmd.queues.outgoing_queue import OutgoingQueue
from qmd.transfer import sequence_renewal
from storage.tables import outgoing as outgoing_rows
from storage.tables import whereabouts
from storage.tables.keys import LOOKUP_MASK, OUTGOING_TRANSACTIONAL_LEVEL

if TYPE_CHECKING:
    import sqlite3

    from qmd.control.components import Components
    from qmd.queues.incoming_stream import IncomingStream
    from storage.tables.awaiting import AwaitingRow

Value = dict[str, Any]


def outgoing_queue(components: Components, queue: OutgoingQueue) -> Value:
    sequence = queue.sequence
    return {
        "destination": queue.destination,
        "address": queue.link.name,
        "redirected": queue.redirect is not None,
        "via": queue.link.via,
        "for_others": queue.for_others,
        "state": queue.link.state(queue).value,
        "windows_state": queue.link.state(queue).windows_name,
        "messages": queue.messages,
        "bytes": queue.bytes,
        "unacknowledged": len(queue.transmitted) + len(queue.in_flight),
        "resent": queue.resent_count,
        "next_number": sequence.next_number,
        "acknowledged_number": sequence.acknowledged,
        "awaiting": queue.awaiting.messages,
        "awaiting_bytes": queue.awaiting.bytes,
        "in_doubt": bool(queue.doubt),
        "heartbeat": components.heartbeats.status(queue.link),
        "explanation": _explanation(components, queue),
    }


async def outgoing_details(components: Components, queue: OutgoingQueue) -> Value:
    """Return the state of a queue with the figures of exactly-once delivery that MSMQ has.

    [MC-MQAC] 3.10.4.1.2
    """
    # After this no acknowledged message is on disk.
    await catch_up(components.services.storage, components.outgoing_release)
    bounds, unconfirmed = await components.services.storage.read(
        partial(_unfinished, outgoing_id=queue.id)
    )
    first, last = (queue.number_of(key & LOOKUP_MASK) for key in bounds or (0, 0))
    sequence, now, wall = (
        queue.sequence,
        components.services.loop.time(),
        components.services.environment.time(),
    )
    timestamp, ordinal = sequence_parts(sequence.sequence_id)
    remote = queue.link.remote_id
    resend_at = sequence.next_timer()
    return outgoing_queue(components, queue) | {
        "queue_manager": None if remote is None else guid_text(remote),
        "sequence": {
            "id": sequence.sequence_id,
            "timestamp": timestamp,
            "ordinal": ordinal,
            "outstanding": sequence.outstanding,
            "next_number": sequence.next_number,
            "last_ack": sequence.acknowledged or None,
            "last_ack_time": None
            if sequence.last_ack_at is None
            else _moment(wall - (now - sequence.last_ack_at)),
            "last_ack_count": sequence.last_ack_count,
            "first_unacknowledged": None if bounds is None else first,
            "last_unacknowledged": None if bounds is None else last,
            "unacknowledged": sequence.outstanding,
            "sent_unacknowledged": len(sequence.in_flight),
            "unconfirmed": unconfirmed,
            "order_acks": sequence.ack_count,
            "last_order_ack_ago_s": _ago(now, sequence.last_ack_at),
            "resends": sequence.resend_count,
            "resend_interval_s": sequence.resend_interval_s,
            "resend_time": None if resend_at is None else _moment(wall + max(0.0, resend_at - now)),
            "resend_in_s": _until(now, resend_at),
        },
        "connection_history": [
            {
                "time": _moment(wall - (now - attempt.at)),
                "ago_s": _ago(now, attempt.at),
                "address": attempt.address,
                "result": attempt.result,
                "status": attempt.status.value,
                "error": f"0x{attempt.error:08X}",
                "times": attempt.times,
                "first_time": _moment(
                    wall - (now - (attempt.at if attempt.first_at is None else attempt.first_at))
                ),
            }
            for attempt in reversed(queue.link.retry.history)
        ],
    }


def _unfinished(db: sqlite3.Connection, outgoing_id: int) -> tuple[tuple[int, int] | None, int]:
    """Return first and last key of the transactional messages, and how many are unconfirmed."""
    return (
        outgoing_rows.bounds(db, outgoing_id, OUTGOING_TRANSACTIONAL_LEVEL),
        whereabouts.awaiting_count(db, outgoing_id),
    )


def awaiting(components: Components, rows: list[AwaitingRow]) -> list[Value]:
    """Return messages that arrived at their destination and are kept until received there."""
    now_s = components.services.clock.now_s
    found = []
    for row in rows:
        properties = parse_user_message(row.packet).properties
        found.append(
            {
                "id": message_id_text(components.services.id, row.number),
                "number": row.position,
                "label": properties.label.decode("utf-16-le", "replace").rstrip("\0"),
                "bytes": len(row.packet),
                "waits_since_s": now_s - row.since_s,
                "given_up_in_s": None if row.expires_at_s is None else row.expires_at_s - now_s,
                "dead_letter": not row.discard,
                "lookup_id": row.number,
            }
        )
    return found


def sequences(components: Components) -> list[Value]:
    """Return the transactional sequences, in both directions."""
    now = components.services.loop.time()
    incoming = [
        {
            "direction": "incoming",
            "peer": guid_text(stream.source),
            "queue": stream.queue.name,
            "id": stream.sequence.durable_id,
            "number": stream.sequence.durable_number,
            "rejected": stream.sequence.rejects,
            "contradictions": stream.contradictions,
            "last_seen_ago_s": _ago(now, stream.sequence.last_seen),
            "explanation": _arrived_so_far(stream),
        }
        for stream in components.incoming_streams.all()
    ]
    outgoing = [
        {
            "direction": "outgoing",
            "peer": None if queue.link.remote_id is None else guid_text(queue.link.remote_id),
            "queue": queue.destination,
            "id": queue.sequence.sequence_id,
            "number": queue.sequence.next_number - 1,
            "acknowledged": queue.sequence.acknowledged,
            "outstanding": queue.sequence.outstanding,
            "explanation": _acknowledged_so_far(queue.sequence),
        }
        for queue in components.outgoing.queues
        if queue.sequence.next_number > 1 or queue.sequence.base
    ]
    return incoming + outgoing


def _arrived_so_far(stream: IncomingStream) -> str:
    number, rejects = stream.sequence.durable_number, stream.sequence.rejects
    text = "No message of it was stored yet."
    if number:
        text = f"All messages up to {number} were stored, in order."
    if rejects:
        text += f" {rejects} since then were duplicates, or follow a missing message."
    if stream.contradictions:
        text += (
            f" {stream.contradictions} were refused, because they had the positions of other"
            " messages: their sender was cloned, or restored from a backup."
        )
    return text


def _acknowledged_so_far(sequence: OutgoingSequence) -> str:
    if not sequence.outstanding:
        return f"None of {sequence.next_number - 1} messages is unacknowledged."
    sent = len(sequence.in_flight)
    text = f"{sequence.outstanding} messages are not acknowledged, {sent} of them sent."
    if sequence.resend_count:
        text += f" They were sent again {sequence.resend_count} times without an acknowledgment."
    return text


def sessions(components: Components) -> list[Value]:
    now = components.services.loop.time()
    return [
        {
            "peer": None if session.remote_id is None else guid_text(session.remote_id),
            "address": f"{connection.host}:{connection.port}",
            "limited": components.answer_limits.limited(connection.origin)
            + components.recorder.shares.limited(connection.origin),
            "dialled": connection.link is not None,
            "tls": connection.proof is not None,
            "origin": connection.origin,
            "is_primary": components.origins.is_primary(connection),
            "state": session.state.value,
            "sent": session.sent_count,
            "received": session.incoming.received_count,
            "unacknowledged": session.unacknowledged,
            "peer_window": session.peer_window,
            "bytes_sent": connection.bytes_sent,
            "bytes_received": connection.bytes_received,
            "age_s": _ago(now, connection.opened_at),
        }
        for connection in components.peers.connections
        if (session := connection.session) is not None
    ]


def _explanation(components: Components, queue: OutgoingQueue) -> str:
    """Return the obstacle of the queue's messages, as sentences."""
    link = queue.link
    text = link.state(queue).description
    if queue.paused:
        return f"{text} Resume it: qmd outgoing resume '{queue.destination}'."
    if queue.hindrance and queue.messages:
        return queue.hindrance
    if queue.doubt and queue.messages:
        return f"{queue.doubt} {sequence_renewal.remedy(queue)}"
    if stuck := sequence_renewal.unanswered(queue):
        return stuck
    if link.connection is None and queue.messages:
        now = components.services.loop.time()
        conflict = components.identities.about(link.guid)
        if conflict is not None and components.origins.primary(conflict.queue_manager) is not None:
            return f"{text} But {conflict.reason}. {conflict.remedy}."
        if not link.is_reachable:
            return f"{text} That queue manager has to connect to this one: its address is unknown."
        remedy = components.identities.remedy_of_refusal(link.retry.last)
        wait_s = max(0.0, link.retry.next_attempt - now)
        outlook = _progress(components, queue) or f"Next attempt in {wait_s:.0f} s."
        last = f" Last attempt: {link.retry.last.result}." if link.retry.last else ""
        return f"{text}{last} {outlook}{remedy}"
    if queue.awaiting.messages and not queue.messages:
        count = queue.awaiting.messages
        what = "1 message has" if count == 1 else f"{count} messages have"
        return (
            f"{text} {what} arrived there; the receipt is not confirmed yet. See: qmd outgoing"
            f" awaiting '{queue.destination}'."
        )
    return text


def _progress(components: Components, queue: OutgoingQueue) -> str:
    """Return a sentence about the attempt to connect that is under way, or "" without one."""
    now = components.services.loop.time()
    link: object = queue.link
    for made in components.peers.connections:
        if made.link is link and not made.handshake_done:
            return (
                f"A connection to {made.host}:{made.port} was made {now - made.opened_at:.0f} s"
                " ago; the program there has not answered the handshake yet."
            )
    if (step := queue.link.retry.step) is not None:
        return f"An attempt to connect began {now - step.at:.0f} s ago."
    return ""


def _moment(seconds: float) -> str:
    return time_text(int(seconds * 1000))


def _ago(now: float, then: float | None) -> float | None:
    return None if then is None else round(now - then, 1)


def _until(now: float, then: float | None) -> float | None:
    return None if then is None else round(max(0.0, then - now), 1)
