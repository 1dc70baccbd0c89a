"""States of a message in a queue, with the containers that hold it and the transitions.

A state is the set of the containers that hold the message. A test performs every transition on a
real queue and compares (`tests/unit/queues/test_message_states.py`), so these tables and the code
agree. docs/architecture.md shows them.

Containers of both kinds of queues:

    disk           its row in the database
    window         `window`: it is ready, and in memory
    express        `express`: it is an express message, which exists only here

of a local queue:

    taken          `taken`, with its content
    HELD           `taken`, with the constant `HELD`: the content is not in memory
    reader         `Reader.taken` of the connection, the transaction or the operation that has it
    reserved       `reserved`: the number of readers of pipelines that have it
    consumed       `reserved`: the commit of its consumption is under way
    leaving        `leaving`: the commit of its removal is under way
    expired        `expired`: found expired, and to be ended in the same turn of the loop

of an outgoing queue:

    in_flight      `in_flight`: recoverable, handed to the session
    transmitted    `transmitted`: transactional, handed to the session in this pass
    removing       `removing`: the commit of its removal as undeliverable is under way
    releasing      acknowledged; `OutgoingRelease` deletes its row with one of the next commits
    awaiting       the table `awaiting`: it has arrived, and waits for its final ack
"""

from __future__ import annotations

from typing import NamedTuple


class State(NamedTuple):
    """The containers that hold a message, and the next state after each event."""

    containers: frozenset[str]
    next: dict[str, str]


def _state(containers: str, **events: str) -> State:
    return State(frozenset(containers.split()), events)


#: A local queue. A message in a transaction is `taken`: the transaction is its reader.
LOCAL: dict[str, State] = {
    "gone": _state(
        "",
        deliver="ready",
        deliver_from_disk="on disk",
        deliver_express="express ready",
    ),
    # Stored messages.
    "on disk": _state("disk", refill="ready", hold="held", reserve="reserved"),
    "ready": _state(
        "disk window",
        window_is_full="on disk",
        take="taken",
        take_expired="expired",
        hold="held",
        reserve="reserved",
    ),
    "taken": _state(
        "disk taken reader",
        put_back="ready",
        put_back_expired="ready, expired",
        begin_removal="leaving",
    ),
    "leaving": _state("disk taken leaving", removed="gone"),
    "expired": _state("disk expired", hold="held"),
    "ready, expired": _state("disk window expired", hold="held"),
    "held": _state(
        "disk HELD reader",
        let_go="ready",
        let_go_gone="gone",
        read="taken",
        removed="gone",
    ),
    "reserved": _state(
        "disk reserved",
        release="on disk",
        release_gone="gone",
        begin_removal_reserved="consumed",
    ),
    "consumed": _state("disk consumed", end_removal="gone"),
    # Express messages.
    "express ready": _state(
        "express window",
        take="express taken",
        take_expired="express expired",
        expire_express="express ready, expired",
        hold="express taken",
        reserve="express reserved",
    ),
    "express taken": _state(
        "express taken reader",
        put_back="express ready",
        let_go="express ready",
        begin_removal="express leaving",
        removed="gone",
    ),
    "express leaving": _state("express taken leaving", removed="gone"),
    "express expired": _state("express expired", hold="express taken"),
    "express ready, expired": _state("express window expired", hold="express taken"),
    # The commit stores the message, so that the reservation survives a crash.
    "express reserved": _state("express reserved", now_stored="reserved"),
}

#: An outgoing queue.
OUTGOING: dict[str, State] = {
    "gone": _state(
        "",
        append="waiting",
        append_transactional="sequence waiting",
        append_express="express waiting",
    ),
    # Recoverable messages, and all relayed ones.
    "on disk": _state("disk", refill="waiting", begin_removal="removing"),
    "waiting": _state(
        "disk window",
        window_is_full="on disk",
        transmit="in flight",
        begin_removal="removing",
        new_session="on disk",
    ),
    "in flight": _state(
        "disk in_flight",
        session_ack="acknowledged",
        begin_removal="removing",
        new_session="on disk",
    ),
    "acknowledged": _state("disk releasing", released="gone"),
    "removing": _state("disk removing", removed="gone"),
    # Transactional messages of this queue manager.
    "sequence on disk": _state("disk", refill="sequence waiting", begin_removal="removing"),
    "sequence waiting": _state(
        "disk window",
        transmit="sequence in flight",
        begin_removal="removing",
        new_session="sequence on disk",
        resend="sequence on disk",
    ),
    "sequence in flight": _state(
        "disk transmitted",
        order_ack="sequence acknowledged",
        begin_removal="removing",
        new_session="sequence on disk",
        resend="sequence on disk",
    ),
    "sequence acknowledged": _state(
        "disk releasing", released="gone", arrived="awaiting final ack"
    ),
    "awaiting final ack": _state("awaiting", final_ack="gone"),
    # Express messages.
    "express waiting": _state("express window", transmit="express in flight", forget="gone"),
    "express in flight": _state("express", new_session="express waiting", forget="gone"),
}
