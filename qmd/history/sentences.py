"""The history of a message as sentences, one for each event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qmd.history.words import moment, times

Value = dict[str, Any]

HISTORY_SENTENCES_MAX = 16

PHRASES = {
    "delayed": "accepted for {queue}, to be sent later",
    "cancelled": "cancelled before it was sent to {queue}",
    "unsendable": "ended, because it could not be sent to {queue} at its time",
    "sent": "sent to {queue}",
    "transmitted": "transmitted to {peer}",
    "retransmitted": "transmitted again to {peer}",
    "session_acknowledged": "accepted by {peer}",
    "order_acknowledged": "order-acknowledged by {peer}",
    "awaiting": "kept here from then on, until its receipt is confirmed,",
    "relayed": "accepted from {peer}, to be relayed to {queue}",
    "accepted": "accepted from {peer} into {queue}",
    "duplicate": "received again from {peer}, and not stored twice",
    "out_of_order": "received from {peer} before its predecessor, and not stored",
    "refused": "refused for {queue}",
    "received": "received from {queue} by an application",
    "noted": "remarked on in {queue}",
    "aborted": "returned to its place in {queue}",
    "moved": "moved from {queue} to {to_queue}",
    "journaled": "copied to {to_queue}",
    "journal_full": "not copied to a journal, because its quota is reached",
    "expired": "ended, because its time had expired",
    "purged": "purged from {queue}",
    "unroutable": "ended on its way to {queue}: no route leads on from here",
    "queue_deleted": "deleted together with {queue}",
    "rejected": "rejected by the application that received it from {queue}",
    "dead_lettered": "put into {to_queue}",
    "discarded": "discarded",
    "final_ack_sent": "reported to its sender ({class})",
    "final_ack_received": "reported by {peer} ({class})",
    "confirmed": "confirmed as received at its destination",
    "unconfirmed": "given up: its receipt was not confirmed in time",
    "late_confirmation": "confirmed as received, after it had been given up",
    "acknowledged": "acknowledged to {to_queue} ({class})",
    "unacknowledged": "not acknowledged to {to_queue} ({class})",
    "reported": "reported to {to_queue}",
    "damaged": "found damaged, and set aside",
    "lost": "lost with the memory of the daemon",
    "vanished": "missed: its row had vanished from the database",
    "imported": "imported into {queue}",
    "stored": "reserved for a pipeline in {queue}, and written to disk for it",
    "requeued": "sent again as another message",
}


def phrase(event: Value) -> str:
    """Return the clause for one event, without its time."""
    template: str = PHRASES.get(event["kind"], event["kind"].replace("_", " "))
    return template.format(
        **{
            "queue": event["queue"] or "a queue",
            "peer": event["peer"] or "another queue manager",
            "to_queue": event["to_queue"] or "another queue",
            "class": event["class"] or "normal",
        }
    )


def history_sentences(events: Sequence[Value], now_ms: int, reasons: list[str]) -> list[str]:
    """Return one sentence for each event, and one for several equal events in a row.

    `reasons` are those of earlier sentences, which are not repeated.
    """
    runs: list[tuple[Value, Value, int]] = []  # the first, the last, how many
    for event in events:
        if runs and _same(runs[-1][1], event):
            runs[-1] = (runs[-1][0], event, runs[-1][2] + 1)
        else:
            runs.append((event, event, 1))
    sentences = []
    for first, last, count in runs:
        text = f"It was {phrase(last)}"
        if count == 1:
            text += f" at {moment(last['at_ms'], now_ms)}"
        else:
            text += (
                f" {times(count)}, first at {moment(first['at_ms'], now_ms)}"
                f" and last at {moment(last['at_ms'], now_ms)}"
            )
        # That of an accepted message names its signer, which is not why it was accepted.
        reason = "" if last["kind"] == "accepted" else last["reason"].rstrip(".")
        # One reason often contains another one, with its origin.
        if reason and not any(reason in known or known in reason for known in reasons):
            text += f", because: {reason}"
            reasons = [*reasons, reason]
        sentences.append(f"{text}.")
    if len(sentences) > HISTORY_SENTENCES_MAX:
        half = HISTORY_SENTENCES_MAX // 2
        left = len(sentences) - 2 * half
        omission = f"({left} more: `qmd trace` has them.)"
        sentences = [*sentences[:half], omission, *sentences[-half:]]
    return sentences


def _same(one: Value, other: Value) -> bool:
    return all(one[key] == other[key] for key in ("kind", "queue", "peer", "to_queue", "reason"))
