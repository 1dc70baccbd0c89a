"""The explanation of a message, in sentences: where it is, what happened, what it waits for.

The input is plain values: places and events (`message_search.py` finds them).  Times are those of
this computer's wall clock, in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from qmd.history.sentences import Value, history_sentences, phrase
from qmd.history.words import moment, ordinal, span, times


class Explanation(NamedTuple):
    """The explanation: `state` is one word for programs, the rest is text for operators."""

    state: str
    sentences: list[str]
    remedies: list[str]


#: Kinds of places, the most important first, for a message with several copies.
_ORDER = (
    "transaction",
    "delayed",
    "outgoing",
    "queue",
    "awaiting",
    "dead_letter",
    "damaged",
    "journal",
)

#: The state of a message that has no place, by the kind of its last event.
_ENDS = {
    "received": "received",
    "expired": "expired",
    "purged": "purged",
    "unroutable": "unroutable",
    "queue_deleted": "queue_deleted",
    "rejected": "rejected",
    "cancelled": "cancelled",
    "unsendable": "unsendable",
    "refused": "refused",
    "discarded": "discarded",
    "requeued": "requeued",
    "damaged": "damaged",
    "lost": "lost",
    "vanished": "vanished",
    "confirmed": "confirmed",
    "late_confirmation": "confirmed",
    "final_ack_received": "ended_elsewhere",
    "order_acknowledged": "delivered",
    "session_acknowledged": "delivered",
}
#: Kinds of events that may follow the end of a message, and do not change its state.
_SIDE_EVENTS = frozenset(
    {
        "journaled",
        "journal_full",
        *("acknowledged", "unacknowledged", "reported"),
        *("final_ack_sent", "duplicate", "noted"),
    }
)


def explain(
    places: Sequence[Value],
    events: Sequence[Value],
    *,
    now_ms: int,
    known_host: str,
    names: Mapping[str, str] | None = None,
    searched_all: bool = True,
) -> Explanation:
    """Return the explanation of a message from its places and its events, the oldest first.

    `known_host` is the name of this queue manager, `names` are those of others by their GUIDs.
    Without `searched_all`, the search ended before all queues were searched.
    """
    events = [
        {**event, "peer": (names or {}).get(event["peer"], event["peer"])} for event in events
    ]
    places = sorted(places, key=lambda place: _ORDER.index(place["kind"]))
    sentences: list[str] = []
    remedies: list[str] = []
    reasons: list[str] = []  # those in `sentences`
    for place in places:
        if place["kind"] == "queue":
            place = {**place, "moved_because": _moved_because(place, events, now_ms)}
        sentence, remedy = _PLACES[place["kind"]](place, now_ms)
        sentences.append(sentence)
        if remedy:
            remedies.append(remedy)
        reasons += filter(None, (place.get("reason"), place.get("moved_because")))
    history = history_sentences(events, now_ms, reasons)
    if places:
        return Explanation(_state(places[0]), sentences + history, remedies)
    if not searched_all:
        return Explanation(
            "not_found",
            [
                f"It was not found on {known_host}: too many messages are stored there to"
                " search all of them.",
                *history,
            ],
            ["Ask by its lookup id and queue, or inspect the queue (qmd peek)."],
        )
    if not events:
        return Explanation(
            "unknown",
            [
                f"{known_host} has no record of this message: it is in none of its queues, and"
                " not in its history."
            ],
            ["Check the id. History is kept by size and age ([events] in the configuration)."],
        )
    last = next(
        (event for event in reversed(events) if event["kind"] not in _SIDE_EVENTS),
        events[-1],
    )
    state = _ENDS.get(last["kind"])
    if state is None:
        return Explanation(
            "lost_sight",
            [f"It is no longer in a queue of {known_host}, and its history ends there.", *history],
            [
                "An express message does not survive a restart of a queue manager; for any"
                " other message, report this."
            ],
        )
    sentence, remedy = _gone(state, last, now_ms)
    return Explanation(state, [sentence, *history], [remedy] if remedy else [])


def _state(place: Value) -> str:
    if place["kind"] == "queue":
        return "taken" if place["taken"] else "queued"
    if place["kind"] == "outgoing":
        return "in_flight" if place["transmitted"] else "outgoing"
    return _STATES[str(place["kind"])]


_STATES: dict[str, str] = {
    "transaction": "uncommitted",
    "delayed": "delayed",
    "awaiting": "awaiting_receipt",
    "dead_letter": "dead_lettered",
    "journal": "journaled",
    "damaged": "damaged",
}


def _gone(state: str, last: Value, now_ms: int) -> tuple[str, str]:
    """Return sentence and remedy for a message that is in no local queue any more."""
    when = moment(last["at_ms"], now_ms)
    if state == "delivered":
        peer = last["peer"] or "its destination"
        return (
            f"It has left this computer: {peer} has it since {when}.",
            "Continue there: run qmd why on that computer.",
        )
    if state == "confirmed":
        return f"An application has received it; this was known here at {when}.", ""
    return f"It is no longer in a queue here: it was {phrase(last)} at {when}.", ""


def _in_queue(place: Value, now_ms: int) -> tuple[str, str]:
    queue, since = place["queue"], moment(place["since_ms"], now_ms)
    if place["taken"]:
        taker = place["taken_by"]
        name = taker["client"] if taker and taker["client"] else "a connection"
        when = f", which took messages last at {moment(taker['at_ms'], now_ms)}" if taker else ""
        return (
            f"It is in {queue} since {since}, and is taken by {name}{when}: no other"
            " application gets it before it is removed or given back, or that client ends.",
            "If that program hangs, end it: the message then returns to its place.",
        )
    if place.get("retry_at_ms") is not None:
        left_s = max((place["retry_at_ms"] - now_ms) / 1000, 0)
        why = f", because {place['moved_because']}" if place["moved_because"] else ""
        parent = queue.partition(";")[0]
        return (
            f"It is in {queue} since {since}{why}. It returns to its place in {parent} in"
            f" {span(left_s)}.",
            f"To try it now: qmd move '{queue}' '{parent}' --lookup-id {place['lookup_id']}",
        )
    if place["moved_because"]:
        parent = queue.partition(";")[0]
        return (
            f"It is in {queue} since {since}{_in_line(place)}, where it was moved because:"
            f" {place['moved_because']}.",
            "Correct the cause, and move it back: qmd move"
            f" '{queue}' '{parent}' --lookup-id {place['lookup_id']}",
        )
    readers = place["readers_waiting"]
    waits = f"{readers} receivers wait for that queue" if readers else "no receiver waits for it"
    ends = _end(place, now_ms, "is not received")
    return (
        f"It is in {queue} since {since}{_in_line(place)}; {waits}.{ends}",
        "" if readers else f"Receive it: qmd receive '{queue}'.",
    )


def _moved_because(place: Value, events: Sequence[Value], now_ms: int) -> str:
    """Return why an application moved a message to a subqueue, with its last failure before.

    Return "" if it is not in a subqueue, or if the reason is not known.
    """
    if ";" not in place["queue"]:
        return ""
    failure: Value | None = None
    for event in reversed(events):
        if event["kind"] == "aborted" and event["reason"]:
            failure = event
            break
    moved = next((event for event in reversed(events) if event["kind"] == "moved"), None)
    if moved is None or moved["to_queue"] != place["queue"] or not moved["reason"]:
        return ""
    reason = str(moved["reason"]).rstrip(".")
    if failure is None:
        return reason
    when = f" (that was at {moment(failure['at_ms'], now_ms)})"
    words = failure["reason"].rstrip(".")
    return f"{reason}{when}" if words in reason else f"{reason}; the last time: {words}{when}"


def _in_outgoing(place: Value, now_ms: int) -> tuple[str, str]:
    queue = place["queue"]
    head = (
        f"It waits in the outgoing queue for {queue} since {moment(place['since_ms'], now_ms)}"
        f"{_in_line(place)}"
    )
    ends = _end(place, now_ms, "has not reached its queue")
    if place["paused"]:
        return (
            f"{head}, because an operator has paused that queue.{ends}",
            f"Resume it: qmd outgoing resume '{queue}'.",
        )
    if place["doubt"]:
        return (
            f"{head}, in a sequence that is in doubt. {place['doubt']}{ends}",
            f"Restart the sequence: qmd outgoing restart '{queue}'.",
        )
    if place["unanswered"]:
        return f"{head}. {place['unanswered']}{ends}", "Do as it says."
    if place["transmitted"]:
        outcome = "order-acknowledged" if place["transactional"] else "acknowledged as stored"
        again = place["resend_in_s"]
        when = f" It is sent again in {span(again)}." if again is not None else ""
        return (
            f"{head}: it was sent to {place['address']} over the session that is open, and is not"
            f" {outcome} yet.{when}{ends}",
            "Wait; if no acknowledgment comes, check the disk and the quotas of the other queue"
            " manager.",
        )
    if place["connected"]:
        return (
            f"{head}: a session with {place['address']} is open, and the messages in front of"
            f" it are sent first.{ends}",
            "",
        )
    if not place["address_known"]:
        return (
            f"{head}, because the address of that queue manager is unknown: it has to connect to"
            f" this one.{ends}",
            "Make sure that the queue manager there runs and connects.",
        )
    if not place["failures"]:
        return f"{head}, because no session with {place['address']} is open yet.{ends}", ""
    next_s = place["next_attempt_in_s"]
    return (
        f"{head}, because: {place['last_result'].rstrip('.')}, {times(place['failures'])}"
        f" in a row; the next attempt is in {span(next_s)}.{ends}",
        place["refusal_remedy"].strip()
        or f"Check that the queue manager at {place['address']} runs and can be reached from here;"
        f" then try at once: qmd outgoing kick '{queue}'.",
    )


def _awaiting(place: Value, now_ms: int) -> tuple[str, str]:
    until = place["until_ms"]
    wait = (
        f" If it is not by {moment(until, now_ms)}, it goes to the transactional dead-letter queue."
        if until is not None
        else " No time limit is set for this."
    )
    return (
        f"It was order-acknowledged by {place['address']} at {moment(place['since_ms'], now_ms)}:"
        f" it is in {place['queue']}, and its receipt is not confirmed yet.{wait}",
        "Check whether the application there receives from that queue.",
    )


def _in_dead_letter(place: Value, now_ms: int) -> tuple[str, str]:
    reason = place["reason"] or "no reason was recorded"
    # The command takes the system's dead-letter queues by default; others have to be named.
    own = "" if _is_of_the_system(place["queue"]) else f" --queue '{place['queue']}'"
    return (
        f"It is in the dead-letter queue {place['queue']} since"
        f" {moment(place['since_ms'], now_ms)}, because: {reason}",
        "Correct the cause, then send it again: qmd dead-letter requeue"
        f"{own} --lookup-id {place['lookup_id']}",
    )


def _in_transaction(place: Value, now_ms: int) -> tuple[str, str]:
    return (
        f"It was given to transaction {place['transaction']}, which was begun at"
        f" {moment(place['since_ms'], now_ms)} and has not ended: it is sent to {place['queue']}"
        " when that commits.",
        "If that program hangs, end it: the transaction is aborted then, and nothing is sent.",
    )


def _is_delayed(place: Value, now_ms: int) -> tuple[str, str]:
    left_s = (place["until_ms"] - now_ms) / 1000
    when = f"in {span(left_s)}" if left_s > 0 else "as soon as its queue takes it"
    until = moment(place["until_ms"], now_ms).partition(" (")[0]
    return (
        f"It is delayed since {moment(place['since_ms'], now_ms)}: it is sent to {place['queue']}"
        f" at {until}, {when}.",
        "To remove it before: qmd delayed cancel ID.",
    )


def _in_journal(place: Value, now_ms: int) -> tuple[str, str]:
    return f"A copy is in {place['queue']} since {moment(place['since_ms'], now_ms)}.", ""


def _is_damaged(place: Value, now_ms: int) -> tuple[str, str]:
    return (
        "When it was read, it differed from its stored content, and it was set aside at"
        f" {moment(place['since_ms'], now_ms)}.",
        "Stop the daemon and save the readable messages: qmd check --repair FILE; find out why the"
        " disk changes its contents.",
    )


def _is_of_the_system(name: str) -> bool:
    return name.casefold().startswith("system$;")


def _in_line(place: Value) -> str:
    position = place["position"]
    if position is None:  # of an express message, or of one far behind
        return ""
    return f", {ordinal(position)} in line"


def _end(place: Value, now_ms: int, unless: str) -> str:
    at_ms = place["expires_at_ms"]
    if at_ms is None:
        return ""
    left_s = (at_ms - now_ms) / 1000
    if left_s <= 0:
        return " Its time has expired, and it is about to be ended."
    return f" It is ended if it {unless} in {span(left_s)}."


_PLACES = {
    "transaction": _in_transaction,
    "delayed": _is_delayed,
    "outgoing": _in_outgoing,
    "queue": _in_queue,
    "awaiting": _awaiting,
    "dead_letter": _in_dead_letter,
    "damaged": _is_damaged,
    "journal": _in_journal,
}
