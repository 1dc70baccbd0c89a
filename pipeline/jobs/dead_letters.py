"""What died, why and where, and how it is sent again.  docs/jobs.md, "dead-letters" """

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.events import LogFile
from pipeline.jobs.reading import read_events

Frame = Any

_GROUPS = r"""
SELECT host, coalesce(`class`, '') AS message_class, queue, coalesce(label, '') AS label, to_queue,
  count(*) AS messages, sum(bytes) AS bytes, min(at_ms) AS first_ms, max(at_ms) AS last_ms,
  slice(sort_array(collect_set(message_id)), 1, 3) AS examples, min(reason) AS reason
FROM (SELECT *, row_number() OVER (PARTITION BY host, `class`, queue, label, to_queue
                                   ORDER BY at_ms, message_id) AS nth FROM dead)
GROUP BY host, coalesce(`class`, ''), queue, coalesce(label, ''), to_queue
"""


def dead_letters(
    spark: Any, files: Sequence[LogFile], progress: Callable[[str], None] = lambda text: None
) -> dict[str, Frame]:
    """Tables `groups` (the largest first, each with what sends it again) and `by_hour`."""
    progress("what died")
    events = read_events(spark, files).where("kind IN ('dead_lettered', 'discarded')")
    events.dropDuplicates(["queue_manager", "block", "index"]).createOrReplaceTempView("dead")
    groups = spark.sql(
        _GROUPS.replace("collect_set(message_id)", "collect_set(if(nth <= 3, message_id, NULL))")
    ).toPandas()
    groups["command"] = [command(row) for row in groups.itertuples()]
    groups["examples"] = [", ".join(each) for each in groups.examples]
    by_hour = spark.sql(
        "SELECT timestamp_millis(at_ms - at_ms % 3600000) AS hour,"
        " coalesce(`class`, '') AS message_class,"
        " count(*) AS messages FROM dead GROUP BY 1, 2 ORDER BY 1, 2"
    ).toPandas()
    return {
        "groups": groups.sort_values("messages", ascending=False, ignore_index=True),
        "by_hour": by_hour,
    }


def command(group: Any) -> str:
    """What an operator types at `group.host` to send its messages again."""
    if not group.to_queue:
        return ""  # nobody kept them
    kept = "transactional-dead-letter" if group.to_queue.endswith("deadxact") else "dead-letter"
    words = ["qmd", "dead-letter", "requeue"]
    words += ["--queue", kept if group.to_queue.startswith("system$") else group.to_queue]
    for option, value in (
        ("--class", group.message_class),
        ("--destination", group.queue),
        ("--label", group.label),
    ):
        if value:
            words += [option, value]
    return " ".join(map(shlex.quote, words))
