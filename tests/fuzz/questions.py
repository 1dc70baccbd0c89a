"""Target: the queries between queue managers about messages, with any body, and their display."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterable
from random import Random

import msgspec

from qmd.cli.event_files import FIELDS
from qmd.cli.why import EventTable, _print_side
from qmd.history.lookup_messages import (
    REPLY_BYTES_MAX,
    LookupReply,
    LookupRequest,
    ReplyEvent,
    decoded,
    facts_of,
)
from tests.fuzz.limits import within_limits
from tests.fuzz.target import Target

SOURCE = bytes(range(16))
EVENT = ReplyEvent(
    *("17.2", 1769860800250, "sent", "private$\\orders", "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"),
    *(105553116266497, (1 << 64) - 1, 7, "ack_reach_queue", "recoverable", 300, "why", "", ""),
)
ANSWER = LookupReply(
    1, "hostb", "queued", ["It is in orders."], ["Receive it."], [EVENT, EVENT], False
)


def bodies() -> Iterable[bytes]:
    for value in (LookupRequest(1, SOURCE, 5), ANSWER, msgspec.structs.replace(ANSWER, events=[])):
        yield msgspec.msgpack.encode(value)


def check_question(body: bytes) -> None:
    value = within_limits(decoded, body)
    if value is None:
        return
    if isinstance(value, LookupRequest):
        assert (len(value.source), value.number >> 32) == (16, 0)
        return
    facts = facts_of(value, SOURCE, SOURCE, 5)
    assert len(json.dumps(facts)) < 64 * REPLY_BYTES_MAX
    assert all([name for name, _, _ in FIELDS] == list(event) for event in facts["events"])
    with contextlib.redirect_stdout(io.StringIO()) as output:
        EventTable().print(facts["events"])
        _print_side(facts, has_answers=True)
    assert output.getvalue().replace("\n", "").isprintable()


def mutate_body(body: bytes, size_max: int, random: Random) -> bytes:
    """Change some bytes, or one value among the values."""
    if random.random() < 0.5:
        body = random.choice(list(bodies()))  # most changes break the body for good
    try:
        value = msgspec.msgpack.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        value = None
    if isinstance(value, list) and random.random() < 0.7:
        inside = value
        while inside and isinstance(inside, list):
            at = random.randrange(len(inside))
            if not isinstance(inside[at], list) or random.random() < 0.2:
                inside[at] = random.choice(ODD_VALUES)
                break
            inside = inside[at]
        body = msgspec.msgpack.encode(value)
    else:
        changed = bytearray(body or b"\0")
        for _ in range(random.randrange(1, 4)):
            changed[random.randrange(len(changed))] = random.randrange(256)
        body = bytes(changed)
    return body[:size_max]


ODD_VALUES = (
    *(
        None,
        True,
        -1,
        0,
        1 << 63,
        1.5,
        "",
        "x" * 600,
        "\x1b[31m",
        "٣.٤",
        "9" * 30,
        b"",
        b"\xff" * 16,
    ),
    *([], {}, [[]] * 300, ["x"] * 65, 253_402_300_799_999, 253_402_300_800_000),
)

TARGETS = (Target("questions", check_question, bodies, mutate_body),)
