"""The rules for places: what left a queue twice, never came to it, or came from a file twice."""

from __future__ import annotations

from pipeline.jobs.audit.facts import ARRIVAL_MAX, Role
from pipeline.jobs.audit.rules.candidates import select

#: The events of all other messages; of settled ones, and of those that left their place twice, only
#: the events of leaving.
KEPT = f"""
SELECT /*+ BROADCAST(kept) */ facts.* FROM facts LEFT JOIN kept USING (source, number)
WHERE index >= 0 AND (
  (kept.how = 1) OR (kept.how = 2 AND role IN ({Role.RECEIVED}, {Role.LEFT}))
  OR (role = {Role.LEFT} AND source <> host)
)
"""

#: Departures from places which messages had left in files of earlier runs.
AGAIN = f"""
SELECT facts.source, number, facts.host, queue, place, max(at_ms) AS at_ms FROM facts
JOIN again_places p ON facts.host = p.source AND place & {ARRIVAL_MAX} BETWEEN p.first AND p.last
JOIN again_numbers n ON facts.source = n.source AND number BETWEEN n.first AND n.last
WHERE role IN ({Role.RECEIVED}, {Role.LEFT}) AND place >= 0
GROUP BY facts.source, number, facts.host, queue, place
"""

#: Messages that left a place to which they never came.
UNARRIVED = (
    select(
        "'received_unstored'",
        source="facts.source",
        number="number",
        stream="-1",
        host="facts.host",
        queue="queue",
        at_ms="min(at_ms)",
        place="place",
        covering="facts.host",
        block_to="min(block)",
    )
    + f""" FROM facts
JOIN unarrived p ON facts.host = p.source AND place & {ARRIVAL_MAX} BETWEEN p.first AND p.last
WHERE role IN ({Role.RECEIVED}, {Role.LEFT}) AND place >= 0 AND facts.source <> facts.host
GROUP BY facts.source, number, facts.host, queue, place"""
)

#: Messages that were read from a file more often than they left a queue in another way than to an
#: application.
IMPORTED_TWICE = (
    select(
        "if(imports > 1 AND came - gone > 1, 'imported_twice', 'imported')",
        source="source",
        number="number",
        stream="-1",
        host="host",
        queue="queue",
        at_ms="imported_at",
        covering="host",
        clock_of="host",
        at_from="imported_first",
        at_to="imported_at",
    )
    + f""" FROM (
  SELECT source, number, count_if(role = {Role.IMPORTED}) AS imports,
    count_if(role IN ({Role.IMPORTED}, {Role.ACCEPTED})) AS came,
    count_if(role = {Role.LEFT}) AS gone,
    max(host) FILTER (WHERE role = {Role.IMPORTED}) AS host,
    max(queue) FILTER (WHERE role = {Role.IMPORTED}) AS queue,
    min(at_ms) FILTER (WHERE role = {Role.IMPORTED}) AS imported_first,
    max(at_ms) FILTER (WHERE role = {Role.IMPORTED}) AS imported_at
  FROM facts GROUP BY source, number
) WHERE imports > 0"""
)

LEFT_TWICE = (
    select(
        "'ended_twice'",
        source="source",
        number="number",
        stream="-1",
        host="host",
        queue="queue",
        at_ms="max(at_ms)",
        place="place",
    )
    + f" FROM facts WHERE role IN ({Role.RECEIVED}, {Role.LEFT})"
    " GROUP BY source, number, host, queue, place HAVING count(*) > 1"
)
