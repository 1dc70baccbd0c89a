"""The rules of the audit again, in one query of DuckDB that reads every message.

It does not handle missing logs, wrong clocks and messages without a sequence: it runs on fleets
without these faults.

"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path

QUERY = r"""
WITH e AS (
  SELECT substr(message_id, 1, 36) AS source, queue_manager, message_id, kind, at_ms,
    sequence_id // 4294967296 AS stream, sequence_id, sequence_number AS n, lookup_id & 17592186044415 AS arrival,
    queue, class
  FROM read_parquet('{files}', hive_partitioning = false)
  WHERE kind IN ('sent', 'accepted', 'order_acknowledged', 'expired', 'final_ack_received', 'refused')
), m AS (
  SELECT source, message_id, max(stream) AS stream, max(sequence_id) AS sequence_id, max(n) AS n,
    count(*) FILTER (kind = 'sent') AS sent,
    count(*) FILTER (kind = 'accepted') AS accepted,
    count(*) FILTER (kind = 'order_acknowledged') AS acked,
    count(*) FILTER (kind IN ('expired', 'final_ack_received') AND source = queue_manager
                     AND queue LIKE '%=%') AS dead,
    count(*) FILTER (kind = 'refused') AS refused,
    min(arrival) FILTER (kind = 'accepted') AS arrival
  FROM e GROUP BY source, message_id HAVING max(stream) IS NOT NULL
), w AS (
  SELECT *,
    lag(n) OVER (PARTITION BY source, sequence_id ORDER BY n) AS before,
    max(struct_pack(s := sequence_id, n := n)) OVER (PARTITION BY source, stream ORDER BY arrival
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS overtaken_by,
    max(accepted) OVER (PARTITION BY source, stream ORDER BY sequence_id, n
        ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS later
  FROM m
)
SELECT unnest(list_filter([
    CASE WHEN accepted = 0 AND dead = 0 AND refused = 0 AND acked > 0 THEN 'acked_not_stored' END,
    CASE WHEN accepted = 0 AND dead = 0 AND refused = 0 AND acked = 0 AND later > 0 THEN 'lost' END,
    CASE WHEN accepted > 1 THEN 'duplicated' END,
    CASE WHEN accepted > 0 AND dead > 0 THEN 'delivered_and_dead' END,
    CASE WHEN accepted > 0 AND overtaken_by > struct_pack(s := sequence_id, n := n) THEN 'reordered' END,
    CASE WHEN n > coalesce(before, 0) + 1 THEN 'gap' END], lambda x: x IS NOT NULL)) AS kind,
  message_id, sequence_id, coalesce(before, 0) + 1 AS missing
FROM w
"""  # noqa: E501


def run(folder: Path, threads: int = 2) -> list[tuple[str, str, int, int]]:
    import duckdb

    with duckdb.connect() as db:
        db.execute(f"SET threads = {threads}")
        return db.execute(QUERY.replace("{files}", f"{folder}/**/*.parquet")).fetchall()


def second_opinion(folder: Path) -> Counter[tuple[str, str, int, int]]:
    return Counter(
        ("gap", "", int(sequence_id), int(missing)) if kind == "gap" else (kind, message_id, 0, 0)
        for kind, message_id, sequence_id, missing in run(folder)
    )


def main() -> None:
    """Print the number of findings of each kind, and the time.

    `python -m tests.pipeline.second_opinion FOLDER`
    """
    import duckdb  # noqa: F401  # not to be measured

    begun = time.monotonic()
    rows = run(Path(sys.argv[1]))
    seconds = time.monotonic() - begun
    kinds = Counter(kind for kind, *_ in rows)
    print(json.dumps({"seconds": seconds, "kinds": kinds}))


if __name__ == "__main__":
    main()
