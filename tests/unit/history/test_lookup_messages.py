"""Requests and replies of look-ups: round trips, limits, and fields that are cut."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from qmd.history.lookup_messages import (
    CHARACTERS_MAX,
    EVENTS_MAX,
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    LookupReply,
    LookupRequest,
    decoded,
    encoded_reply,
    encoded_request,
    facts_of,
)

SOURCE, REMOTE = bytes(range(16)), bytes([9]) * 16


def event(index: int = 0, reason: str = "") -> dict[str, Any]:
    return {
        "cursor": f"17.{index}",
        "at_ms": 1_769_860_800_250,
        "kind": "sent",
        "queue": "private$\\orders",
        "peer": "",
        "lookup_id": 5,
        "sequence_id": None,
        "sequence_number": None,
        "class": None,
        "delivery": "recoverable",
        "bytes": 300,
        "reason": reason,
        "to_queue": "",
        "transaction": "",
        "label": "",
        "correlation_id": "",
    }


def description(*events: dict[str, Any], sentence: str = "It is in orders.") -> dict[str, Any]:
    return {
        "host": "hostb",
        "state": "queued",
        "sentences": [sentence],
        "remedies": [],
        "events": list(events),
        "events_left_out": False,
    }


def test_a_request_is_decoded() -> None:
    assert decoded(encoded_request(SOURCE, 5)) == LookupRequest(1, SOURCE, 5)


def test_a_reply_has_the_events_in_the_form_of_the_event_log() -> None:
    reply = decoded(encoded_reply(description(event(3))))
    assert isinstance(reply, LookupReply)
    facts = facts_of(reply, REMOTE, SOURCE, 5)

    assert (facts["host"], facts["state"], facts["events_left_out"]) == ("hostb", "queued", False)
    (found,) = facts["events"]
    assert event(3).items() <= found.items()
    assert (found["block"], found["index"], found["host"]) == (17, 3, "hostb")
    assert found["message_id"].endswith("\\5")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(["why", 1, SOURCE[:15], 5]),
        msgspec.msgpack.encode(["why", 1, SOURCE, 1 << 32]),
        msgspec.msgpack.encode(["why", 1, SOURCE, 5, "x" * REQUEST_BYTES_MAX]),
        msgspec.msgpack.encode(["other", 1, SOURCE, 5]),
        bytes(REPLY_BYTES_MAX + 1),
    ],
)
def test_an_invalid_or_too_large_body_is_ignored(body: bytes) -> None:
    assert decoded(body) is None


@pytest.mark.parametrize(("count", "reason"), [(EVENTS_MAX + 50, ""), (EVENTS_MAX, "x" * 999)])
def test_a_long_history_is_cut_in_its_middle(count: int, reason: str) -> None:
    events = [event(index, reason) for index in range(count)]
    body = encoded_reply(description(*events))
    reply = decoded(body)

    assert isinstance(reply, LookupReply)
    assert len(body) <= REPLY_BYTES_MAX
    assert reply.events_left_out
    assert (reply.events[0].cursor, reply.events[-1].cursor) == ("17.0", f"17.{count - 1}")


def test_a_long_sentence_is_cut() -> None:
    reply = decoded(encoded_reply(description(sentence="x" * 2 * CHARACTERS_MAX)))

    assert isinstance(reply, LookupReply)
    (sentence,) = reply.sentences
    assert (len(sentence), sentence[-2:]) == (CHARACTERS_MAX, "x…")
