"""The rules for messages of streams: exactly once, in order, whole."""

from __future__ import annotations

from pipeline.jobs.audit.facts import ARRIVAL_MAX, HALF, Role
from pipeline.jobs.audit.rules.candidates import ID, MESSAGE, candidate, found_in

# Of repeated events the first counts: a restored backup gives places again.
_FIRST = "struct(at_ms, place)"
_ARRIVAL = f"if(place >= 0, place & {ARRIVAL_MAX}, block << 20 | index)"

#: One row for each message of a stream; not all events of a message contain its sequence.
MESSAGES = f"""
WITH each AS (
  SELECT source, number,
    coalesce(min(stream) FILTER (WHERE role = {Role.SENT}), max(stream)) AS stream,
    count_if(role = {Role.SENT}) AS sent,
    min(key) FILTER (WHERE role = {Role.SENT}) AS sent_key,
    min(at_ms) FILTER (WHERE role = {Role.SENT}) AS sent_at,
    min(block) FILTER (WHERE role = {Role.SENT}) AS sent_block,
    min(queue) FILTER (WHERE role = {Role.SENT}) AS sent_queue,
    count_if(role = {Role.ACCEPTED}) AS accepted,
    min(key) FILTER (WHERE role = {Role.ACCEPTED}) AS accepted_key,
    min(stream) FILTER (WHERE role = {Role.ACCEPTED}) AS accepted_stream,
    min_by({_ARRIVAL}, {_FIRST}) FILTER (WHERE role = {Role.ACCEPTED}) AS place,
    min(block) FILTER (WHERE role = {Role.ACCEPTED}) AS accepted_block,
    min(at_ms) FILTER (WHERE role = {Role.ACCEPTED}) AS accepted_at,
    min(size) FILTER (WHERE role = {Role.SENT} AND size > 0) AS sent_size,
    max(size) FILTER (WHERE role = {Role.ACCEPTED} AND size > 0) AS accepted_size,
    max(at_ms) FILTER (WHERE role = {Role.ACCEPTED}) AS accepted_at_last,
    min_by(host, {_FIRST}) FILTER (WHERE role = {Role.ACCEPTED}) AS host,
    min_by(queue, {_FIRST}) FILTER (WHERE role = {Role.ACCEPTED}) AS queue,
    count_if(role = {Role.ORDER_ACKED}) > 0 AS is_acked,
    min(at_ms) FILTER (WHERE role = {Role.ORDER_ACKED}) AS ack_at,
    min(block) FILTER (WHERE role = {Role.ORDER_ACKED}) AS ack_block,
    count_if(role = {Role.ENDED}) AS ended,
    min(at_ms) FILTER (WHERE role = {Role.ENDED}) AS ended_at,
    count_if(role = {Role.REFUSED}) AS refused,
    count_if(role = {Role.DEAD_LATER}) AS dead_later,
    count_if(role = {Role.RECEIVED}) AS received,
    max_by(peer, at_ms) FILTER (WHERE role = {Role.ORDER_ACKED}) AS acked_by,
    coalesce(min(index) FILTER (WHERE role = {Role.SENT}) < 0, FALSE) AS is_settled
  FROM facts
  WHERE role IN ({Role.SENT}, {Role.ACCEPTED}, {Role.ORDER_ACKED}, {Role.ENDED}, {Role.REFUSED},
                 {Role.DEAD_LATER}, {Role.RECEIVED})
  GROUP BY source, number
  HAVING max(stream) >= 0
)
SELECT /*+ BROADCAST(streams, destinations) */ each.*, coalesce(sent_key, accepted_key) AS key,
  streams.receiver, streams.following, streams.following_sent,
  streams.old_sent, streams.old_accepted, destinations.queues,
  streams.stream IS NOT NULL AS is_suspect
FROM each
LEFT JOIN streams USING (source, stream)
LEFT JOIN destinations ON sent_queue = destinations.sent_to
"""


def messages_of(first: int, last: int) -> str:
    """Return the query `MESSAGES` for the messages with these numbers."""
    return MESSAGES.replace(
        "FROM facts\n  WHERE", f"FROM facts\n  WHERE number BETWEEN {first} AND {last} AND"
    )


