"""The rules for messages without a sequence, and for those that only other hosts mention."""

from __future__ import annotations

from pipeline.jobs.audit.facts import EXPRESS, RECOVERABLE, Role
from pipeline.jobs.audit.rules.candidates import ID, MESSAGE, candidate, found_in, select

#: Messages without a sequence.
_PLAIN_MESSAGES = f"""
WITH plain AS (
  SELECT source, number,
    count_if(role = {Role.SENT}) AS sent,
    min(at_ms) FILTER (WHERE role = {Role.SENT}) AS sent_at,
    min(block) FILTER (WHERE role = {Role.SENT}) AS sent_block,
    min(queue) FILTER (WHERE role = {Role.SENT}) AS sent_queue,
    count_if(role = {Role.ACCEPTED}) AS accepted,
    count(DISTINCT if(role = {Role.ACCEPTED}, struct(host, queue), NULL)) AS places,
    min(at_ms) FILTER (WHERE role = {Role.ACCEPTED}) AS accepted_at,
    min(block) FILTER (WHERE role = {Role.ACCEPTED}) AS accepted_block,
    min(place) FILTER (WHERE role = {Role.ACCEPTED}) AS place,
    min(host) FILTER (WHERE role = {Role.ACCEPTED}) AS host,
    min(queue) FILTER (WHERE role = {Role.ACCEPTED}) AS queue,
    min(size) FILTER (WHERE role = {Role.SENT} AND size > 0) AS sent_size,
    max(size) FILTER (WHERE role = {Role.ACCEPTED} AND size > 0) AS accepted_size,
    count_if(role = {Role.SESSION_ACKED}) AS acked,
    min(at_ms) FILTER (WHERE role = {Role.SESSION_ACKED}) AS ack_at,
    count_if(role = {Role.ENDED}) AS ended,
    count_if(role = {Role.REFUSED}) AS refused,
    count_if(role = {Role.RELAYED}) AS relayed,
    count_if(role = {Role.PASSED}) AS passed,
    max_by(peer, at_ms) FILTER (WHERE role IN ({Role.SESSION_ACKED}, {Role.PASSED})) AS acked_by,
    max(grade) AS grade, CAST(-1 AS BIGINT) AS stream, CAST(NULL AS BIGINT) AS key,
    CAST(NULL AS BIGINT) AS receiver
  FROM facts
  WHERE stream < 0 AND role IN ({Role.SENT}, {Role.ACCEPTED}, {Role.SESSION_ACKED},
                                {Role.ENDED}, {Role.REFUSED}, {Role.RELAYED}, {Role.PASSED})
  GROUP BY source, number
  HAVING sent > 0 OR accepted > 0
)
"""
_PLAIN_MESSAGE = MESSAGE | {"grade": "grade"}
_PLAIN_RULES = (
    (candidate("'duplicated'", **_PLAIN_MESSAGE), "accepted > places"),
    (
        candidate("'other_size'", **_PLAIN_MESSAGE),
        "sent = 1 AND accepted > 0 AND sent_size <> accepted_size",
    ),
    (
        candidate("'other_queue'", **_PLAIN_MESSAGE),
        "sent > 0 AND accepted = 1 AND queues IS NOT NULL AND NOT array_contains(queues, queue)",
    ),
    (
        candidate("'delivered_and_dead'", **_PLAIN_MESSAGE),
        f"accepted > 0 AND ended > 0 AND grade <> {EXPRESS}",
    ),
    (
        candidate(
            "'never_sent'",
            **_PLAIN_MESSAGE,
            covering="source",
            clock_of="host",
            at_to="accepted_at",
        ),
        f"accepted > 0 AND sent = 0 AND grade = {RECOVERABLE}",
    ),
    # An express message without a sending is a finding only if it was stored before.
    (
        candidate("'express_again'", **_PLAIN_MESSAGE),
        f"accepted > 0 AND sent = 0 AND grade = {EXPRESS}",
    ),
    (
        candidate(
            "if(acked + passed > relayed, 'acked_not_stored', 'pending')",
            **_PLAIN_MESSAGE,
            covering="0",
            acked_by="acked_by",
            clock_of="source",
            at_from="sent_at",
            at_to="ack_at",
        ),
        f"sent > 0 AND accepted = 0 AND refused = 0 AND ended = 0 AND grade = {RECOVERABLE}",
    ),
)
_PLAIN_KEPT = (
    candidate("'kept'", **ID),
    "NOT (sent = accepted AND accepted = places AND ended = 0 AND refused = 0)"
    " OR sent_size <> accepted_size OR NOT array_contains(queues, queue)",
)
PLAIN = (
    _PLAIN_MESSAGES
    + ", plain_to AS (SELECT /*+ BROADCAST(destinations) */ plain.*, destinations.queues FROM plain"
    " LEFT JOIN destinations ON sent_queue = destinations.sent_to)\n"
    + found_in("plain_to", (*_PLAIN_RULES, _PLAIN_KEPT))
)

#: Messages that these files neither send nor store, from other hosts' events: they may be settled,
#: or their log may be missing.  `key` is how often the message ended at its source, `until_key` how
#: often because of its fate after it had arrived.
ORPHANS = (
    select(
        "'orphan'",
        source="source",
        number="number",
        stream="max(stream)",
        key=f"count_if(role = {Role.ENDED})",
        until_key=f"if(count_if(role = {Role.LEFT}) > 0, 0, count_if(role = {Role.DEAD_LATER}))",
        sent_queue=f"max(queue) FILTER (WHERE role IN ({Role.ENDED}, {Role.DEAD_LATER}))",
        covering="0",
        clock_of="source",
        at_from=f"min(at_ms) FILTER (WHERE role IN ({Role.ENDED}, {Role.DEAD_LATER}))",
        at_ms="min(at_ms)",
    )
    + " FROM facts GROUP BY source, number"
    f" HAVING count_if(role IN ({Role.SENT}, {Role.ACCEPTED})) = 0"
    f" AND count_if(role NOT IN ({Role.RECEIVED}, {Role.LEFT})) > 0"
)
