"""Shipped journals become an archive: a few sorted files for each closed day.

    <archive>/day=2026-11-21/run=<fingerprint>/part-*.parquet
    <archive>/_manifest/day=2026-11-21.json       which run is the day's, and what it was made of

A day is worked on once; when files came late, again.  Its new run is complete before the manifest
names it, in one act, and the old one is removed after that: who reads by the manifests never sees
half a day.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

ORDER = ("queue_manager", "queue", "position")
FILE_ROWS = 1_000_000
#: What is one message of a journal: positions are given again by who was put back from a backup.
_SAME = (*ORDER, "message_id")

_CONTENTS = ("day", "queue_manager", "queue", "messages", "bytes", "first", "last")
#: What messages there are, by the day of their arrival in the journal.
CONTENTS = """
SELECT date_format(arrived_at, 'yyyy-MM-dd') AS day, queue_manager, queue, count(*) AS messages,
  sum(length(body)) AS bytes, min(arrived_at) AS first, max(arrived_at) AS last
FROM {table} GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""

_DAY = re.compile(r"day=(\d{4}-\d\d-\d\d)/")


@dataclass(frozen=True)
class Archived:
    """What became of one day."""

    day: str
    files: int  # that it was made of
    rows: int
    was_done: bool  # before, and nothing has come since
    #: Files that cannot be read, and why: they are tried again by the next run.
    broken: tuple[tuple[str, str], ...] = ()