_ORDERED = """
SELECT *,
  lag(key) OVER by_key AS key_before,
  max(key) OVER before AS key_most_before,
  min(key) OVER behind AS key_after,
  max(sent_key) OVER before AS sent_before,
  max(sent_block) OVER before AS sent_block_before,
  max(sent_at) OVER before AS sent_at_before,
  min(sent_block) OVER behind AS sent_block_after,
  max(if(sent > 0, number, NULL)) OVER before AS number_before,
  min(if(sent > 0, number, NULL)) OVER behind AS number_after,
  -- Blocks are those of one host.
  max(if(host = receiver, accepted_block, NULL)) OVER before AS accepted_block_before,
  min(if(host = receiver, accepted_block, NULL)) OVER behind AS accepted_block_after,
  min(accepted_at) OVER behind AS accepted_at_after,
  min(ack_at) OVER behind AS ack_at_after,
  min(ack_block) OVER behind AS ack_block_after,
  -- Arrival numbers are those of one host.
  max(if(accepted > 0, key, NULL)) OVER arrived AS overtaken_by,
  max(if(accepted > 0 AND sent > 0, key, NULL)) OVER arrived AS overtaken_by_sent
FROM {messages}
WINDOW by_key AS (PARTITION BY {by} ORDER BY key, number),
  before AS (PARTITION BY {by} ORDER BY key, number
             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
  arrived AS (PARTITION BY {by}, host ORDER BY place NULLS FIRST, key
              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
  -- Descending: a frame that extends to the end would cost Spark the square of the stream.
  behind AS (PARTITION BY {by} ORDER BY key DESC, number DESC
             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""


def ordered(messages: str = "messages", by: str = "source, stream") -> str:
    """Return the query for each message with what was sent and accepted before and after it.

    `messages` is their table, and `by` the columns of which each value is ordered by itself.
    """
    return _ORDERED.format(messages=messages, by=by)


NEAR = """
WITH near AS (
  SELECT m.key, m.number, m.sent_at, m.accepted_at, m.accepted_at_last, m.accepted, m.ended_at, c.n,
    row_number() OVER (PARTITION BY c.n, m.key > c.wanted ORDER BY abs(m.key - c.wanted)) AS nth
  FROM messages m JOIN chosen c ON m.source = c.source AND m.stream = c.stream
  -- Other hosts may log a message that these files neither send nor store: it has no place.
  WHERE m.key IS NOT NULL
)
SELECT * FROM near WHERE nth <= 5
"""
_WAS_SENT = "exists(old_sent, r -> key BETWEEN r[0] AND r[1])"
_WAS_ACCEPTED = "exists(old_accepted, r -> key BETWEEN r[0] AND r[1])"
# Events that represent a segment, or were kept from inside it, lie where the segment lies.
_SAME_SENT = (
    "exists(old_sent, r -> key BETWEEN r[0] AND r[1]"
    " AND sent_block BETWEEN r[2] AND r[3] AND sent_at BETWEEN r[4] AND r[5])"
)
_SAME_ACCEPTED = (
    "exists(old_accepted, r -> accepted_key BETWEEN r[0] AND r[1] AND r[4] = host"
    " AND place BETWEEN r[2] AND r[3] AND accepted_at BETWEEN r[5] AND r[6])"
)
# A settled message under the same number need not be this one.
_IS_MISSING = f"sent > 0 AND accepted = 0 AND ended = 0 AND refused = 0 AND NOT {_SAME_SENT}"
# Another stream of the same source and queue may have begun before: that proves nothing.
_FOLLOWING = (
    "if(following >= coalesce(accepted_block_before, 0) AND following_sent > sent_block,"
    " following, NULL)"
)
_LATER = f"(accepted_at_after IS NOT NULL OR {_FOLLOWING} IS NOT NULL)"
_SAME_SEQUENCE = f"(key_before >> {HALF}) = (key >> {HALF})"
_FLOOR = f"""greatest(
  if({_SAME_SEQUENCE}, key_before, (key & {-1 << int(HALF)})),
  array_max(transform(filter(old_sent, r -> r[1] < key), r -> r[1])))"""

_BEHIND = "exists(old_accepted, r -> r[0] > key AND r[2] < place AND r[4] = host)"
# The stretch to read: the message was not accepted before that time.
_NOT_BEFORE = {
    "covering": "host", "block_to": "accepted_block", "clock_of": "source", "at_from": "sent_at",
}  # fmt: skip

#: Each rule: its candidate, and its condition.
_RULES = (
    (
        candidate("'delivered_and_dead'", **MESSAGE),
        "(accepted > 0 AND ended > 0) OR (received > 0 AND dead_later > 0)",
    ),
    # An earlier run may have read that it was received.
    (
        candidate("'died_later'", **MESSAGE),
        "accepted > 0 AND ended = 0 AND received = 0 AND dead_later > 0",
    ),
    (candidate("'duplicated'", **MESSAGE), "accepted > 1"),
    # An earlier run may have read both ends of it.  Its number as a message decides that
    # (`decisions`), and not its place in the stream: another message may have been sent or accepted
    # under that number, and a segment of several sequences does not show where each of them ends.
    (
        candidate("'accepted_again'", **MESSAGE),
        f"is_suspect AND sent > 0 AND accepted = 1 AND NOT is_settled AND {_WAS_SENT}"
        f" AND NOT {_SAME_SENT} AND NOT {_SAME_ACCEPTED}",
    ),
    (
        candidate(
            "'reordered'",
            **MESSAGE,
            **_NOT_BEFORE,
            # Numbers of acceptance need not be the numbers of sending.
            too_covering=f"if(sent > 0 AND (overtaken_by_sent > key OR {_BEHIND}), NULL, source)",
            too_clock_of="host",
            too_at_to="accepted_at",
        ),
        f"is_suspect AND accepted = 1 AND (overtaken_by > key OR {_BEHIND})",
    ),
    (
        candidate("'wrong_number'", **MESSAGE, **_NOT_BEFORE),
        # Messages that were accepted more than once are duplicates.
        "is_suspect AND sent > 0 AND accepted = 1"
        " AND (accepted_key <> sent_key OR accepted_stream <> stream)",
    ),
    (
        candidate("'other_size'", **MESSAGE),
        "sent = 1 AND accepted > 0 AND sent_size <> accepted_size",
    ),
    (
        candidate("'other_queue'", **MESSAGE),
        # Of a redirected message, the queue that its source knows is not the one of its host.
        "sent > 0 AND accepted = 1 AND queues IS NOT NULL AND NOT array_contains(queues, queue)",
    ),
    (
        candidate("'number_reused'", **MESSAGE),
        "is_suspect AND sent > 0 AND (sent_before = sent_key OR"
        f" ({_WAS_SENT} AND NOT {_SAME_SENT}))",
    ),
    (
        candidate(
            "'never_sent'",
            **MESSAGE,
            covering="source",
            # A source that gives numbers of a sequence again has sent later ones before.
            block_from="if(number_before < number, sent_block_before, NULL)",
            block_to="if(number_after > number, sent_block_after, NULL)",
            clock_of="host",
            at_to="accepted_at",
        ),
        "is_suspect AND accepted > 0 AND sent = 0",
    ),
    (
        candidate(
            f"CASE WHEN is_acked THEN 'acked_not_stored' WHEN {_LATER} THEN 'lost'"
            " ELSE 'pending' END",
            **MESSAGE,
            # It may have arrived at any time since it was sent, also before its neighbours.
            covering="receiver",
            block_to=f"if(is_acked, NULL, coalesce(accepted_block_after, {_FOLLOWING}))",
            clock_of="source",
            at_from="sent_at",
            at_to="if(is_acked, ack_at, coalesce(ack_at_after, accepted_at_after))",
            acked_by="acked_by",
            # It may have ended, or been acknowledged, before its receiver continued.
            too_covering="if(is_acked, NULL, source)",
            too_block_from="sent_block",
            too_block_to=f"coalesce(ack_block_after, if({_FOLLOWING} > 0, following_sent, NULL))",
            too_clock_of="receiver",
            too_at_to="accepted_at_after",
        ),
        f"is_suspect AND {_IS_MISSING}",
    ),
    # Some are no gaps (`given.without_given`).
    (
        candidate(
            "'gap'",
            **(MESSAGE | {"key": f"{_FLOOR} + 1", "until_key": "key - 1", "number": "NULL"}),
            covering="source",
            block_from="sent_block_before",
            block_to="sent_block",
            # A message sent again after a restart, or a forged one, may have used the number.
            too_covering="receiver",
            too_at_from="sent_at_before",
            too_block_to="if(host = receiver, accepted_block, accepted_block_after)",
            too_clock_of="source",
            too_at_to="sent_at",
        ),
        f"is_suspect AND sent > 0 AND key - {_FLOOR} > 1"
        " AND (key_before IS NULL OR key_before < key)"
        " AND NOT exists(old_sent, r -> key - 1 BETWEEN r[0] AND r[1])",
    ),
)

_GOOD = f"""is_suspect AND sent = 1 AND accepted = 1 AND NOT is_settled
  AND accepted_key = sent_key AND accepted_stream = stream
  AND ended = 0 AND refused = 0 AND dead_later = 0
  AND coalesce(sent_size = accepted_size, TRUE) AND coalesce(array_contains(queues, queue), TRUE)
  AND coalesce(overtaken_by < key, TRUE)
  AND coalesce(key_most_before < key, TRUE) AND coalesce(key_after > key, TRUE)
  AND NOT {_WAS_SENT} AND NOT {_WAS_ACCEPTED}"""
# Of events that represent a segment, acknowledgments alone show nothing.
_OF_SEGMENT = "is_settled AND sent = 1 AND accepted = 1 AND ended + refused + dead_later = 0"
_KEPT = (candidate("'kept'", **ID), f"NOT coalesce({_GOOD}, FALSE) AND NOT ({_OF_SEGMENT})")

CANDIDATES = found_in("ordered", (*_RULES, _KEPT))

#: Messages, each as a segment of its own, and whether it is settled (`is_good`).
_OF_ONE = {
    "key": ("key_first", "key_last"), "number": ("number_first", "number_last"),
    "sent_block": ("sent_block_first", "sent_block_last"),
    "sent_at": ("sent_at_first", "sent_at_last", "sent_at_min", "sent_at_max"),
    "place": ("place_first", "place_last"), "accepted_block": ("block_first", "block_last"),
    "accepted_at": ("at_first", "at_last", "at_min", "at_max"),
}  # fmt: skip
SEGMENTS = (
    "SELECT source, stream, sent_queue, host, queue, "
    + ", ".join(f"{each} AS {name}" for each, names in _OF_ONE.items() for name in names)
    + f", coalesce({_GOOD}, FALSE) AS is_good FROM ordered WHERE is_suspect AND key IS NOT NULL"
)