class Archive:
    """A folder or store, by path or URL."""

    def __init__(self, where: str) -> None:
        import fsspec

        self._system, root = fsspec.core.url_to_fs(where)
        self._root = str(root).rstrip("/")
        self._where = where.rstrip("/")

    def manifests(self) -> dict[str, dict[str, Any]]:
        """What is known of each day that is archived."""
        found = {}
        for name in sorted(self._system.glob(f"{self._root}/_manifest/day=*.json")):
            with self._system.open(name, "rb") as file:
                manifest = json.loads(file.read())
            found[str(manifest["day"])] = manifest
        return found

    def runs(self, since: str = "", until: str = "9999") -> list[str]:
        """Where the days from one to the other are, for Spark."""
        return [
            f"{self._where}/{manifest['folder']}"
            for day, manifest in sorted(self.manifests().items())
            if since <= day <= until
        ]

    def plan_days(self, lake: str, *, today: datetime.date) -> dict[str, list[str]]:
        """Of each closed day that `lake` has journals of, the files that are not archived yet."""
        known = self.manifests()
        return {
            day: [name for name in names if _last(name) not in set(_sources(known.get(day)))]
            for day, names in _days(lake, today).items()
        }

    def compact(
        self,
        spark: Any,
        lake: str,
        *,
        today: datetime.date,
        progress: Callable[[str], None] = lambda text: None,
    ) -> list[Archived]:
        """All days before today of the journals that `qmd ship` has brought to `lake`."""
        import fsspec

        system, _ = fsspec.core.url_to_fs(lake)
        known = self.manifests()
        done = []
        days = _days(lake, today)
        for number, (day, names) in enumerate(sorted(days.items())):
            progress(f"{day}, day {number + 1} of {len(days)}: {len(names)} files")
            done.append(self._day(spark, day, names, system, known.get(day)))
        return done

    def contents(self, spark: Any) -> Any:
        """How much is archived, by day, host and queue: a table of pandas."""
        runs = self.runs()
        if not runs:
            return pd.DataFrame(columns=_CONTENTS)
        spark.read.option("mergeSchema", "true").parquet(*runs).createOrReplaceTempView("archived")
        return spark.sql(CONTENTS.format(table="archived")).toPandas()

    def write_report(self, contents: Any, page: str) -> str:
        """Beside the days, where nobody takes it for one; returns where the page is."""
        table = pa.BufferOutputStream()
        parquet.write_table(pa.Table.from_pandas(contents, preserve_index=False), table)
        self._name("_report/contents.parquet", table.getvalue().to_pybytes())
        self._name("_report/report.html", page.encode())
        return f"{self._where}/_report/report.html"

    def _day(
        self,
        spark: Any,
        day: str,
        names: list[str],
        system: Any,
        before: dict[str, Any] | None,
    ) -> Archived:
        # Files that were removed at the lake by age are in the archive all the same.
        new = [name for name in names if _last(name) not in set(_sources(before))]
        broken = _broken(system, new, inside=False)
        try:
            done = self._run(spark, day, _without(new, broken), system, before)
        except Exception:  # whatever Spark's bridge to Java has made of it
            inside = _broken(system, _without(new, broken), inside=True)
            if not inside:
                raise
            broken |= inside
            done = self._run(spark, day, _without(new, broken), system, before)
        return replace(done, broken=tuple(sorted(broken.items())))

    def _run(
        self, spark: Any, day: str, new: list[str], system: Any, before: dict[str, Any] | None
    ) -> Archived:
        """The day anew, if any file of it is `new`."""
        known = _sources(before)
        if not new:
            rows = 0 if before is None else before["rows"]
            return Archived(day, len(known), rows, was_done=True)
        paths = [system.unstrip_protocol(name) for name in new]
        if before is not None:
            paths.append(f"{self._where}/{before['folder']}")
        rows = spark.read.option("mergeSchema", "true").parquet(*paths)
        # Whose notes were lost ships messages again, in other files; a replay sends each once.
        rows = rows.dropDuplicates([name for name in _SAME if name in rows.columns])
        together = sorted({*map(_last, new), *known})
        fingerprint = hashlib.sha256("\n".join(together).encode()).hexdigest()[:16]
        folder = f"day={day}/run={fingerprint}"
        (
            rows.repartitionByRange(*ORDER)
            .sortWithinPartitions(*ORDER)
            .write.mode("overwrite")
            .option("maxRecordsPerFile", FILE_ROWS)
            .parquet(f"{self._where}/{folder}")
        )
        count = spark.read.parquet(f"{self._where}/{folder}").count()
        manifest = {"day": day, "folder": folder, "rows": count, "sources": together}
        self._name(f"_manifest/day={day}.json", json.dumps(manifest).encode())
        for old in self._system.glob(f"{self._root}/day={day}/run=*"):
            if not str(old).endswith(fingerprint):
                self._system.rm(old, recursive=True)
        return Archived(day, len(together), count, was_done=False)

    def plan(self, name: str) -> dict[str, Any] | None:
        """What a replay of that name is to send, as it was fixed when it began."""
        try:
            with self._system.open(f"{self._root}/_replays/{name}.json", "rb") as file:
                plan: dict[str, Any] = json.loads(file.read())
        except FileNotFoundError:
            return None
        return plan

    def write_plan(self, name: str, plan: dict[str, Any]) -> None:
        self._name(f"_replays/{name}.json", json.dumps(plan).encode())

    def _name(self, name: str, data: bytes) -> None:
        """One small file, whole or not at all."""
        path = f"{self._root}/{name}"
        self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
        part = f"{path}.part"
        self._system.pipe_file(part, data)
        self._system.mv(part, path)


def _days(lake: str, today: datetime.date) -> dict[str, list[str]]:
    """The files of journals of each day that is over."""
    import fsspec

    system, root = fsspec.core.url_to_fs(lake)
    days: dict[str, list[str]] = {}
    for name in sorted(system.glob(f"{str(root).rstrip('/')}/journal/day=*/host=*/*.parquet")):
        found = _DAY.search(name)
        if found is not None and found[1] < today.isoformat():
            days.setdefault(found[1], []).append(name)
    return days


def _broken(system: Any, names: list[str], *, inside: bool) -> dict[str, str]:
    """Which are no Parquet files, as far as their ends tell; `inside`: all of each is read."""
    found = {}
    for name in names:
        try:
            with system.open(name, "rb") as opened, parquet.ParquetFile(opened) as file:
                for group in range(file.metadata.num_row_groups) if inside else ():
                    file.read_row_group(group)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:  # pyarrow's own are such
            found[name] = str(error).splitlines()[0] if str(error) else repr(error)
    return found


def _without(names: list[str], broken: dict[str, str]) -> list[str]:
    return [name for name in names if name not in broken]


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _sources(manifest: dict[str, Any] | None) -> list[str]:
    return [] if manifest is None else list(manifest["sources"])
